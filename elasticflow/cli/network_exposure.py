"""What it means that the page listens at an address which other machines reach."""

import ipaddress
from pathlib import Path

CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")  # of Docker, of Podman


def exposure_warning(host: str, port: int) -> str:
    """ "" on the loopback, and in a container, where its operator chooses the ports that are published."""
    if _is_loopback(host) or any(Path(file).exists() for file in CONTAINER_FILES):
        return ""
    return (
        f"warning: other machines reach {host}:{port}, over plain HTTP. Only the token of a link keeps them out, and "
        "each machine on the way can read the link, the cookie and the page. Leave --host out; from another machine "
        f"forward the port: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""This machine's address, as the other machines of a pool reach it."""

import socket
from urllib.parse import urlsplit

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "")


def reachable_host(nats_url: str) -> str:
    """This machine's address on the route to NATS; loopback if NATS runs here, because then all nodes do."""
    first = nats_url.split(",")[0].strip()
    parts = urlsplit(first if "://" in first else f"nats://{first}")
    nats_host = parts.hostname or ""
    if nats_host in _LOOPBACK:
        return "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((nats_host, parts.port or 4222))  # sends nothing, only selects the route
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()

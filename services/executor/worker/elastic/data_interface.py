"""The network interface by which gloo and NCCL move tensors between nodes.

EF_DATA_INTERFACE of the executor names it, or NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME do. By default it is the one of
the advertised host, by which the bus is reached, too.
"""

import os
import socket

import psutil
import structlog

log = structlog.get_logger()

CHECK_NETWORK = (
    "unless a worker was lost: set EF_DATA_INTERFACE of each executor to an interface by which nodes reach each other, "
    "and open all TCP ports on it between nodes"
)


def bind_to_host(advertise_host: str) -> None:
    """Let gloo and NCCL use the advertised network: a host's own name may resolve to its loopback.

    A setting in the executor's environment takes precedence. NCCL matches prefixes of names, unless "=" precedes.
    """
    address = socket.gethostbyname(advertise_host)
    for interface, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")


def warn_unconnected(library: str, reason: str, advice: str = CHECK_NETWORK) -> None:
    """After an attempt to connect all workers. library: "gloo" or "nccl"."""
    log.warning(
        "workers_not_connected",
        library=library,
        interface=os.environ.get(f"{library.upper()}_SOCKET_IFNAME", "").lstrip("="),
        reason=reason.partition("\n")[0],
        advice=advice,
    )

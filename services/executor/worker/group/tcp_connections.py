"""Finds and shuts down TCP connections of this process; gloo opens and closes its own without exposing them.

When gloo closes a descriptor in its thread, the next socket may receive the same number. So each operation works on a
duplicate of the descriptor, after a check that it is still the same socket.
"""

import ctypes
import hmac
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import psutil

from elasticflow.shared.runtime.process.logs import log

_SO_ATTACH_FILTER = 26  # Linux
_DROP_ALL = struct.pack("@HBBI", 0x06, 0, 0, 0)  # a socket filter: return 0 bytes of each segment


class TcpConnection(NamedTuple):
    """inode: of the socket; no later socket has it while this one is open."""

    descriptor: int
    inode: int


def connections() -> set[TcpConnection]:
    """Connected TCP sockets of this process."""
    found: set[TcpConnection] = set()
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed by another thread
            status = os.fstat(int(name))
            connection = TcpConnection(int(name), status.st_ino)
            if stat.S_ISSOCK(status.st_mode) and _is_tcp(connection):
                found.add(connection)
    return found


def connections_to(port: int) -> set[TcpConnection]:
    """The connections whose peer has this port."""
    return {connection for connection in connections() if (ends := _ends(connection)) and ends[1].port == port}


def connections_at(addresses: bytes) -> set[TcpConnection]:
    """The connections with an end at one of the addresses, given as system addresses (sockaddr) among other bytes."""
    return {connection for connection in connections() if any(end.as_written in addresses for end in _ends(connection))}


def limit_reply_time(connection: TcpConnection, seconds: float) -> None:
    """Make waits for bytes on it fail after this time; no effect if it was closed meanwhile."""
    timeval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    with suppress(OSError), _copied(connection) as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


def shut_down(connection: TcpConnection) -> None:
    """Shut a connection down for both ends; no effect if it was closed meanwhile."""
    with suppress(OSError), _copied(connection) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def close_to_others(addresses: bytes) -> None:
    """Let the kernel drop all later connections to listening sockets of this process at these addresses.

    The sockets stay open, because their library polls them; connections that they have accepted go on.
    """
    program = ctypes.create_string_buffer(_DROP_ALL)
    filter_program = struct.pack("@HP", 1, ctypes.addressof(program))
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed by another thread
            status = os.fstat(int(name))
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with _copied(TcpConnection(int(name), status.st_ino)) as copy:
                if _listens(copy) and _end(copy.family, copy.getsockname()).as_written in addresses:
                    copy.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_program)


def _listens(sock: socket.socket) -> bool:
    is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
    return is_tcp and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _is_tcp(connection: TcpConnection) -> bool:
    with _copied(connection) as copy:
        listens = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return copy.family in (socket.AF_INET, socket.AF_INET6) and not listens


class _End(NamedTuple):
    port: int
    as_written: bytes  # port and address, of a sockaddr


def _ends(connection: TcpConnection) -> tuple[_End, ...]:
    """Its own end and its peer's; empty if it was closed meanwhile."""
    with suppress(OSError), _copied(connection) as copy:
        return tuple(_end(copy.family, name) for name in (copy.getsockname(), copy.getpeername()))
    return ()


def _end(family: int, name: tuple[Any, ...]) -> _End:
    """name: Python's tuple: host, port, and for IPv6 flow and scope."""
    host, port, *flow_and_scope = name
    flow = struct.pack("!I", flow_and_scope[0]) if flow_and_scope else b""
    address = socket.inet_pton(family, host.partition("%")[0])
    return _End(port, struct.pack("!H", port) + flow + address)


@contextmanager
def _copied(connection: TcpConnection) -> Iterator[socket.socket]:
    """A duplicate of the same socket. Raises OSError if it was closed meanwhile."""
    number = os.dup(connection.descriptor)
    if os.fstat(number).st_ino != connection.inode:
        os.close(number)
        raise OSError(f"descriptor {connection.descriptor} belongs to another socket now")
    with socket.socket(fileno=number) as copy:
        yield copy


# --- generation secret ---------------------------------------------------------------------------------
# What workers of a generation prove to each other with its secret. Without a secret, nothing is proved.
#
# The secret travels from an executor to its workers only (docs/adr/0070).

_SEAL_BYTES = 32
NONCE_BYTES = 32


class NotAuthentic(RuntimeError):
    """A value in the store, or a peer, does not know the secret of the generation."""


def derived(secret: str, purpose: str) -> str:
    """The secret of a part of a rendezvous, so that no value of one part serves in another."""
    return secret and _digest(secret, b"part", purpose.encode()).hex()


def sealed(secret: str, key: str, value: bytes) -> bytes:
    """The value of a key in the store, which anyone who reaches its port may write."""
    return value if not secret else _digest(secret, b"value", key.encode(), value) + value


def opened(secret: str, key: str, value: bytes) -> bytes:
    """Raises NotAuthentic."""
    if not secret:
        return value
    seal, content = value[:_SEAL_BYTES], value[_SEAL_BYTES:]
    if not hmac.compare_digest(seal, _digest(secret, b"value", key.encode(), content)):
        raise NotAuthentic(f"{key}: not written with the secret of this generation; has each executor the same one?")
    return content


def proof(secret: str, prover: int, verifier: int, nonce: bytes) -> bytes:
    """The proof that rank `prover` knows the secret, for the rank that chose the nonce."""
    return _digest(secret, b"proof", f"{prover}/{verifier}".encode(), nonce)


def _digest(secret: str, *parts: bytes) -> bytes:
    message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.digest(bytes.fromhex(secret), message, "sha256")


# --- The network interface by which gloo and NCCL move tensors between nodes ---------------------------
# EF_DATA_INTERFACE of the executor names it, or NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME do. By default it is the
# one of the advertised host, by which the bus is reached, too.

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
    """Log a warning after an attempt to connect all workers. library: "gloo" or "nccl"."""
    log.warning(
        "workers_not_connected",
        library=library,
        interface=os.environ.get(f"{library.upper()}_SOCKET_IFNAME", "").lstrip("="),
        reason=reason.partition("\n")[0],
        advice=advice,
    )

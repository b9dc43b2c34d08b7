"""The key-value store of a rendezvous: every wait in it ends by a reply, a timeout or an abort.

torch's stores wait inside the library, where nothing can interrupt them. `RendezvousStore` polls for keys instead, so
that a wait for a dead peer can be aborted. `connect_store` bounds each reply of a remote store: torch would wait until
TCP gives up, up to a quarter of an hour, or forever while the silent machine's kernel acknowledges. It bounds the first
reply from another thread, because the library waits for it before it exposes the connection.
"""

# pyright: reportPrivateImportUsage=false

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from elasticflow.services.executor.worker.group.tcp_connections import (
    TcpConnection,
    connections_to,
    limit_reply_time,
    opened,
    sealed,
    shut_down,
)

_FIRST_POLL_S, _LAST_POLL_S = 0.001, 0.02  # for a key
_ATTEMPT_S = 1.0  # to connect; the abort is checked between attempts
_BACKLOG = 4096  # all workers connect at once
_WATCH_S = 0.1  # for an abort while the library connects


class RendezvousAborted(RuntimeError):
    """The rendezvous is no longer needed."""

    def __init__(self) -> None:
        super().__init__("the rendezvous was aborted")


class RendezvousStore(dist.Store):
    """Wraps a store, as far as gloo uses one. aborted: ends every wait. wait_s: the default timeout of a wait.

    secret: of all values but counts; without it, anyone who reaches the store's port could name other addresses. `get`
    raises NotAuthentic for a value of another.
    """

    def __init__(self, store: dist.Store, aborted: threading.Event, *, wait_s: float, secret: str = "") -> None:
        super().__init__()
        self._store, self._aborted, self._wait_s, self._secret = store, aborted, wait_s, secret

    def set(self, key: str, value: str | bytes) -> None:
        content = value.encode() if isinstance(value, str) else value
        self._store.set(key, sealed(self._secret, key, content))  # pyright: ignore[reportArgumentType]

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check(list(keys))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return opened(self._secret, key, self._store.get(key))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Raises RendezvousAborted, or RuntimeError on timeout."""
        wait_s = self._wait_s if timeout is None else timeout.total_seconds()
        deadline_s, poll_interval_s = time.monotonic() + wait_s, _FIRST_POLL_S
        while not self.check(keys):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"timed out after {wait_s:.0f} s waiting for {', '.join(keys)}")
            if self._aborted.wait(poll_interval_s):
                raise RendezvousAborted
            poll_interval_s = min(2 * poll_interval_s, _LAST_POLL_S)


def listening_store(host: str, *, wait_s: float) -> dist.TCPStore:
    """A new store at this address of the machine, on a port that the system chooses.

    torch would listen on all addresses. Behind an address translation, the host is none of this machine's.
    """
    timeout = timedelta(seconds=wait_s)
    try:
        (family, *_, address), *_ = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError:
        return dist.TCPStore(host, port=0, is_master=True, wait_for_workers=False, timeout=timeout)
    port = listener.getsockname()[1]
    return dist.TCPStore(
        host,
        port=port,
        is_master=True,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=listener.detach(),  # the store closes it
    )


def connect_store(
    host: str, port: int, *, within_s: float, reply_timeout_s: float, aborted: threading.Event
) -> dist.TCPStore:
    """Connect to a store that listens already. After a failed call the store is unusable: a late reply may follow.

    within_s: for the connection. reply_timeout_s: for each later reply. Raises RendezvousAborted, DistNetworkError.
    """
    others, deadline_s = connections_to(port), time.monotonic() + within_s
    with _shutting_down_at(deadline_s, port, others, aborted):
        while True:
            try:
                store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_ATTEMPT_S))
                break
            except dist.DistNetworkError:
                if aborted.is_set():
                    raise RendezvousAborted from None
                if time.monotonic() > deadline_s:
                    raise
    for connection in connections_to(port) - others:
        limit_reply_time(connection, reply_timeout_s)
    store.set_timeout(timedelta(seconds=reply_timeout_s))
    return store


@contextmanager
def _shutting_down_at(
    deadline_s: float, port: int, others: set[TcpConnection], aborted: threading.Event
) -> Iterator[None]:
    """Shuts down connections to the port, except the others, at the deadline or on an abort within the block."""
    connected = threading.Event()

    def watch() -> None:
        while not connected.wait(_WATCH_S):
            if aborted.is_set() or time.monotonic() > deadline_s:
                for connection in connections_to(port) - others:
                    shut_down(connection)

    watcher = threading.Thread(target=watch, name="store-client", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        connected.set()
        watcher.join()

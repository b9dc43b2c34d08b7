"""A silent machine blocks no thread for longer than the loss confirmation takes."""

# pyright: reportPrivateImportUsage=false

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch.distributed as dist

from elasticflow.services.executor.worker.group.gloo_transport import connect_all
from elasticflow.services.executor.worker.group.rendezvous_store import (
    RendezvousAborted,
    RendezvousStore,
    connect_store,
)
from elasticflow.services.executor.worker.group.transport import Membership

HOST, LONG_S, SHORT_S = "127.0.0.1", 1000.0, 0.2


class Relay:
    """Relays between one client and the store that listens on a port; once silent, it still accepts."""

    def __init__(self, store_port: int) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.is_silent, self._store_port = False, store_port
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._relay, daemon=True).start()

    def _relay(self) -> None:
        client, _ = self._listener.accept()
        self._ends += [client, socket.create_connection((HOST, self._store_port))]
        for source, sink in (self._ends, self._ends[::-1]):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(4096):
                if not self.is_silent:
                    sink.sendall(content)

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            end.close()


@pytest.fixture
def relay() -> Iterator[Relay]:
    server = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    relay = Relay(server.port)
    yield relay
    relay.close()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """The kernel accepts connections there."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


def test_connecting_to_a_silent_store_times_out(silent_port: int) -> None:
    with pytest.raises(dist.DistNetworkError):
        connect_store(HOST, silent_port, within_s=SHORT_S, reply_timeout_s=LONG_S, aborted=threading.Event())


def test_connecting_to_a_silent_store_can_be_aborted(silent_port: int) -> None:
    aborted = threading.Event()
    threading.Timer(SHORT_S, aborted.set).start()
    with pytest.raises(RendezvousAborted):
        connect_store(HOST, silent_port, within_s=LONG_S, reply_timeout_s=LONG_S, aborted=aborted)


def test_a_reply_of_a_silent_store_times_out(relay: Relay) -> None:
    store = connect_store(HOST, relay.port, within_s=LONG_S, reply_timeout_s=SHORT_S, aborted=threading.Event())
    abortable = RendezvousStore(store, threading.Event(), wait_s=LONG_S)
    abortable.set("here", "yes")
    assert abortable.get("here") == b"yes"
    relay.is_silent = True
    for call in (
        lambda: abortable.get("here"),
        lambda: store.get("here"),
        lambda: abortable.add("number", 1),
    ):
        with pytest.raises(dist.DistError):
            call()


def test_connecting_the_mesh_is_not_retried_after_the_store_fell_silent(relay: Relay) -> None:
    """A later reply may belong to an earlier request."""
    store = connect_store(HOST, relay.port, within_s=LONG_S, reply_timeout_s=SHORT_S, aborted=threading.Event())
    relay.is_silent = True
    with pytest.raises(dist.DistError):
        connect_all(Membership(store, rank=0, size=2, timeout_s=LONG_S, aborted=threading.Event()))

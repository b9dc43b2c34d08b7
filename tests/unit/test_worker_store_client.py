"""A machine that says nothing holds no thread for longer than losses take to be known."""

# pyright: reportPrivateImportUsage=false

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch.distributed as dist

from services.executor.worker.meeting_store import GivenUp, MeetingStore
from services.executor.worker.mesh import connect_all
from services.executor.worker.store_client import connect_store

HOST, LONG_S, SHORT_S = "127.0.0.1", 1000.0, 0.2


class Relay:
    """Between one client and the store that listens on a port; it goes on to accept when it has fallen silent."""

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
    """Connections are accepted there, by the kernel."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


def test_a_connection_to_one_who_never_answers_is_given_up_in_time(silent_port: int) -> None:
    with pytest.raises(dist.DistNetworkError):
        connect_store(HOST, silent_port, within_s=SHORT_S, answer_s=LONG_S, given_up=threading.Event())


def test_a_connection_to_one_who_never_answers_is_given_up_when_the_meeting_is(silent_port: int) -> None:
    given_up = threading.Event()
    threading.Timer(SHORT_S, given_up.set).start()
    with pytest.raises(GivenUp):
        connect_store(HOST, silent_port, within_s=LONG_S, answer_s=LONG_S, given_up=given_up)


def test_who_falls_silent_is_waited_for_as_long_as_an_answer_may_take(relay: Relay) -> None:
    store = connect_store(HOST, relay.port, within_s=LONG_S, answer_s=SHORT_S, given_up=threading.Event())
    place = MeetingStore(store, threading.Event(), wait_s=LONG_S)
    place.set("here", "yes")
    assert place.get("here") == b"yes"
    relay.is_silent = True
    for call in (lambda: place.get("here"), lambda: store.get("here"), lambda: place.add("number", 1)):
        with pytest.raises(dist.DistError):
            call()


def test_connections_are_not_tried_for_again_by_way_of_one_who_has_fallen_silent(relay: Relay) -> None:
    """What its store says later may answer an older question."""
    store = connect_store(HOST, relay.port, within_s=LONG_S, answer_s=SHORT_S, given_up=threading.Event())
    relay.is_silent = True
    with pytest.raises(dist.DistError):
        connect_all(store, 0, 2, timeout_s=LONG_S, given_up=threading.Event())

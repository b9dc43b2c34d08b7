"""The socket between a worker and its reader process: few calls, since each may wait for the interpreter's lock."""

import socket
import threading
from typing import Any

import pytest

from elasticflow.services.executor.worker.data import read_ahead

NUM_BYTES = 3_000_000  # more than a socket holds


class Counting:
    """A socket that counts the calls for bytes."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self.num_calls = 0

    def recv_into(self, *arguments: Any) -> int:
        self.num_calls += 1
        return self._source.recv_into(*arguments)


def test_a_tensor_arrives_by_one_call() -> None:
    sent = bytes(range(250)) * (NUM_BYTES // 250)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=theirs.sendall, args=(sent,))
        sending.start()
        source: Any = Counting(ours)
        received = read_ahead._receive_bytes(source, len(sent))
        sending.join()
    assert received == sent
    assert source.num_calls == 1


def test_an_end_in_the_middle_of_a_tensor_is_an_end() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b"half")
        theirs.close()
        with pytest.raises(EOFError):
            read_ahead._receive_bytes(ours, 8)

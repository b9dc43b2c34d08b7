"""A client of a store elsewhere that does not wait for a machine which says nothing.

torch waits for each answer inside of the library, until TCP gives up: a quarter of an hour, or for ever where the
machine's kernel still acknowledges what it gets. Nobody else reaches that thread. So each answer gets a bound here, the
first one by another thread, since the library waits for it before it hands the connection out.
"""
# pyright: reportPrivateImportUsage=false

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from services.executor.worker.connections import Connection, connections_to, limit_answers, shut_down
from services.executor.worker.meeting_store import GivenUp

_ATTEMPT_S = 1.0  # between two looks whether it was given up
_LOOK_S = 0.1


def connect_store(
    host: str, port: int, *, within_s: float, answer_s: float, given_up: threading.Event
) -> dist.TCPStore:
    """To one that listens already. It cannot be used any more once a call has failed: an answer may come late.

    within_s: for the connection. answer_s: for each answer later on. Raises GivenUp, DistNetworkError.
    """
    others, give_up_s = connections_to(port), time.monotonic() + within_s
    with _shutting_down(port, others, give_up_s, given_up):
        while True:
            try:
                store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_ATTEMPT_S))
                break
            except dist.DistNetworkError:
                if given_up.is_set():
                    raise GivenUp from None
                if time.monotonic() > give_up_s:
                    raise
    for connection in connections_to(port) - others:
        limit_answers(connection, answer_s)
    store.set_timeout(timedelta(seconds=answer_s))
    return store


@contextmanager
def _shutting_down(
    port: int, others: set[Connection], give_up_s: float, given_up: threading.Event
) -> Iterator[None]:
    """What is connected to the port in here, and to the others not yet, is shut down when its time is over."""
    connected = threading.Event()

    def watch() -> None:
        while not connected.wait(_LOOK_S):
            if given_up.is_set() or time.monotonic() > give_up_s:
                for connection in connections_to(port) - others:
                    shut_down(connection)

    watcher = threading.Thread(target=watch, name="store-client", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        connected.set()
        watcher.join()

"""gloo's connections between all who meet, made in attempts.

gloo waits for a connection inside of the library, where nothing reaches it. A worker whose peer dies at that moment
would keep the threads, sockets and ports of that meeting for minutes, and its other peers would wait for it. So gloo
gets a second; where a peer that lives takes longer, all try again, and it gets more. Between the attempts everybody
waits in the store, and can be told to stop.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import threading
from datetime import timedelta

import torch.distributed as dist

from services.executor.worker.meeting_store import MeetingStore

_FIRST_ATTEMPT_S, _GROWTH = 1.0, 4
_PATIENCE = 5  # gloo waits for a first connection so many times as long as it is told
_CONNECTED, _FAILED = b"connected", b"failed"


def connect_all(
    store: dist.Store, rank: int, size: int, *, timeout_s: float, given_up: threading.Event
) -> dist.ProcessGroupGloo:
    """A collective of all who meet: connected with each other everywhere, or nowhere. timeout_s: of its collectives;
    whoever waits for a single transfer says for how long. Raises GivenUp, RuntimeError."""
    attempt_s = _FIRST_ATTEMPT_S
    while True:
        place = MeetingStore(dist.PrefixStore(f"gloo-{attempt_s:g}", store), given_up, wait_s=timeout_s)
        gloo = _attempt(place, rank, size, attempt_s)
        if gloo is None:
            place.set("outcome", _FAILED.decode())
        elif place.add("connected", 1) == size:
            place.set("outcome", _CONNECTED.decode())
        if gloo is not None and place.get("outcome") == _CONNECTED:
            gloo._set_default_timeout(timedelta(seconds=timeout_s))
            return gloo
        if attempt_s >= timeout_s:
            raise RuntimeError(f"not all of {size} workers were connected within {attempt_s:g} s")
        attempt_s *= _GROWTH


def _attempt(place: MeetingStore, rank: int, size: int, attempt_s: float) -> dist.ProcessGroupGloo | None:
    """None if somebody who is there was not connected in time."""
    try:
        return dist.ProcessGroupGloo(place, rank, size, timedelta(seconds=attempt_s / _PATIENCE))
    except RuntimeError as error:
        if "Connect timeout" not in str(error):
            raise
        return None

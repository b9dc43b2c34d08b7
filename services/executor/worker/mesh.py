"""gloo's connections between all who meet, made in attempts.

gloo waits for a connection inside of the library, where nothing reaches it. A worker whose peer dies at that moment
would keep the threads, sockets and ports of that meeting for minutes, and its other peers would wait for it. So gloo
gets a second; where a peer that lives takes longer, all try again, and it gets more. Between the attempts everybody
waits in the store, and can be told to stop.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import threading
import time
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from services.executor.worker.connections import Connection, connections_at
from services.executor.worker.meeting_store import MeetingStore

_FIRST_ATTEMPT_S, _GROWTH = 1.0, 4
_PATIENCE = 5  # gloo waits for a first connection so many times as long as it is told
_CONNECTED, _FAILED = b"connected", b"failed"


class Mesh(NamedTuple):
    """connections: this process's, of this gloo and of nobody else."""

    gloo: dist.ProcessGroupGloo
    connections: set[Connection]


class _PlaceForGloo(MeetingStore):
    """told: all that was read here, among it where each one's gloo listens: one end of each connection."""

    told = b""

    def get(self, key: str) -> bytes:
        value = super().get(key)
        self.told += value
        return value


def connect_all(
    store: dist.Store, rank: int, size: int, *, timeout_s: float, given_up: threading.Event
) -> Mesh:
    """A collective of all who meet: connected with each other everywhere, or nowhere. timeout_s: of its collectives;
    whoever waits for a single transfer says for how long. Raises GivenUp, RuntimeError, of which
    DistError is the store's."""
    give_up_s, attempt_s = time.monotonic() + timeout_s, _FIRST_ATTEMPT_S
    while True:
        wait_s = give_up_s - time.monotonic()
        place = _PlaceForGloo(dist.PrefixStore(f"gloo-{attempt_s:g}", store), given_up, wait_s=wait_s)
        try:
            gloo = dist.ProcessGroupGloo(place, rank, size, timedelta(seconds=attempt_s / _PATIENCE))
        except dist.DistError:  # the store's own: what it says from now on may be a late answer
            raise
        except RuntimeError:  # also where another one's attempt has failed, and it has closed its connections
            if given_up.is_set() or time.monotonic() > give_up_s:
                raise
            place.set("outcome", _FAILED.decode())
        else:
            if place.add("connected", 1) == size:
                place.set("outcome", _CONNECTED.decode())
            if place.get("outcome") == _CONNECTED:
                gloo._set_default_timeout(timedelta(seconds=timeout_s))
                return Mesh(gloo, connections_at(place.told))
        attempt_s *= _GROWTH

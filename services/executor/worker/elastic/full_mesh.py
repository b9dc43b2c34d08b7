"""Connects gloo's full mesh between all workers of a rendezvous, in attempts of growing length.

gloo waits for a connection inside the library, where nothing can interrupt it. If a peer died then, a worker would keep
threads, sockets and ports for minutes, and its other peers would wait for it. So the first attempt lasts one second,
and each further one lasts four times as long. Between attempts all workers wait in the store, where the rendezvous can
be aborted.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import threading
import time
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from elasticflow.services.executor.worker.elastic.data_interface import warn_unconnected
from elasticflow.services.executor.worker.elastic.rendezvous_store import RendezvousStore
from elasticflow.services.executor.worker.elastic.tcp_connections import Connection, connections_at

_FIRST_ATTEMPT_S, _GROWTH = 1.0, 4
_GLOO_TIMEOUT_FACTOR = 5  # gloo waits for a first connection this many times its timeout
_CONNECTED, _FAILED = b"connected", b"failed"


class Mesh(NamedTuple):
    """connections: those of this process that belong to this gloo group only."""

    gloo: dist.ProcessGroupGloo
    connections: set[Connection]


class _RecordingStore(RendezvousStore):
    """values_read: all values, among them the listening address of each peer: one end of each connection."""

    values_read = b""

    def get(self, key: str) -> bytes:
        value = super().get(key)
        self.values_read += value
        return value


def connect_all(store: dist.Store, rank: int, size: int, *, timeout_s: float, aborted: threading.Event) -> Mesh:
    """A collective of `size` workers: all of them connect, or none.

    timeout_s: of the mesh's collectives; a wait for a single transfer passes its own. Raises RendezvousAborted, and
    RuntimeError (DistError is the store's).
    """
    deadline_s, attempt_s = time.monotonic() + timeout_s, _FIRST_ATTEMPT_S
    while True:
        wait_s = deadline_s - time.monotonic()
        recording = _RecordingStore(dist.PrefixStore(f"gloo-{attempt_s:g}", store), aborted, wait_s=wait_s)
        try:
            gloo = dist.ProcessGroupGloo(recording, rank, size, timedelta(seconds=attempt_s / _GLOO_TIMEOUT_FACTOR))
        except dist.DistError:  # the store's: its next reply may belong to an earlier request
            raise
        except RuntimeError as error:  # also if a peer's attempt failed and it closed its connections
            if aborted.is_set():
                raise
            warn_unconnected("gloo", str(error))
            if time.monotonic() > deadline_s:
                raise
            recording.set("outcome", _FAILED.decode())
        else:
            if recording.add("connected", 1) == size:
                recording.set("outcome", _CONNECTED.decode())
            if recording.get("outcome") == _CONNECTED:
                gloo._set_default_timeout(timedelta(seconds=timeout_s))
                return Mesh(gloo, connections_at(recording.values_read))
        attempt_s *= _GROWTH

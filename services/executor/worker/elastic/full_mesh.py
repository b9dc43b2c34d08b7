"""Connects gloo's full mesh between all workers of a rendezvous, in attempts of growing length.

gloo waits for a connection inside the library, where nothing can interrupt it. If a peer died then, a worker would keep
threads, sockets and ports for minutes, and its other peers would wait for it. So the first attempt lasts one second,
and each further one lasts four times as long. Before each attempt all workers wait for each other in the store, where
the rendezvous can be aborted. A worker that began alone would fail before the others begin, and so would they after it.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import hmac
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from secrets import token_bytes
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.elastic.data_interface import warn_unconnected
from elasticflow.services.executor.worker.elastic.generation_secret import NONCE_BYTES, NotAuthentic, derived, proof
from elasticflow.services.executor.worker.elastic.rendezvous_store import RendezvousStore
from elasticflow.services.executor.worker.elastic.tcp_connections import Connection, close_to_others, connections_at

_FIRST_ATTEMPT_S, _GROWTH = 1.0, 4
_GLOO_TIMEOUT_FACTOR = 5  # gloo waits for a first connection this many times its timeout
_CONNECTED, _FAILED = b"connected", b"failed"


class Mesh(NamedTuple):
    """connections: those of this process that belong to this gloo group only."""

    gloo: dist.ProcessGroupGloo
    connections: set[Connection]


class _RecordingStore(RendezvousStore):
    """values_read: all values, among them the listening address of each peer: one end of each connection.

    values_written: among them that of this worker.
    """

    values_read = values_written = b""

    def set(self, key: str, value: str | bytes) -> None:
        super().set(key, value)
        self.values_written += value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:
        value = super().get(key)
        self.values_read += value
        return value

    def await_all(self, size: int) -> None:
        """Return when this many workers have called it."""
        if self.add("arrived", 1) == size:
            self.set("all", "arrived")
        self.wait(["all"])


def connect_all(
    store: dist.Store, rank: int, size: int, *, timeout_s: float, aborted: threading.Event, secret: str = ""
) -> Mesh:
    """A collective of `size` workers: all of them connect, or none.

    timeout_s: of the mesh's collectives; a wait for a single transfer passes its own. Raises RendezvousAborted, and
    RuntimeError (DistError is the store's).
    """
    deadline_s, attempt_s = time.monotonic() + timeout_s, _FIRST_ATTEMPT_S
    while True:
        began_s = time.monotonic()
        wait_s = deadline_s - began_s
        name = f"gloo-{attempt_s:g}"
        of_attempt = derived(secret, name)
        recording = _RecordingStore(dist.PrefixStore(name, store), aborted, wait_s=wait_s, secret=of_attempt)
        recording.await_all(size)
        within_s = min(attempt_s, wait_s)
        try:
            gloo = dist.ProcessGroupGloo(recording, rank, size, timedelta(seconds=within_s / _GLOO_TIMEOUT_FACTOR))
            if of_attempt:
                _prove(gloo, of_attempt, rank, size, within_s=within_s)
        except dist.DistError:  # the store's: its next reply may belong to an earlier request
            raise
        except RuntimeError as error:  # also if a peer's attempt failed and it closed its connections
            if aborted.is_set():
                raise
            warn_unconnected("gloo", str(error))
            if time.monotonic() > deadline_s:
                raise
            recording.set("outcome", _FAILED.decode())
            if isinstance(error, NotAuthentic):  # it failed at once, and may fail again
                aborted.wait(max(began_s + within_s - time.monotonic(), 0.0))
        else:
            if recording.add("connected", 1) == size:
                recording.set("outcome", _CONNECTED.decode())
            if recording.get("outcome") == _CONNECTED:
                gloo._set_default_timeout(timedelta(seconds=timeout_s))
                close_to_others(recording.values_written)  # gloo keeps strangers' connections until it aborts
                return Mesh(gloo, connections_at(recording.values_read))
        attempt_s *= _GROWTH


def _prove(gloo: Any, secret: str, rank: int, size: int, *, within_s: float) -> None:
    """Each two workers prove to each other, on their connection, that they know the secret. Raises NotAuthentic.

    gloo takes the first connections that come: they may be of another process.
    """
    mine = {peer: token_bytes(NONCE_BYTES) for peer in range(size) if peer != rank}
    theirs = _swapped(gloo, mine, within_s)
    proofs = _swapped(gloo, {peer: proof(secret, rank, peer, nonce) for peer, nonce in theirs.items()}, within_s)
    for peer, nonce in mine.items():
        if not hmac.compare_digest(proofs[peer], proof(secret, peer, rank, nonce)):
            raise NotAuthentic(f"rank {peer} does not know the secret of this generation")


def _swapped(gloo: Any, mine: Mapping[int, bytes], within_s: float) -> dict[int, bytes]:
    """Equally many bytes from each peer, for those of this worker."""
    received = {peer: torch.empty(len(sent), dtype=torch.uint8) for peer, sent in mine.items()}
    works = [gloo.send([torch.frombuffer(bytearray(sent), dtype=torch.uint8)], peer, 0) for peer, sent in mine.items()]
    works += [gloo.recv([tensor], peer, 0) for peer, tensor in received.items()]
    for work in works:
        work.wait(timedelta(seconds=within_s))
    return {peer: tensor.numpy().tobytes() for peer, tensor in received.items()}

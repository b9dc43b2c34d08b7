"""A checkpoint of a job whose workers hold parts of the optimizer's state: all write at once, rank 0 completes it."""

from collections.abc import Mapping
from typing import Any

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore, Written


class ShardedCheckpoints:
    """Of one worker. within_s: for the parts of its peers, on rank 0."""

    def __init__(self, store: CheckpointStore, rank: int, num_workers: int, *, within_s: float) -> None:
        self._store = store
        self._rank, self._num_workers = rank, num_workers
        self._within_s = within_s

    def save(self, iteration: int, state: Mapping[str, Any]) -> Written | None:
        """Raises Superseded, or OSError if the disk is full or the part of a peer is missing."""
        self._store.parts.write(iteration, self._rank, state["optimizer"])
        if self._rank > 0:
            return None
        parts = self._store.parts.await_all(iteration, self._num_workers, within_s=self._within_s)
        shared = {**state, "optimizer": {"parts": [path.name for path in parts]}}
        file, num_bytes = self._store.save(iteration, shared)
        return Written(file, num_bytes + sum(path.stat().st_size for path in parts))

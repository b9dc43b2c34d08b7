"""States of a ledger's past from which later ones are folded, in little memory. Pure."""

import pickle
from bisect import bisect_right
from dataclasses import dataclass, fields

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState

CHECKPOINT_EVERY = 128  # messages between two states that are kept at first
MAX_CHECKPOINTS = 64  # beyond, every second one is dropped: each may hold another version of every live job
_NAMES = tuple(field.name for field in fields(Job))
_MOST_BYTES = 250  # of a packed job; beyond, the job becomes the version that later ones differ from

PackedJob = tuple[Job, bytes]  # an earlier version that many share, and the fields that differ from it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpoint:
    """state: without the live jobs."""

    state: PoolState
    live_jobs: tuple[PackedJob, ...]


class Checkpoints:
    """Of one ledger, the oldest first; the first is its beginning."""

    def __init__(self) -> None:
        self._every = CHECKPOINT_EVERY
        self._checkpoints = [_Checkpoint(state=PoolState(), live_jobs=())]
        self._newest: dict[str, tuple[Job, PackedJob]] = {}  # of the last checkpoint: the next one shares most of it

    def offer(self, state: PoolState) -> None:
        """Keep the state, if its turn has come."""
        if state.sequence % self._every == 0:
            self._newest = {name: self._packed(job) for name, job in state.live_jobs.items()}
            live_jobs = tuple(packed for _, packed in self._newest.values())
            self._checkpoints.append(
                _Checkpoint(state=fast_replace(state, live_jobs=Map[str, Job]()), live_jobs=live_jobs)
            )
            if len(self._checkpoints) > MAX_CHECKPOINTS:
                self._every *= 2
                del self._checkpoints[1::2]

    def last_sequence(self, sequence: int) -> int:
        """Of the last checkpoint up to this one."""
        return self._before(sequence).state.sequence

    def last_state(self, sequence: int) -> PoolState:
        """That of the last checkpoint up to this sequence."""
        kept = self._before(sequence)
        jobs = map(_unpacked, kept.live_jobs)
        return fast_replace(kept.state, live_jobs=Map[str, Job]((job.job_id, job) for job in jobs))

    def _before(self, sequence: int) -> _Checkpoint:
        index = bisect_right(self._checkpoints, sequence, key=lambda checkpoint: checkpoint.state.sequence)
        return self._checkpoints[max(0, index - 1)]

    def _packed(self, job: Job) -> tuple[Job, PackedJob]:
        known = self._newest.get(job.job_id)
        if known is None:
            return job, (job, b"")
        before, (base, _) = known
        if before is job:
            return known
        names = enumerate(_NAMES)
        changed = {index: value for index, name in names if (value := getattr(job, name)) is not getattr(base, name)}
        packed = pickle.dumps(changed)
        return job, ((base, packed) if len(packed) <= _MOST_BYTES else (job, b""))


def _unpacked(packed: PackedJob) -> Job:
    base, changed = packed
    if not changed:
        return base
    return fast_replace(base, **{_NAMES[index]: value for index, value in pickle.loads(changed).items()})

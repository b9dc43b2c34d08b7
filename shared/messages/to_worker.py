"""What an executor says to a worker: one channel for each, from its first breath to its last. Pure.

End of file is a message too: it tells a worker that its executor is gone, and the worker ends at once.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt
from pydantic import Strict

from shared.messages.detection import DetectionTimes
from shared.messages.job import JobSpec
from shared.messages.limits import (
    DurationS,
    Generation,
    Index,
    Iterations,
    Name,
    NumSamples,
    PositiveDurationS,
    Sequence,
    Token,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Make ready for an `Assignment` to this GPU, which may come much later or not at all. Said to spares."""

    device: Literal["cpu", "cuda"]
    gpu_index: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLog:
    """Output goes to this file from now on. Said before the `Assignment`: what is wrong with that is told there."""

    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Everything a worker needs to know to train. Of one job: no process works for a second one.

    code_path: folder (or zip) that holds the training function, "" if it is importable anyway.
    gpu_index: number of the GPU on this node.
    cpu_share: cores that a CPU slot may use, e.g. 0.2; no limit from 1 on.
    rendezvous: host:port of rank 0, "" if `JoinRendezvous` brings it; rank 0 listens on advertise_host.
    meeting_size: of all who meet where this worker joins others that train: they hand it the state of the job;
        0: all are new, and the state is in the checkpoint.
    checkpoint_iteration: a whole checkpoint of so many steps exists; a start from an older one would lose work.
    micro_batch_size: samples that one forward and backward pass may take; 0: a whole virtual node.
    leased: without a LeaseExtended for `detection.lease_s` the worker ends itself; else it has all the time in the
        world.
    """

    job_id: Token
    generation: Generation
    rank: Index
    world_size: Annotated[int, Strict(), Gt(0)]
    spec: JobSpec
    checkpoint_dir: str
    purpose: Literal["train", "profile"] = "train"
    code_path: str = ""
    device: Literal["cpu", "cuda"] = "cpu"
    gpu_index: Index = 0
    cpu_share: Annotated[float, Strict(), Gt(0)] = 1.0
    advertise_host: str = "127.0.0.1"
    rendezvous: str = ""
    meeting_size: Annotated[int, Strict(), Ge(0)] = 0
    checkpoint_iteration: Iterations = 0
    micro_batch_size: NumSamples = 0
    leased: bool = False
    detection: DetectionTimes = field(default_factory=DetectionTimes)
    checkpoint_every_s: PositiveDurationS = 30.0
    profile_min_s: PositiveDurationS = 0.6
    profile_max_iterations: Annotated[int, Strict(), Ge(3)] = 30
    checkpoint_wait_s: DurationS = 60.0  # NFS shows a folder's new file so much later (acdirmax)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMembership:
    """Train on, prepare another generation in the background, and go over to it at the boundary where all are ready.

    place: at the meeting of those who are there and those who come: the rank in the new generation, or from world_size
        on for those who leave with it.
    micro_batch_size: as `Assignment`'s, from the switch on.
    rendezvous: host:port of place 0, "" if `JoinRendezvous` brings it; place 0 listens as rank 0 of a start does.
    """

    generation: Generation
    place: Index
    world_size: Annotated[int, Strict(), Gt(0)]
    meeting_size: Annotated[int, Strict(), Gt(0)]
    rendezvous: str = ""
    micro_batch_size: NumSamples = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRendezvous:
    """Rank 0 of this generation listens here; for workers that were not told with their assignment or change."""

    generation: Generation
    address: Name  # host:port


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersLost:
    """Some workers are gone, the ledger says: wait for nobody who is of this generation or an older one. `Interrupted`
    is the answer of a worker that is of it itself."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAtBoundary:
    """Write a checkpoint at the next step boundary that all workers agree on, then exit. As SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint:
    """Write a checkpoint at the next step boundary, and train on. For rank 0, which answers with `Checkpointed` or
    `NotCheckpointed` of this request."""

    request: Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExtended:
    """The executor sees the ledger: train on until then, unless there is another one. Instants are of the boot
    clock (services/executor/boot_clock.py): both ends live on one machine."""

    until_s: DurationS


ToWorker = (
    WarmUp
    | WriteLog
    | Assignment
    | ChangeMembership
    | JoinRendezvous
    | PeersLost
    | StopAtBoundary
    | SaveCheckpoint
    | LeaseExtended
)

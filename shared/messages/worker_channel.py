"""What an executor and its worker processes say to each other. Pure; the bytes of it are `worker_frames`'.

Two kinds of stream socket, both private to one machine:

    executor <-> fork server    asks for processes (one request at a time), hears how each ended
    executor <-> worker         one channel for each worker, from its first breath to its last

End of file is a message too: it tells a worker that its executor is gone, and the worker ends at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import Strict

from shared.messages.detection import DetectionTimes
from shared.messages.job import JobSpec
from shared.messages.limits import (
    DurationS,
    FewItems,
    Finite,
    Generation,
    Index,
    Iterations,
    Name,
    NumBytes,
    NumSamples,
    PositiveDurationS,
    Rate,
    Sequence,
    Text,
    Token,
)
from shared.messages.resize_timeline import ResizeTimeline

Port = Annotated[int, Strict(), Gt(0), Le(65_535)]
Pid = Annotated[int, Strict(), Gt(0)]
Metrics = Annotated[Mapping[Name, Finite], FewItems]


class ExitCode(IntEnum):
    """How a worker ended, for the executor to decide what is due. A signal is none of these."""

    DONE = 0  # finished, stopped or profiled, as asked
    FAILED = 70  # the job cannot go on; `Failed` says why
    PEER_LOST = 71  # another worker of the generation is gone: a new generation can go on
    SUPERSEDED = 72  # a newer generation of the job has written a checkpoint
    DEVICE_UNUSABLE = 73  # the node's fault; its log says what is wrong with the GPU
    OUT_OF_MEMORY = 74  # and its script with it; smaller micro-batches may fit: `Interrupted` has said so
    UNREADABLE = 75  # it could not read what its executor said; its log has the reason


# --- executor -> worker ---------------------------------------------------------------------------------


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


# --- worker -> executor ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousListening:
    """Rank 0 of this generation waits on this port of its advertise_host. Never sent by a worker that is alone."""

    generation: Generation
    port: Port


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """All workers of the generation have joined and hold the same state; the first step is `iteration`.

    resize: how it joined others that trained; None: it started with all others from the checkpoint of `iteration`, or
        from nothing.
    """

    iteration: Iterations
    resize: ResizeTimeline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """This worker has gone over to another generation, and has done its first step there. From now on it is this rank
    of it. Whoever leaves says nothing, and ends with `ExitCode.DONE`.

    iteration: the first of the new generation.
    """

    generation: Generation
    rank: Index
    iteration: Iterations
    resize: ResizeTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A peer is gone, this worker is not: it holds the state after `iteration` steps, and waits to be told with whom to
    go on (`ChangeMembership`), or to stop: then it writes a checkpoint of it.

    micro_batch_size: samples that its memory does not hold at once, if this was the reason; 0: a peer is gone.
    """

    iteration: Iterations
    micro_batch_size: NumSamples = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """At most every 0.5 s. iterations_per_s: over recent steps, start-up left out; None: too few yet."""

    iteration: Iterations  # steps done
    iterations_per_s: Rate | None
    metrics: Metrics = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lagged:
    """A worker of the generation is slower than the others, for many steps in a row. From rank 0."""

    rank: Index
    slowdown: Rate  # its time for its own part of a step, by the median of the others'


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Instead of `Progressed` while no step ends: the process lives, its training may not."""

    iteration: Iterations
    seconds_since_progress: DurationS


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed:
    """A whole checkpoint of this many steps is on the disk. From rank 0.

    request: what it answers, 0 if nobody asked; only then its file, and how large that is, are told.
    """

    iteration: Iterations
    request: Sequence = 0
    num_bytes: NumBytes = 0
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCheckpointed:
    """The disk did not take the checkpoint that was asked for. The training goes on."""

    request: Sequence
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """Median speed of a pre-run at this number of workers. From rank 0."""

    iterations_per_s: Rate
    dataset_size: Iterations | None  # samples; None: only the script knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The termination condition is met and the trained model saved. From rank 0."""

    iteration: Iterations
    condition: Literal["max_iterations", "metric"]
    metrics: Metrics = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """This job cannot go on, at any size and on any node. From the rank that saw it."""

    error: Text
    traceback: Text = ""


# --- executor <-> fork server ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkServerReady:
    """The libraries are loaded: a worker now costs milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkWorker:
    """Fork a worker. Its end of the channel comes along as a file descriptor."""

    request: Annotated[int, Strict(), Ge(0)]  # comes back in the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerForked:
    """The answer: a process, leader of its own process group."""

    request: Annotated[int, Strict(), Ge(0)]
    pid: Pid


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRefused:
    """The other answer: no process, e.g. for lack of memory."""

    request: Annotated[int, Strict(), Ge(0)]
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReaped:
    """A worker and its whole process group are gone. Either an exit code or a signal."""

    pid: Pid
    exit_code: int | None
    signal: int | None


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
FromWorker = (
    RendezvousListening
    | Started
    | Switched
    | Interrupted
    | Progressed
    | Lagged
    | Alive
    | Checkpointed
    | NotCheckpointed
    | Profiled
    | Finished
    | Failed
)
ToForkServer = ForkWorker
FromForkServer = ForkServerReady | WorkerForked | ForkRefused | WorkerReaped
ChannelMessage = ToWorker | FromWorker | ToForkServer | FromForkServer

"""What executors and the monitor tell of jobs that train."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from elasticflow.shared.messages.limits import (
    BatchSize,
    FewItems,
    Finite,
    Generation,
    Index,
    Iterations,
    Name,
    NumBytes,
    NumGpus,
    Rate,
    Sequence,
    Text,
    TimeS,
    Token,
)
from elasticflow.shared.messages.resize_timeline import ResizeTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousOpened:
    """Rank 0 listens here for the workers of this generation. From the executor of rank 0."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    address: Name  # host:port


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStarted:
    """All workers of the generation train. From the executor of rank 0.

    iteration: the first; a whole checkpoint of so many steps exists, unless workers went over without a stop.
    resize: how they did, as rank 0 saw it.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    num_gpus: NumGpus
    iteration: Iterations
    resize: ResizeTimeline | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersStopped:
    """No process of this generation is left on this node. From the executor.

    iteration: the newest whole checkpoint that the node knows of; only rank 0's node knows one.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    node_id: Token
    iteration: Iterations | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCrashed:
    """A worker ended unasked: its generation is broken and a new one is due. From the executor."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    node_id: Token
    rank: Index
    explanation: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryExceeded:
    """A worker's memory does not hold a micro-batch of so many samples: a generation with smaller ones is due, and
    nobody is lost. From the executor."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    node_id: Token
    rank: Index
    micro_batch_size: BatchSize
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLagged:
    """A worker takes longer for its part of each step than the others do for theirs, by sample: the GPU is slow. From
    the executor of rank 0.

    slowdown: its time by the median of the others'.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    rank: Index
    slowdown: Rate
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgressed:
    """How far and how fast. From the monitor, every few seconds for each running job."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    iteration: Iterations
    iterations_per_s: Rate | None  # over the last reports, None while unknown
    checkpoint_iteration: Iterations = 0  # where a crash would fall back to
    metrics: Annotated[Mapping[Name, Finite], FewItems] = field(default_factory=dict[str, float])
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """The requested checkpoint is complete on the disk. From the executor of rank 0.

    request: sequence of the `CheckpointRequested`. file: as that node sees it.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    request: Sequence
    iteration: Iterations
    num_bytes: NumBytes
    file: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """The requested checkpoint could not be written; the job trains on. From the executor of rank 0."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    request: Sequence
    explanation: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished:
    """The termination condition is met. From the executor of rank 0."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    iteration: Iterations
    condition: Literal["max_iterations", "metric"]
    metrics: Annotated[Mapping[Name, Finite], FewItems] = field(default_factory=dict[str, float])
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """The training function cannot go on; its traceback is in the job's log. From the executor, or admission
    for a profile that cannot be measured."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    error: Text
    traceback: Text = ""
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputMeasured:
    """Speed of a profile on num_gpus. From the executor (pre-run) or the monitor (while training)."""

    VERSION: ClassVar[int] = 1
    profile_key: Name
    num_gpus: NumGpus
    iterations_per_s: Rate
    dataset_size: Iterations | None = None  # samples, known after a pre-run
    job_id: Token
    generation: Generation
    source: Literal["profile", "training"]
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAtRisk:
    """At its measured speed the job would miss its promise. From the monitor.

    earliest_deadline_s: what an `AmendJob` would be promised at at_s, beside all others that are late; None if none.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    projected_finish_s: TimeS | None  # None: it makes no progress
    deadline_s: TimeS
    earliest_deadline_s: TimeS | None = None
    at_s: TimeS


JobEvent = (
    RendezvousOpened
    | GenerationStarted
    | WorkersStopped
    | WorkerCrashed
    | WorkerLagged
    | MemoryExceeded
    | JobProgressed
    | CheckpointWritten
    | CheckpointFailed
    | JobFinished
    | JobFailed
    | ThroughputMeasured
    | JobAtRisk
)

"""Reports of executors and of the monitor about jobs that train.

node_id: the executor that reports; its subject proves it. None: a service reports, or an executor of an older version.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from elasticflow.shared.messages.events.artifacts import ArtifactsStored
from elasticflow.shared.messages.events.profiles import ProfilingFailed, ThroughputMeasured
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
    node_id: Token | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStarted:
    """All workers of the generation train. From the executor of rank 0.

    iteration: the first; a complete checkpoint of so many steps exists, unless workers switched without a stop.
    resize: the times of that switch, as measured by rank 0.
    lost_checkpoints: which newer checkpoints could not be used, and why: the job repeats what they held. "": none.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    num_gpus: NumGpus
    iteration: Iterations
    resize: ResizeTimeline | None = None
    lost_checkpoints: Text = ""
    at_s: TimeS
    node_id: Token | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersStopped:
    """All processes of this generation on this node have ended. From the executor.

    iteration: of the newest complete checkpoint that the node knows; only the node of rank 0 knows one.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    node_id: Token
    iteration: Iterations | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCrashed:
    """A worker ended without a request: its generation is broken, and a new one is due. From the executor.

    last_lines: of its log.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    node_id: Token
    rank: Index
    explanation: Text
    last_lines: Text = ""
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryExceeded:
    """A micro-batch of so many samples exceeds a worker's memory. A generation with smaller ones is due; no worker is
    lost. From the executor."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    node_id: Token
    rank: Index
    micro_batch_size: BatchSize
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLagged:
    """A worker takes longer for each sample than its peers: its GPU is slow. From the executor of rank 0.

    slowdown: its time, divided by the median of its peers'.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    rank: Index
    slowdown: Rate
    at_s: TimeS
    node_id: Token | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWarned:
    """Something about its code that its user should know; it trains on. From the executor of rank 0, once each."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    warning: Text
    at_s: TimeS
    node_id: Token | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgressed:
    """The progress and speed of a job. From the monitor, every few seconds for each running job."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    iteration: Iterations
    iterations_per_s: Rate | None  # mean of the last reports; None: unknown so far
    checkpoint_iteration: Iterations = 0  # to which a crash falls back
    metrics: Annotated[Mapping[Name, Finite], FewItems] = field(default_factory=dict[str, float])
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """The requested checkpoint is complete on the disk. From the executor of rank 0.

    request: sequence of the `CheckpointRequested`. file: its path on that node.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    request: Sequence
    iteration: Iterations
    num_bytes: NumBytes
    file: Text
    at_s: TimeS
    node_id: Token | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """The requested checkpoint could not be written; the job trains on. From the executor of rank 0."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    request: Sequence
    explanation: Text
    at_s: TimeS
    node_id: Token | None = None


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
    node_id: Token | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """The job cannot continue, on any GPUs. From the executor, the monitor, or as a repeated reply from admission.

    The executor: the training function raised an error, the job crashed too often, or its profiling run timed out.
    The monitor: no iteration ended for `PoolConfig.stall_timeout_s`. Admission repeats the event to the sender of a
    repeated command, and never writes it into the ledger. last_lines: of the failed worker's log. whole_traceback:
    with all frames of the engine; "" if `traceback` has them.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    error: Text
    traceback: Text = ""
    whole_traceback: Text = ""
    last_lines: Text = ""
    # Of an executor: void once this incarnation of the node has left the pool.
    node_id: Token | None = None
    incarnation: Token | None = None
    # Of the monitor: the job's newest progress that it knew; void after more progress.
    progressed_at_s: TimeS | None = None
    iteration: Iterations | None = None  # done when it failed, as far as the sender knows
    at_s: TimeS

    def __str__(self) -> str:
        return f"failed {self.job_id}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAtRisk:
    """At its measured speed the job would miss its deadline. From the monitor.

    earliest_deadline_s: that admission would promise to an `AmendJob` at at_s, together with those of all other late
    jobs; None if there is none.
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
    | JobWarned
    | MemoryExceeded
    | JobProgressed
    | CheckpointWritten
    | CheckpointFailed
    | ArtifactsStored
    | JobFinished
    | JobFailed
    | ProfilingFailed
    | ThroughputMeasured
    | JobAtRisk
)

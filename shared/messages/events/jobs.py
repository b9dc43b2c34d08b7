"""Reports of executors and of the monitor about jobs that train.

node_id: the executor that reports; its subject proves it. None: a service reports, or an executor of an older version.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from pydantic import Strict

from elasticflow.shared.messages.limits import (
    BatchSize,
    Digest,
    FewItems,
    FilePath,
    Finite,
    Generation,
    GpuType,
    Index,
    Iterations,
    MaybeUri,
    Name,
    NumBytes,
    NumGpus,
    NumVirtualNodes,
    PositiveDurationS,
    ProfileKey,
    Rate,
    Sequence,
    Text,
    TimeS,
    Token,
)
from elasticflow.shared.messages.measurements import ResizeTimeline, SingleGpuStepTimes, VirtualNodeCount

# --- artifacts -----------------------------------------------------------------------------------------
# What a job has produced, stored for its user: its model, and the files that it wrote.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file. path: below the artifact folder, or the working folder. digest: SHA-256 of all its bytes."""

    path: FilePath
    num_bytes: NumBytes
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstoredFile:
    """A file that stays on its node. path: on that node, as far as it can be printed."""

    path: Text
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactsStored:
    """These files of the job can be fetched. From the executor of rank 0.

    due: sequence of the message after which they were due: the job's end, or a requested checkpoint.
    model: the state dict of the model, as torch.save writes it; None if the job has none, or if it is unstored.
    uri: of the folder that has them (`remote_folder.py`); "": the object store. iteration: of the model.
    files: of its artifact folder. outputs: what it wrote or changed in its working folder.
    num_unstored: all files that stay on the node; unstored names the first.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    due: Sequence
    node_id: Token
    iteration: Iterations = 0
    model: StoredFile | None = None
    files: Annotated[tuple[StoredFile, ...], FewItems] = ()
    outputs: Annotated[tuple[StoredFile, ...], FewItems] = ()
    unstored: Annotated[tuple[UnstoredFile, ...], FewItems] = ()
    num_unstored: Annotated[int, Strict(), Ge(0)] = 0
    uri: MaybeUri = ""
    at_s: TimeS

    @property
    def num_bytes(self) -> int:
        """The number of bytes of all stored files."""
        return sum(file.num_bytes for file in self.all_files)

    @property
    def all_files(self) -> tuple[StoredFile, ...]:
        model = () if self.model is None else (self.model,)
        return (*model, *self.files, *self.outputs)


# --- What is measured of a job's profile, and that it cannot be measured on a GPU type -----------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingFailed:
    """The job cannot be measured on GPUs of this type, but other types are left. From the executor or the monitor.

    gpu_type: as recorded. On the last type the event is `JobFailed`, which has the same causes.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    gpu_type: GpuType
    error: Text
    node_id: Token | None = None
    incarnation: Token | None = None
    progressed_at_s: TimeS | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputMeasured:
    """The throughput of a profile on num_gpus. From the executor (in a profiling run) or the monitor (in training).

    dataset_size: samples; known after a profiling run.
    single_gpu: of a profiling run on one GPU, in a pool with several GPU types.
    one_virtual_node_s: of one on several GPUs there: the median step with one virtual node on each; None: not measured.
    virtual_nodes: of bitwise jobs of this profile, from its first run on one GPU; None: default, or as the code says.
    """

    VERSION: ClassVar[int] = 1
    profile_key: ProfileKey
    num_gpus: NumGpus
    iterations_per_s: Rate
    dataset_size: Iterations | None = None
    single_gpu: SingleGpuStepTimes | None = None
    one_virtual_node_s: PositiveDurationS | None = None
    virtual_nodes: VirtualNodeCount | None = None
    job_id: Token
    generation: Generation
    source: Literal["profile", "training"]
    at_s: TimeS
    node_id: Token | None = None  # of the executor


# --- jobs ----------------------------------------------------------------------------------------------


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
    num_virtual_nodes: of the job, which a placement may divide unequally; in the fast mode, equal parts of its batch.
        0: unknown, from an older worker.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    rank: Index
    slowdown: Rate
    num_virtual_nodes: NumVirtualNodes = 0
    at_s: TimeS
    node_id: Token | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWarned:
    """Something about its code that its user should know; it trains on. From the executor of rank 0, once each.

    phase: what the code of a worker does in a start that has taken some seconds, such as "in init_model()"; "": the
    job trains, or it is another warning.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    warning: Text
    at_s: TimeS
    node_id: Token | None = None
    phase: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEntered:
    """A user's command begins beside a worker (`eflow exec`). From the executor, before it begins; it changes no state.

    tenant: on whose subject the request came. user: who asked, as the client said; nobody has checked it.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    rank: Index
    node_id: Token
    tenant: Token
    user: Text
    command: Text
    at_s: TimeS


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
    The monitor: its start or a step took longer than it may (`PoolConfig.timeouts_of`). Admission repeats the event to
    the sender of a repeated command, and never writes it into the ledger. last_lines: of the failed worker's log.
    whole_traceback: with all frames of the engine; "" if `traceback` has them.
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
    """No plan meets its deadline at the measured speed less the margin of the pool. From the monitor.

    projected_finish_s: the end of the earliest such plan. At its speed now, which needs no margin, it may end in time.
    earliest_deadline_s: that admission would promise to an `AmendJob` at at_s, together with those of all other late
    jobs; None if there is none.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    projected_finish_s: TimeS | None  # None: it makes no progress, or no plan ends it
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
    | WorkerEntered
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

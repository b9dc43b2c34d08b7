"""Reports of executors and of the monitor about nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Strict

from elasticflow.shared.messages.limits import (
    DurationS,
    FewItems,
    Finite,
    Fraction,
    Generation,
    GpuType,
    Index,
    Iterations,
    MaybeToken,
    Name,
    NumBytes,
    NumGpus,
    NumSockets,
    Rack,
    Rate,
    SecretDigest,
    Text,
    TimeS,
    Token,
)

# Generations of jobs that an executor has begun to start and that do not train there yet: before it does anything for
# one, the record of its node names it. None: unknown, of an older executor or monitor.
KnownStarts = tuple[tuple[Token, Generation], ...]
Starts = KnownStarts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """An executor adds its GPUs, all of one type. Workers of earlier incarnations have ended. From the executor.

    Repeated with the same incarnation, it says that an awaited node is still there (docs/adr/0096).
    """

    VERSION: ClassVar[int] = 1
    node_id: Token
    incarnation: Token
    num_gpus: NumGpus
    device: Literal["cpu", "cuda"]
    at_s: TimeS
    sockets: NumSockets = 1  # over which its GPUs are spread evenly, in order
    rack: Rack = ""
    gpu_type: GpuType = ""  # "": the type of all nodes that name none
    gpu_memory_bytes: NumBytes = 0  # of each GPU; 0: unknown
    # of its workers: by namespaces of their own, by limits alone, or none; "": unknown (docs/adr/0058)
    isolation: Literal["", "none", "limits", "namespaces"] = ""
    until_s: TimeS | None = None  # its announced end: no promise rests on its GPUs beyond it; None: none is known
    # a digest of the secret by which its workers know each other, to compare nodes; "none": it has none; "": unknown
    workers_secret: SecretDigest = ""
    unenforced: Annotated[tuple[Text, ...], FewItems] = ()  # what this machine cannot enforce of the isolation
    # a digest of the machine's start and of the process that started the executor; "": unknown
    started_by: MaybeToken = ""
    data_folder: MaybeToken = ""  # its name: the same on all nodes that share it; "": unknown
    # a worker sees those GPUs only that its job has here when the worker starts (docs/adr/0115)
    separates_gpus: Annotated[bool, Strict()] = False
    replaced_heard_s: TimeS | None = None  # the last heartbeat of the incarnation that it replaces; None: unknown
    replaced_starts: Starts = None  # named in that heartbeat
    replaced_preparations: KnownStarts = ()  # those of them of which no worker ran yet


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node is silent (from the monitor) or was deregistered (from its executor). Its workers have ended."""

    VERSION: ClassVar[int] = 1
    node_id: Token
    incarnation: Token
    reason: Literal["silent", "left"]
    at_s: TimeS
    heard_s: TimeS | None = None  # when this monitor received its last heartbeat; 0: never; None: unknown
    starts: Starts = None  # named in that heartbeat
    preparations: KnownStarts = ()  # those of them of which no worker ran yet


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndNoticed:
    """What announces the end of the machine (a cloud, Slurm, a file) says another time than before. From the executor.

    until_s: the end by the notice; None: it was withdrawn. The earlier of it and the end that the node named, or its
    operator announced, counts (docs/adr/0118).
    """

    VERSION: ClassVar[int] = 1
    node_id: Token
    incarnation: Token
    until_s: TimeS | None
    at_s: TimeS  # when the executor learned it; later than that of its notice before


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFailing:
    """A GPU of this node should compute nothing until it was reset. From the executor; repeated while it lasts.

    reason: the driver's judgement, as the end of a sentence on the GPU. It counts as a slow GPU (docs/adr/0121).
    """

    VERSION: ClassVar[int] = 1
    node_id: Token
    incarnation: Token
    gpu_index: Index
    reason: Text
    at_s: TimeS


NodeEvent = NodeJoined | NodeLost | NodeEndNoticed | GpuFailing


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One worker's newest step. seconds_since_progress: None of an older executor."""

    job_id: Token
    generation: Generation
    rank: Index
    iteration: Iterations
    iterations_per_s: Rate | None
    checkpoint_iteration: Iterations = 0
    seconds_since_progress: DurationS | None = None
    metrics: Annotated[Mapping[Name, Finite], FewItems] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """How a GPU is used, as the driver says; None: unknown. problem: why nothing should be computed on it."""

    gpu_index: Index
    utilization: Fraction | None = None
    memory_used_bytes: NumBytes | None = None
    temperature_c: Finite | None = None
    power_w: Finite | None = None
    throttled_by: Annotated[tuple[Name, ...], FewItems] = ()
    problem: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReported:
    """A heartbeat of an executor, with the last report of each worker. Telemetry, never in the ledger.

    lease_s: if it is acknowledged, workers run for so long after it was sent.
    preparing: jobs whose packages and data this node is getting; their workers start afterwards.
    preparations: those of the starts of which no worker ran yet; they may wait for packages, data or checkpoints.
    """

    VERSION: ClassVar[int] = 1
    node_id: Token
    incarnation: Token
    workers: tuple[WorkerReport, ...] = ()
    at_s: TimeS
    lease_s: DurationS = 0.0
    preparing: tuple[Token, ...] = ()
    starts: Starts = None
    preparations: KnownStarts = ()
    gpus: tuple[GpuReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFenced:
    """Replaces the last heartbeat of a silent node, from the monitor: no heartbeat of this incarnation is stored any
    more, so its workers have ended. Telemetry, never in the ledger."""

    VERSION: ClassVar[int] = 1
    node_id: Token
    incarnation: Token
    at_s: TimeS

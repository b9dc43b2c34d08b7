"""Facts, in the past tense. Each names who writes it; one writer for each fact.

Every event carries what the fold needs, its own time included (`at_s`), so that state is a function of
the ledger alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Len

from shared.messages.cluster import GpuId, PoolConfig, ShareSchedule
from shared.messages.commands import Command
from shared.messages.job import JobSpec
from shared.messages.limits import (
    DurationS,
    FewItems,
    Finite,
    Generation,
    Index,
    Iterations,
    Name,
    NumGpus,
    NumSockets,
    PositiveIterations,
    Rack,
    Rate,
    Sequence,
    Text,
    TimeS,
    Token,
)
from shared.messages.offer import Offer
from shared.messages.witness import Witness

RejectionReason = Literal["invalid", "deadline", "price", "quota", "duplicate", "unrunnable"]

# --- decisions: admission -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequested:
    """The job's scaling curve is unknown: measure it first, then decide. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    spec: JobSpec
    deadline_s: TimeS | None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdmitted:
    """Admission promised the deadline; the schedule that proves it comes along. From admission."""

    VERSION: ClassVar[int] = 2
    job_id: Token
    tenant: Token
    spec: JobSpec
    deadline_s: TimeS | None
    minimum_satisfactory_share: ShareSchedule
    gpu_seconds: DurationS
    least_gpu_seconds: DurationS = 0.0  # that would have kept the deadline on an empty cluster; 0 without one
    # Promised jobs that made room and are still in time, with their new schedules.
    replanned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRejected:
    """Admission cannot promise it. From admission.

    reason: a word for programs; explanation: a sentence with numbers for people.
    earliest_deadline_s: what could have been promised at at_s, None if no deadline would do.
    offers: other wishes of the same job that are promised if they are made at once.
    witness: of a refused deadline, what shows that it was refused rightly.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    spec: JobSpec | None
    reason: RejectionReason
    explanation: Text
    deadline_s: TimeS | None = None
    earliest_deadline_s: TimeS | None = None
    least_gpu_seconds: DurationS = (
        0.0  # to keep the deadline on an empty cluster; 0: no deadline, or impossible
    )
    offers: Annotated[tuple[Offer, ...], FewItems] = ()
    witness: Witness | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled:
    """A wish to cancel was granted. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    reason: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRefused:
    """Nothing to cancel: no such job, another tenant's, or it has ended. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    explanation: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteHeld:
    """A deadline was quoted, and what keeps it is reserved until until_s. From admission.

    schedule: the GPUs that are reserved; none before until_s, so that they are of use until it is known whether the
    quote is taken.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token  # the name that the job is to have
    tenant: Token
    spec: JobSpec
    deadline_s: TimeS
    schedule: ShareSchedule
    gpu_seconds: DurationS
    replanned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    until_s: TimeS
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteRefused:
    """Nothing is held. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    explanation: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAmended:
    """From now on this is what was promised, and the schedule that proves it. From admission.

    gpu_seconds: what the new schedule holds beyond the old one. replanned: as of `JobAdmitted`.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    deadline_s: TimeS | None
    max_iterations: PositiveIterations
    minimum_satisfactory_share: ShareSchedule
    gpu_seconds: DurationS
    replanned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendRefused:
    """The job stays as it is, promise and all. From admission.

    offers: amendments that are granted if they are asked for at once.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    explanation: Text
    offers: Annotated[tuple[Offer, ...], FewItems] = ()
    at_s: TimeS


# --- decisions: allocator and placement -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationDecided:
    """GPUs of each job from now on; jobs that are not named have none. From the allocator.

    valid_until_s: when the planned shares change next, None if they stay.
    planned: schedules of promised jobs, where they are no longer those recorded before. Filling anew is greedy
        and can miss a way that existed a moment ago; the recorded way is then still there to be kept. Left out as a
        whole where one message does not hold them.
    """

    VERSION: ClassVar[int] = 2
    num_gpus_by_job: Mapping[Token, NumGpus]
    valid_until_s: TimeS | None
    planned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileCompleted:
    """The scaling curve of a profile is known well enough to promise on. From the allocator."""

    VERSION: ClassVar[int] = 1
    profile_key: Name
    iterations_per_s: Mapping[NumGpus, Rate]
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    """The GPUs of one generation of a job; rank r runs on gpus[r]. No GPUs: the job is suspended."""

    job_id: Token
    generation: Generation
    gpus: Annotated[tuple[GpuId, ...], Len(max_length=4096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDecided:
    """New generations of the jobs whose GPUs change; all others stay where they are. From placement."""

    VERSION: ClassVar[int] = 1
    placements: tuple[PlacedJob, ...]
    migrated: tuple[Token, ...] = ()  # moved only to defragment
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfigured:
    """What the pool's policies assume from here on. From the operator (`eflow up`, or a service at start)."""

    VERSION: ClassVar[int] = 1
    config: PoolConfig
    at_s: TimeS


# --- facts: nodes (executor and monitor) ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """An executor offers its GPUs; what earlier incarnations ran is gone. From the executor."""

    VERSION: ClassVar[int] = 1
    node_id: Token
    incarnation: Token
    num_gpus: NumGpus
    device: Literal["cpu", "cuda"]
    at_s: TimeS
    sockets: NumSockets = 1  # its GPUs are spread over, in order and evenly
    rack: Rack = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node fell silent (monitor) or said good-bye (executor). Its workers have ended."""

    VERSION: ClassVar[int] = 1
    node_id: Token
    incarnation: Token
    reason: Literal["silent", "left"]
    at_s: TimeS


# --- facts: jobs (executor and monitor) -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousOpened:
    """Rank 0 listens here for the workers of this generation. From the executor of rank 0."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    address: Name  # host:port


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStarted:
    """All workers of the generation train. From the executor of rank 0."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    num_gpus: NumGpus
    iteration: Iterations
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


# --- the decision as one message ------------------------------------------------------------------------

AdmissionEvent = (
    ProfileRequested
    | JobAdmitted
    | JobRejected
    | JobCancelled
    | CancelRefused
    | QuoteHeld
    | QuoteRefused
    | JobAmended
    | AmendRefused
)
PlanEvent = AdmissionEvent | AllocationDecided | ProfileCompleted | PlacementDecided | PoolConfigured
NodeEvent = NodeJoined | NodeLost
JobEvent = (
    RendezvousOpened
    | GenerationStarted
    | WorkersStopped
    | WorkerCrashed
    | JobProgressed
    | JobFinished
    | JobFailed
    | ThroughputMeasured
    | JobAtRisk
)
Event = PlanEvent | NodeEvent | JobEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDecided:
    """One decision, whole: who took it, on what, at what time, for which wishes, and what follows.

    It stands on the pool's plan subject, where compare-and-set admits one decision after another.
    based_on: the ledger sequence up to which the service had folded; now_s: its clock at the decision.
    A replay folds to based_on, decides again at now_s and compares the events.
    """

    VERSION: ClassVar[int] = 1
    service: Token
    based_on: Sequence
    now_s: TimeS
    commands: tuple[Command, ...] = ()
    events: tuple[PlanEvent, ...]


# --- answers, never stored ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineQuoted:
    """Answer to `QuoteDeadline`: the earliest deadline that would be promised at at_s, if any."""

    VERSION: ClassVar[int] = 1
    earliest_deadline_s: TimeS | None
    gpu_seconds: DurationS | None = None
    explanation: Text = ""
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRefused:
    """Your message could not be read or understood; it is kept on the dead-letter subject. From the host."""

    VERSION: ClassVar[int] = 1
    problems: tuple[Text, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReported:
    """Heartbeat of an executor with what its workers last said. Telemetry, never in the ledger."""

    VERSION: ClassVar[int] = 1
    node_id: Token
    incarnation: Token
    workers: tuple["WorkerReport", ...] = ()
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One worker's newest step."""

    job_id: Token
    generation: Generation
    rank: Index
    iteration: Iterations
    iterations_per_s: Rate | None
    checkpoint_iteration: Iterations = 0
    seconds_since_progress: DurationS = 0.0
    metrics: Annotated[Mapping[Name, Finite], FewItems] = field(default_factory=dict[str, float])


Answer = AdmissionEvent | DeadlineQuoted | MessageRefused
Telemetry = NodeReported

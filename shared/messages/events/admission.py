"""Decisions of admission, on submissions and quotes, and on jobs that it has admitted. From admission, all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from pydantic import Strict

from elasticflow.shared.messages.events.loads import LoadDecision
from elasticflow.shared.messages.gpus import NamedGpus, ShareSchedule
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.limits import (
    DurationS,
    FewItems,
    GpuType,
    Iterations,
    MaybeIdentity,
    MaybeToken,
    NumGpus,
    PositiveGpus,
    PositiveIterations,
    Rate,
    Text,
    TimeS,
    Token,
    local_time,
)
from elasticflow.shared.messages.rejection import InfeasibilityCertificate, Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAmended:
    """The new promise of the job, with a schedule that keeps it. From admission.

    gpu_seconds: of the new schedule beyond the old one. replanned: as in `JobAdmitted`.
    gpu_type: to which the job moves, because its own keeps no such promise; None: it stays on its type.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    deadline_s: TimeS | None
    max_iterations: PositiveIterations
    gpu_type: GpuType | None = None  # "": the pool's first type
    minimum_satisfactory_share: ShareSchedule
    gpu_seconds: DurationS
    replanned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendRejected:
    """The job and its promise are unchanged. From admission.

    offers: amendments that admission accepts if they are requested at once.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: MaybeToken = ""  # of the command
    explanation: Text
    offers: Annotated[tuple[Offer, ...], FewItems] = ()
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimitsSet:
    """An operator's GPU limits apply to the job from now on; this schedule keeps its promise. From admission.

    without_gpus: those that it gives up. While the limits last, it gets them only if too few others are free.
    gpu_seconds, replanned: as in `JobAmended`.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    min_gpus: PositiveGpus | None
    max_gpus: PositiveGpus | None
    until_s: TimeS | None
    without_gpus: NamedGpus = ()
    minimum_satisfactory_share: ShareSchedule = ()
    gpu_seconds: DurationS = 0.0
    replanned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimitsRejected:
    """The GPU limits of the job are unchanged. From admission.

    num_gpus: the nearest limit that admission accepts if it is requested at once; None if there is none.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: MaybeToken = ""  # of the command
    explanation: Text
    num_gpus: NumGpus | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimitsCleared:
    """The job has no GPU limits of an operator from now on. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    reason: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequested:
    """Rank 0 of the training generation must write a checkpoint now. From admission; read by executors.

    store: its model and the job's artifact folder must be stored, too.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    store: bool = False
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointUpToDate:
    """The job does not train, so its newest checkpoint holds all its work. From admission.

    iteration: of that checkpoint; 0: the job has none and no work to save.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    iteration: Iterations
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRejected:
    """The job is unknown, or was never admitted and has nothing to save. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: MaybeToken = ""  # of the command
    explanation: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTypeChanged:
    """The job trains on GPUs of another type from now on, because those of its type no longer suffice. Its deadline is
    the same, and this schedule keeps it. From admission.

    explanation: what its type lacks. minimum_satisfactory_share: empty if no deadline is promised. replanned: as in
    `JobAdmitted`.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    gpu_type: GpuType  # "": the pool's first type
    explanation: Text
    minimum_satisfactory_share: ShareSchedule = ()
    replanned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTypeKept:
    """The GPUs of the job's type no longer suffice, and no other type keeps its promise. From admission.

    explanation: what its type lacks, and for each other type why it is no alternative.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    explanation: Text
    at_s: TimeS


JobChange = (
    JobAmended
    | AmendRejected
    | GpuLimitsSet
    | GpuLimitsRejected
    | GpuLimitsCleared
    | CheckpointRequested
    | CheckpointUpToDate
    | CheckpointRejected
    | GpuTypeChanged
    | GpuTypeKept
)


RejectionReason = Literal["invalid", "deadline", "price", "quota", "duplicate", "unrunnable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequested:
    """The decision waits until the job's scaling curve is measured, or until a node joins a pool without GPUs. From
    admission.

    profile_only: the user requested no decision; `JobProfiled` follows.
    measured_from_s: when, by the plan, promises leave or lend GPUs for the profiling run; None: not planned.
    num_runs_before: profiling runs of other profiles that begin earlier.
    estimate: what related measurements say about the time that the job takes. No promise rests on it.
    replaces: the identity of the ended job whose id this one takes; "": of none.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    spec: JobSpec
    deadline_s: TimeS | None
    profile_only: bool = False
    waits_for: Literal["profile", "gpus"] = "profile"
    measured_from_s: TimeS | None = None
    num_runs_before: Annotated[int, Strict(), Ge(0)] = 0
    estimate: Text = ""
    replaces: MaybeIdentity = ""
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfiled:
    """The throughput of a job that the user only wanted profiled. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    iterations_per_s: Mapping[NumGpus, Rate]
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdmitted:
    """Admission promised the deadline, with a schedule that keeps it. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    spec: JobSpec
    deadline_s: TimeS | None
    minimum_satisfactory_share: ShareSchedule
    gpu_seconds: DurationS
    least_gpu_seconds: DurationS = 0.0  # to keep the deadline on an empty cluster; 0 without a deadline
    # New schedules of promised jobs that were replanned for this job: in time, unless the job was late before.
    replanned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    gpu_type: GpuType = ""  # on which it is promised; "": the pool's first type
    pinned: bool = False  # the schedule has no room for a migration: the job keeps its GPUs while their number stays
    replaces: MaybeIdentity = ""  # as in `ProfileRequested`
    at_s: TimeS

    def __str__(self) -> str:
        """A line, as of the others that `submit` returns."""
        promise = "no deadline" if self.deadline_s is None else f"done by {local_time(self.deadline_s)}"
        return f"admitted {self.job_id}: {promise}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRejected:
    """Admission cannot promise the deadline, or the job breaks a rule. From admission.

    reason: for programs; explanation: a sentence with numbers for people.
    earliest_deadline_s: what admission could have promised at at_s; None if no deadline is possible.
    offers: other values that admission promises if the job is resubmitted with them at once.
    infeasibility_certificate: why the deadline cannot be promised.
    replaces: the identity of the ended job whose id it would have taken, and which stays as it is; "": of none.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    spec: JobSpec | None
    reason: RejectionReason
    explanation: Text
    deadline_s: TimeS | None = None
    earliest_deadline_s: TimeS | None = None
    # To keep the deadline on an empty cluster; 0: no deadline, or impossible.
    least_gpu_seconds: DurationS = 0.0
    offers: Annotated[tuple[Offer, ...], FewItems] = ()
    infeasibility_certificate: InfeasibilityCertificate | None = None
    gpu_type: GpuType = ""  # for which the offers and the certificate hold; "": the pool's first type
    least_elsewhere: Mapping[GpuType, DurationS] = field(default_factory=dict[str, float])  # GPU-seconds on other types
    replaces: MaybeIdentity = ""
    at_s: TimeS

    def __str__(self) -> str:
        earliest_s = self.earliest_deadline_s
        offer = "" if earliest_s is None else f"; earliest deadline {local_time(earliest_s)}"
        return f"rejected {self.job_id}: {self.explanation}{offer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled:
    """The job is cancelled. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    reason: Text
    at_s: TimeS

    def __str__(self) -> str:
        return f"cancelled {self.job_id}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRejected:
    """There is nothing to cancel: the job is unknown, another tenant's, or has ended. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: MaybeToken = ""  # of the command
    explanation: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteReserved:
    """Admission quoted a deadline and reserves its GPUs until until_s. From admission.

    schedule: the reserved GPUs. It begins at until_s, so that other jobs can use them while the quote is open.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token  # of the future job
    tenant: Token
    spec: JobSpec
    deadline_s: TimeS
    schedule: ShareSchedule
    gpu_seconds: DurationS
    replanned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    until_s: TimeS
    gpu_type: GpuType = ""  # as its nodes name it; "": the pool has one type
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteRejected:
    """Admission reserves nothing. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: MaybeToken = ""  # of the command
    explanation: Text
    at_s: TimeS


AdmissionEvent = (
    ProfileRequested
    | JobProfiled
    | JobAdmitted
    | JobRejected
    | JobCancelled
    | CancelRejected
    | QuoteReserved
    | QuoteRejected
    | JobChange
    | LoadDecision
)

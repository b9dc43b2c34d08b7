"""What admission decides about wishes: jobs, quotes and amendments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.limits import (
    DurationS,
    FewItems,
    Iterations,
    NumGpus,
    PositiveGpus,
    PositiveIterations,
    Rate,
    Text,
    TimeS,
    Token,
)
from elasticflow.shared.messages.rejection import InfeasibilityCertificate, Offer
from elasticflow.shared.messages.share_schedule import ShareSchedule

RejectionReason = Literal["invalid", "deadline", "price", "quota", "duplicate", "unrunnable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequested:
    """Too little is known to decide: the job's scaling curve has to be measured first, or the pool has no GPUs until a
    node joins. From admission.

    profile_only: there is nothing to decide, `JobProfiled` follows.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    spec: JobSpec
    deadline_s: TimeS | None
    profile_only: bool = False
    waits_for: Literal["profile", "gpus"] = "profile"
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfiled:
    """This is how fast it trains, which was all that was asked for. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    iterations_per_s: Mapping[NumGpus, Rate]
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdmitted:
    """Admission promised the deadline; the schedule that proves it comes along. From admission."""

    VERSION: ClassVar[int] = 1
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
    infeasibility_certificate: of a refused deadline, what shows that it was refused rightly.
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
    infeasibility_certificate: InfeasibilityCertificate | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled:
    """A wish to cancel was granted. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    reason: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRejected:
    """Nothing to cancel: no such job, another tenant's, or it has ended. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    explanation: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteReserved:
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
class QuoteRejected:
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
class AmendRejected:
    """The job stays as it is, promise and all. From admission.

    offers: amendments that are granted if they are asked for at once.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    explanation: Text
    offers: Annotated[tuple[Offer, ...], FewItems] = ()
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimitsSet:
    """An operator's bound stands on the job from now on, and this schedule keeps its promise under it. From admission.

    gpu_seconds, replanned: as of `JobAmended`.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    min_gpus: PositiveGpus | None
    max_gpus: PositiveGpus | None
    until_s: TimeS | None
    minimum_satisfactory_share: ShareSchedule = ()
    gpu_seconds: DurationS = 0.0
    replanned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimitsRejected:
    """What bound stood before stands. From admission.

    num_gpus: the nearest number that is granted if it is asked for at once; None if there is none.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    explanation: Text
    num_gpus: NumGpus | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimitsCleared:
    """No operator's bound stands on the job any more. From admission."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    reason: Text
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequested:
    """Rank 0 of the training generation must write a checkpoint now. From admission; read by executors."""

    VERSION: ClassVar[int] = 1
    job_id: Token
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
    | JobAmended
    | AmendRejected
    | GpuLimitsSet
    | GpuLimitsRejected
    | GpuLimitsCleared
    | CheckpointRequested
    | CheckpointUpToDate
    | CheckpointRejected
)

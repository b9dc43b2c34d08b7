"""Decisions of admission on jobs that it has admitted. From admission, all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from elasticflow.shared.messages.limits import (
    DurationS,
    FewItems,
    GpuType,
    Iterations,
    MaybeToken,
    NumGpus,
    PositiveGpus,
    PositiveIterations,
    Text,
    TimeS,
    Token,
)
from elasticflow.shared.messages.rejection import Offer
from elasticflow.shared.messages.share_schedule import NamedGpus, ShareSchedule


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

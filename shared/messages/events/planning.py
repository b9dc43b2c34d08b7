"""What follows from a plan: shares, places, what plans assume; and the decision as one message."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from annotated_types import Len

from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events.admission import AdmissionEvent
from elasticflow.shared.messages.limits import Generation, Name, NumGpus, Rate, Sequence, TimeS, Token
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.share_schedule import GpuId, ShareSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationDecided:
    """GPUs of each job from now on; jobs that are not named have none. From the allocator.

    valid_until_s: when the planned shares change next, None if they stay.
    planned: schedules of promised jobs, where they are no longer those recorded before. Filling anew is greedy
        and can miss a way that existed a moment ago; the recorded way is then still there to be kept. Left out as a
        whole where one message does not hold them.
    probes: the job whose share is for the first time one of which its curve knows nothing.
    """

    VERSION: ClassVar[int] = 1
    num_gpus_by_job: Mapping[Token, NumGpus]
    valid_until_s: TimeS | None
    planned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    probes: Token | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileCompleted:
    """The scaling curve of a profile is known well enough to promise on. From the allocator.

    measured_to: the most GPUs of the pre-run, where more of them might help; None where not.
    """

    VERSION: ClassVar[int] = 1
    profile_key: Name
    iterations_per_s: Mapping[NumGpus, Rate]
    measured_to: NumGpus | None = None
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


PlanEvent = AdmissionEvent | AllocationDecided | ProfileCompleted | PlacementDecided | PoolConfigured


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

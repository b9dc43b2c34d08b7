"""What the ledger says of one job, folded: where it is in its life, what it was promised, who trains it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shared.messages.cluster import GpuId, ShareSchedule
from shared.messages.events import RejectionReason
from shared.messages.job import JobClass, JobSpec
from shared.messages.offer import Offer
from shared.messages.speed import UNSEEN, SpeedSeen


class Phase(StrEnum):
    """Where a job is in its life. The last five are ends: nothing follows them."""

    PROFILING = "profiling"  # its scaling curve is being measured, the decision is still open
    ADMITTED = "admitted"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    MEASURED = "measured"  # its speed was all that was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingWorkers:
    """Workers of an older generation that have not yet been reported gone from a node."""

    generation: int
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """The generation whose workers have the state of the job, and go over to the current one, or to the next if that is
    broken. Until it has started they train on; if some of them are lost, the others wait.

    gpus: in rank order. lost: those of them whose workers are gone. waiting: nobody is lost, they wait all the same.
    """

    generation: int
    gpus: tuple[GpuId, ...]
    lost: tuple[GpuId, ...] = ()
    waiting: bool = False

    @property
    def trains(self) -> bool:
        """Its workers take steps."""
        return not self.lost and not self.waiting

    @property
    def surviving(self) -> tuple[GpuId, ...]:
        """In rank order."""
        return tuple(gpu for gpu in self.gpus if gpu not in self.lost)


@dataclass(frozen=True, kw_only=True)  # not slotted: see `changed`
class Job:
    """One job, from its first decision to its end."""

    job_id: str
    tenant: str
    spec: JobSpec | None
    phase: Phase
    decided_at_s: float
    decided_sequence: int
    deadline_s: float | None = None
    submitted: JobSpec | None = None  # its spec before it was amended, or bounded
    only_measured: bool = False
    outdated: bool = False  # workers of the current generation know the spec of before
    minimum_satisfactory_share: ShareSchedule = ()  # as promised last: at admission, or amended
    planned_share: ShareSchedule = ()  # the newest schedule that keeps the promise
    explanation: str = ""  # of a rejection, failure or cancellation
    traceback: str = ""
    rejection: RejectionReason | None = None
    earliest_deadline_s: float | None = None  # offered with a rejection, or while it is at risk
    offers: tuple[Offer, ...] = ()  # all of them
    least_gpu_seconds: float = 0.0  # what its deadline asked for at least

    num_gpus: int = 0  # its share in the current allocation
    generation: int = 0
    gpus: tuple[GpuId, ...] = ()  # of the current generation, in rank order
    seat: tuple[GpuId, ...] = ()  # the whole share of survivors that go on with a part: kept for others
    placed_at_s: float = 0.0
    started_at_s: float | None = None  # when the current generation began to train, None before
    broken: bool = False  # the current generation lost a worker or node and cannot go on
    stopping: tuple[StoppingWorkers, ...] = ()  # fence: the current generation starts when this is empty
    predecessor: Predecessor | None = None  # while the job is handed over or broken, see decision record 0018
    rendezvous: str = ""  # host:port of the current generation
    micro_batch_size: int | None = (
        None  # samples that one pass takes; 0: a whole virtual node; None: not placed yet
    )

    iteration: int = 0
    checkpoint_iteration: int = 0
    checkpoint_request: int = 0  # sequence of the newest that has no answer yet; 0: none
    iterations_per_s: float | None = None
    progressed_at_s: float = 0.0
    speed: SpeedSeen = UNSEEN  # kept where promises are made with a confidence
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    restarts: int = 0  # crashes in a row without a step that nothing can take back
    survived_iteration: int = 0  # the newest from which survivors of a crash went on
    at_risk: bool = False
    at_risk_since_s: float | None = None  # when that was found last, also if it is over
    ended_at_s: float | None = None

    @property
    def live(self) -> bool:
        return self.phase in (Phase.PROFILING, Phase.ADMITTED)

    @property
    def training(self) -> bool:
        """All workers of the current generation take steps."""
        return self.started_at_s is not None and not self.broken and bool(self.gpus)

    @property
    def handed_over(self) -> bool:
        """Its workers train on while those of the current generation prepare."""
        return self.predecessor is not None and not self.broken

    @property
    def regroups(self) -> bool:
        """Its workers have lost some of theirs, and go over to the current generation before they take another step."""
        return self.handed_over and self.predecessor is not None and not self.predecessor.trains

    @property
    def training_generation(self) -> int | None:
        """Whose workers take steps; None if nobody's."""
        if self.predecessor is not None and not self.broken:
            return self.predecessor.generation if self.predecessor.trains else None
        return self.generation if self.training else None

    @property
    def promised(self) -> bool:
        """Its deadline is guaranteed."""
        return self.phase is Phase.ADMITTED and self.spec is not None and self.spec.job_class is JobClass.SLO

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the current generation, in rank order; then those that only its predecessor has."""
        gpus = self.gpus if self.predecessor is None else (*self.gpus, *self.predecessor.gpus)
        return nodes_of(gpus)


def nodes_of(gpus: Iterable[GpuId]) -> tuple[str, ...]:
    """In the order of their first GPU."""
    return tuple(dict.fromkeys(gpu.node_id for gpu in gpus))

"""What a baseline wants to know of the past and the ledger's fold does not say, folded from the same ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shared.messages import lifecycle
from shared.messages.events import AllocationDecided, PlanDecided
from shared.messages.job_state import Job
from shared.messages.policy import LedgerMessage
from shared.messages.pool_state import PoolState


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """How one job has fared. attained_gpu_seconds: up to held_since_s."""

    num_gpus: int = 0
    held_since_s: float
    attained_gpu_seconds: float = 0.0
    num_resizes: int = 0

    def until(self, now_s: float) -> float:
        """GPU-seconds attained by then."""
        return self.attained_gpu_seconds + self.num_gpus * max(now_s - self.held_since_s, 0.0)

    def change(self, num_gpus: int, now_s: float) -> "Tenure":
        if num_gpus == self.num_gpus:
            return self
        return Tenure(
            num_gpus=num_gpus,
            held_since_s=now_s,
            attained_gpu_seconds=self.until(now_s),
            num_resizes=self.num_resizes + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The folded ledger, and the tenures of its live jobs."""

    pool: PoolState
    tenures: Mapping[str, Tenure] = field(default_factory=dict[str, Tenure])

    def tenure(self, job: Job) -> Tenure:
        return self.tenures.get(job.job_id) or Tenure(held_since_s=job.decided_at_s)


def evolve(books: Books, message: LedgerMessage, sequence: int) -> Books:
    """The ledger's own fold, and the tenures that follow from each allocation."""
    if sequence <= books.pool.sequence:
        return books
    books = replace(books, pool=lifecycle.evolve(books.pool, message, sequence))
    if isinstance(message, PlanDecided):
        for event in message.events:
            if isinstance(event, AllocationDecided):
                books = _allocated(books, event.at_s)
    return books


def _allocated(books: Books, now_s: float) -> Books:
    live = books.pool.live_jobs.values()
    return replace(books, tenures={job.job_id: books.tenure(job).change(job.num_gpus, now_s) for job in live})

"""How many GPUs of a type are idle, so that they may join jobs of other types. Pure."""
# pyright: strict

from elasticflow.shared.messages.events import AllocationDecided
from elasticflow.shared.messages.share_schedule import segments
from elasticflow.shared.scheduling.jobs.scheduler_view import promisable_gpus
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.pool import PoolState, slow_gpus_at


def num_idle_on_type(part: PoolState, decided: AllocationDecided, now_s: float) -> int:
    """GPUs that no job of this type has, less the reserve for failures, those of reserved quotes, and slow ones.

    None while a job is profiled or begins a scaling probe there: its measurement must not be disturbed.
    part: the pool's part of this type. decided: its allocation.
    """
    is_measured = any(job.phase is Phase.PROFILING for job in part.live_jobs.values())
    if is_measured or decided.probes is not None:
        return 0
    quoted = sum(
        max((segment.num_gpus for segment in segments(quote.schedule)), default=0) for quote in part.quotes_at(now_s)
    )
    given = sum(decided.num_gpus_by_job.values())
    return max(promisable_gpus(part)[0] - given - quoted - len(slow_gpus_at(part, now_s)), 0)

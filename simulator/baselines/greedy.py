"""Growing shares step by step, each time where it brings most: the loop that three baselines share."""

import heapq
from collections.abc import Callable, Sequence

from simulator.baselines.baseline import BaselineJob

Step = Callable[[BaselineJob, int, int], tuple[float, int]]
"""step(job, share, num_free) -> the gain of its best step up from a share, and the level; gain 0: there is none.

With fewer GPUs free a gain may not be greater: so a gain that still holds is the greatest of all.
"""


def grow(jobs_in_order: Sequence[BaselineJob], shares: dict[str, int], num_gpus: int, step: Step) -> None:
    """Hand out what the shares leave of num_gpus to the jobs in them; of equal gains the first job's counts."""
    num_free = num_gpus - sum(shares.values())

    def best(place: int) -> tuple[float, int, int]:
        job = jobs_in_order[place]
        gain, level = step(job, shares[job.job_id], num_free)
        return -gain, place, level

    steps = [best(place) for place, job in enumerate(jobs_in_order) if job.job_id in shares]
    heapq.heapify(steps)
    while steps and num_free:
        promised = heapq.heappop(steps)
        _, place, level = promised
        now = best(place)
        if now == promised and now[0] < 0:
            job_id = jobs_in_order[place].job_id
            num_free -= level - shares[job_id]
            shares[job_id] = level
            now = best(place)
        if now[0] < 0:
            heapq.heappush(steps, now)

"""Static priority: rigid gangs in the order of priority, which keep their GPUs to the end.

Source: VirtualFlow (Or et al., MLSys 2022), section 6.4 (the scheduler it compares with).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.baselines.baseline import AdmitsAll, BaselineJob, Shares, gangs, running_first
from simulator.baselines.weighted_fair_sharing import by_priority


@dataclass(frozen=True, slots=True)
class StaticPriority(AdmitsAll):
    """A job that does not fit waits, and smaller ones behind it may start."""

    name: str = "static-priority"

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        return Shares(num_gpus_by_job=gangs(running_first(sorted(jobs, key=by_priority)), num_gpus))

"""Time-slicing: rigid gangs take turns on the GPUs, whoever waits longest goes first. Deadlines are not looked at.

Source: Gandiva (Xiao et al., OSDI 2018), section 4; as in ElasticFlow, section 6.1, without its packing of several
jobs on one GPU, which no throughput table here describes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.baselines.baseline import AdmitsAll, BaselineJob, Shares, leased_gangs


@dataclass(frozen=True, slots=True)
class Gandiva(AdmitsAll):
    """slice_s: a minute in the paper, where a switch costs less than a second; longer here, where it costs several."""

    name: str = "gandiva"
    slice_s: float = 300.0

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        return leased_gangs(sorted(jobs, key=_longest_waiting_first), num_gpus, now_s, self.slice_s)


def _longest_waiting_first(job: BaselineJob) -> tuple[bool, float, str]:
    """Round robin: who waits by how long, then who had its turn, the one of the longest turn last."""
    turn_s = job.held_since_s
    return job.current_num_gpus > 0, -turn_s if job.current_num_gpus else turn_s, job.job_id

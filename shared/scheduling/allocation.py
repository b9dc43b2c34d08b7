"""Who gets how many GPUs now: every promise its share, then what is left where it brings most.

What was promised is decided by `admission_plan`, which GPUs they are by `buddy`.
Source: ElasticFlow, Algorithm 2, in continuous time: a step must also pay for the resize that it takes.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.free_profile import FreeProfile, Schedule
from shared.scheduling.progressive_filling import (
    SchedulableJob,
    fill,
    finish_s,
    gpu_seconds,
    share_at,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """GPUs of each job until `valid_until_s`, when the next planned change is due.

    schedules: of the promised jobs, with their extra GPUs. Handed to the next `AdmissionPlan.build` as `kept`,
    they are the proof that every promise can still be kept.
    """

    num_gpus_by_job: Mapping[str, int]
    valid_until_s: float
    schedules: Mapping[str, Schedule]


def allocate(
    plan: AdmissionPlan,
    promised_jobs: Sequence[SchedulableJob],
    opportunistic_jobs: Sequence[SchedulableJob],
    num_gpus: int,
    now_s: float,
    hysteresis_s: float = 1.0,
) -> Allocation:
    """Shares for now: the plan's, one level for each opportunistic job in order, then by marginal return.

    hysteresis_s: a resize beyond the plan must end the job at least this much earlier.
    No promise is touched: a schedule is only ever exchanged for one that ends no later and fits around all the
    others, so the schedules stay jointly possible and every one on time. GPUs that opportunistic jobs use are
    those that no promise holds, for as long as none does.
    """
    assert (plan.num_gpus, plan.now_s) == (num_gpus, now_s), "the plan was made for another moment"
    assert plan.schedules.keys() == {job.job_id for job in promised_jobs}, "the plan promises other jobs"
    filling = _Filling(plan, hysteresis_s)
    for job in opportunistic_jobs:
        filling.start(job)
    filling.spend([*promised_jobs, *opportunistic_jobs])
    jobs = sorted(job.job_id for job in (*promised_jobs, *opportunistic_jobs))
    ends_s = [segment.end_s for schedule in filling.schedules.values() for segment in schedule[:1]]
    starts_s = [schedule[0].start_s for schedule in filling.schedules.values() if schedule]
    return Allocation(
        num_gpus_by_job={job_id: share_at(filling.schedules.get(job_id, ()), now_s) for job_id in jobs},
        valid_until_s=min((at_s for at_s in (*starts_s, *ends_s) if at_s > now_s), default=math.inf),
        schedules={job_id: filling.schedules[job_id] for job_id in plan.schedules},
    )


class _Filling:
    """The schedules while GPUs are being handed out; always jointly possible."""

    def __init__(self, plan: AdmissionPlan, hysteresis_s: float) -> None:
        self.schedules: dict[str, Schedule] = dict(plan.schedules)
        self._free = plan.free
        self._now_s = plan.now_s
        self._hysteresis_s = hysteresis_s

    def start(self, job: SchedulableJob) -> None:
        """Give a job without a promise its smallest level, if that is free now for long enough to be of use."""
        schedule = fill(job, self._free, job.curve.levels[0], math.inf)
        if schedule is not None and share_at(schedule, self._now_s):
            self.schedules[job.job_id] = schedule
            self._free = self._free.reserve(schedule)

    def spend(self, jobs: Sequence[SchedulableJob]) -> None:
        """Hand out the GPUs left now, one step at a time, each to the job with the greatest marginal return."""
        if not self._free.num_gpus_now:
            return
        steps = [step for job in jobs if (step := self._step(job)) is not None]
        heapq.heapify(steps)
        by_id = {job.job_id: job for job in jobs}
        while steps and self._free.num_gpus_now:
            promised_gain, job_id, _, _ = heapq.heappop(steps)
            step = self._step(by_id[job_id])
            if step is None:
                continue
            if step[0] == promised_gain:  # not outdated by a step taken since
                self.schedules[job_id], self._free = step[2:]
                step = self._step(by_id[job_id])
            if step is not None:
                heapq.heappush(steps, step)

    def _step(self, job: SchedulableJob) -> tuple[float, str, Schedule, FreeProfile] | None:
        """The next step up that pays: minus its return (GPU-seconds saved for each GPU added), job, outcome."""
        old = self.schedules.get(job.job_id)
        if not old:
            return None
        share = share_at(old, self._now_s)
        room = self._free.release(old)
        levels = [level for level in job.curve.levels if share < level <= room.num_gpus_now]
        if job.current_num_gpus in levels:  # staying as it is comes before any resize
            levels = [job.current_num_gpus, *levels]
        cap = max(segment.num_gpus for segment in old)
        for level in levels:
            moves = level != job.current_num_gpus
            new = fill(job, room, max(level, cap), finish_s(old) - self._hysteresis_s * moves)
            added = share_at(new, self._now_s) - share if new else 0
            if new and added > 0:
                gain = (gpu_seconds(old) - gpu_seconds(new)) / added
                return -gain, job.job_id, new, room.reserve(new)
        return None

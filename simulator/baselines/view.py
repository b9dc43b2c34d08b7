"""The pool as a baseline sees it at one instant."""

from collections.abc import Mapping
from dataclasses import replace

from shared.messages.fold_curves import with_range
from shared.messages.job import JobClass, JobSpec
from shared.messages.job_state import Job, Phase
from shared.messages.pool_state import spec_of
from shared.scheduling.outlook import iteration_at, known_curve, resize_cost
from shared.scheduling.scaling_curve import ScalingCurve
from simulator.baselines.baseline import BaselineJob
from simulator.baselines.books import Books

WEIGHTS: Mapping[JobClass, float] = {
    JobClass.SLO: 10.0,
    JobClass.SOFT: 5.0,
    JobClass.BEST_EFFORT: 1.0,
    JobClass.PADDING: 0.1,
}


class View:
    """Of one decision. requested_num_gpus: by job id; where it is 0 or missing nobody asked."""

    def __init__(self, books: Books, requested_num_gpus: Mapping[str, int], now_s: float) -> None:
        self._books, self._requested_num_gpus, self._now_s = books, requested_num_gpus, now_s
        self._cost = resize_cost(books.pool)
        self._curves: dict[str, ScalingCurve | None] = {}  # by profile
        self.num_gpus = books.pool.num_gpus

    def jobs(self) -> list[BaselineJob]:
        """The admitted jobs whose speed is known, by id."""
        live_jobs = self._books.pool.live_jobs
        admitted = (live_jobs[job_id] for job_id in sorted(live_jobs))
        seen = (self.job(job) for job in admitted if job.phase is Phase.ADMITTED)
        return [job for job in seen if job is not None]

    def job(self, job: Job) -> BaselineJob | None:
        """One job, also one that asks to come in; None if its speed here is not known."""
        spec, tenure, config = spec_of(job), self._books.tenure(job), self._books.pool.config
        curve = self._curve(spec)
        if curve is None:
            return None
        done = iteration_at(job, curve, self._now_s, config.progress_timeout_s)
        seen = BaselineJob(
            job_id=job.job_id,
            submitted_at_s=job.decided_at_s,
            deadline_s=None if job.deadline_s is None else job.deadline_s - config.deadline_slack_s,
            job_class=spec.job_class,
            curve=curve,
            remaining_iterations=max(spec.max_iterations - done, 0.0),
            num_iterations=float(spec.max_iterations),
            requested_num_gpus=self._requested_num_gpus.get(job.job_id, 0),
            attained_gpu_seconds=tenure.until(self._now_s),
            current_num_gpus=tenure.num_gpus,
            held_since_s=tenure.held_since_s,
            num_resizes=tenure.num_resizes,
            weight=WEIGHTS[spec.job_class],
            resize_cost=self._cost,
        )
        return seen if seen.requested_num_gpus else replace(seen, requested_num_gpus=_fewest_in_time(seen))

    def _curve(self, spec: JobSpec) -> ScalingCurve | None:
        profile_key = spec.profile_key
        if profile_key not in self._curves:
            self._curves[profile_key] = known_curve(with_range(self._books.pool, spec), spec)
        return self._curves[profile_key]


def _fewest_in_time(job: BaselineJob) -> int:
    """What a user who knows the curve would ask for."""
    for level in job.curve.levels:
        needed_s = job.resize_cost.seconds(level) + job.num_iterations / job.curve.throughput(level)
        if job.deadline_s is not None and job.submitted_at_s + needed_s <= job.deadline_s:
            return level
    return job.curve.levels[0]

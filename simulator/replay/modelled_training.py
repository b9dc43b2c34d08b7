"""How a job trains in the counterfactual: when it starts on its GPUs, and how fast it is there. Pure.

A job with GPUs of other types has the step that the profiles predict for its split; its share is on its curve.
"""

from dataclasses import dataclass

from elasticflow.shared.scheduling.heterogeneous.mixed_steps import placed_step_s
from elasticflow.shared.scheduling.jobs.scheduler_view import iteration_at, known_curve, resize_cost
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, spec_of
from elasticflow.simulator.timing.training_time import Progress, TrainingTime, true_rate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelledTraining:
    """A job on the GPUs of one generation. before: it trains there until the switch."""

    job_id: str
    generation: int
    progress: Progress
    before: "ModelledTraining | None" = None

    def at(self, now_s: float) -> "ModelledTraining":
        """The generation that trains at this instant."""
        return self if self.before is None or now_s >= self.progress.starts_s else self.before


def modelled_training(
    state: PoolState, job: Job, now_s: float, fitted: TrainingTime | None, before: ModelledTraining | None
) -> ModelledTraining:
    """The job starts on its GPUs, or switches to them from those of `before`.

    Survivors of a loss continue at once, at the rate of the next smaller number of GPUs that was measured.
    fitted: to the record; None if it has no start.
    """
    stops_s, starts_s, iteration = now_s, now_s, float(job.iteration)
    if not job.training and not job.reserved_gpus:
        time, num_gpus = fitted or TrainingTime.of_cost(resize_cost(state)), len(job.gpus)
        if before is None:
            starts_s = max(job.placed_at_s + time.start_s(num_gpus, is_first=not job.iteration), now_s)
        else:
            previous = job.previous_generation
            switch = time.switch(joins=previous is None or not set(job.gpus) <= set(previous.gpus))
            stops_s = max(job.placed_at_s + switch.prepare.seconds(num_gpus), now_s)
            starts_s = stops_s + switch.stop.seconds(num_gpus)
    elif job.training and (counted_on := known_curve(state, spec_of(job))) is not None:
        iteration = iteration_at(job, counted_on, now_s, state.config.progress_timeout_s)
    progress = Progress(
        starts_s=starts_s,
        iteration=iteration if before is None else before.progress.iteration_at(stops_s),
        iterations_per_s=placed_rate(state, job),
    )
    return ModelledTraining(job_id=job.job_id, generation=job.generation, progress=progress, before=before)


def placed_rate(state: PoolState, job: Job) -> float:
    """Iterations per second that the profiles predict on its present GPUs; 0 if they know none."""
    mixed_step_s = placed_step_s(state, job)
    if mixed_step_s is not None:
        return 1.0 / mixed_step_s
    curve = state.curves.get(spec_of(job).profile_key)
    return true_rate(curve.iterations_per_s, len(job.own_gpus)) if curve is not None and job.own_gpus else 0.0

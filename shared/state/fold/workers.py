"""The fold of what executors and the monitor report of a job's workers. Part of `ledger_fold`."""

from dataclasses import replace

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import Event
from elasticflow.shared.state.fold.jobs import (
    checkpointed,
    is_intact,
    scheduling_event,
    with_artifacts_due,
    with_job,
    with_lost_workers,
    with_waiting_workers,
    workers_on,
)
from elasticflow.shared.state.gpu_types import speed_at_place
from elasticflow.shared.state.job import CrashedStart, Job, StoppingWorkers, nodes_of
from elasticflow.shared.state.pool import PoolState, SlowGpu, slow_gpu, spec_of

_MOST_WARNINGS = 8  # of one job; more say nothing new
_MOST_PHASES = 16  # of one start

MAX_START_COST_S = 120.0
FASTER_START_WEIGHT = 0.2


def with_start_cost(state: PoolState, job: Job, event: events.GenerationStarted) -> PoolState:
    """Learn the cost of a start: of the pool or, if the job declares how long a start may take, of its profile. So a
    model that loads for minutes makes no start of others dearer (decision records 0009 and 0119)."""
    if not is_intact(job, event.generation) or job.started_at_s is not None:
        return state
    lasted_s, spec = max(event.at_s - job.placed_at_s, 0.0), spec_of(job)
    if not spec.start_timeout_s:
        known_s = state.start_cost_s
        return fast_replace(state, start_cost_s=_start_cost_s(known_s, min(lasted_s, MAX_START_COST_S), job))
    lasted_s = min(lasted_s, state.config.timeouts_of(spec).longest_start_s)
    known_s = state.start_costs.get(spec.measured_key)
    if known_s is None and job.previous_generation is not None:
        return state
    cost_s = lasted_s if known_s is None else _start_cost_s(known_s, lasted_s, job)
    if cost_s == known_s:
        return state
    return fast_replace(state, start_costs=state.start_costs.set(spec.measured_key, cost_s))


def _start_cost_s(known_s: float, lasted_s: float, job: Job) -> float:
    """Raise the estimate at once, lower it gradually.

    A switch without a stop may only raise it: it says nothing about how fast a start from a checkpoint is.
    """
    if lasted_s >= known_s:
        return lasted_s
    return known_s if job.previous_generation is not None else known_s + FASTER_START_WEIGHT * (lasted_s - known_s)


def generation_started(state: PoolState, job: Job, event: events.GenerationStarted) -> Job:
    """All workers of the generation train. Workers of the previous generation on other GPUs are stopping."""
    if not is_intact(job, event.generation) or job.started_at_s is not None:
        return job
    previous, stopping = job.previous_generation, job.stopping
    if previous is not None:
        left = (gpu for gpu in previous.surviving if gpu not in job.gpus)
        stopping = (*stopping, *workers_on(state, previous.generation, left))
        if previous.lost and event.iteration > job.recovered_iteration:
            job = fast_replace(job, recovered_iteration=event.iteration, restarts=0)
    if event.lost_checkpoints:
        job = fast_replace(job, checkpoint_iteration=event.iteration)
    elif event.resize is None:
        job = checkpointed(job, event.iteration)
    return fast_replace(
        job,
        started_at_s=event.at_s,
        start_phases=(),
        trained_on=tuple(dict.fromkeys((*job.trained_on, *nodes_of(job.gpus)))),
        nodes_lost_at_start=(),
        nodes_lost_in_preparation=(),
        settled_generation=event.generation,
        unwitnessed_starts=(),
        ended_starts=(),
        crashed_start=None,
        iteration=event.iteration,
        iterations_per_s=None,
        progressed_at_s=event.at_s,
        previous_generation=None,
        stopping=stopping,
    )


def with_speed_ratio(state: PoolState, job: Job, event: events.JobProgressed, sequence: int) -> PoolState:
    """Compare the job's speed with its curve, which is that of even divisions, if the pool promises with a confidence.

    GPUs that are connected worse or better have curves of their own: without one, the speed says nothing.
    The speed of the first steps does not count: one report of them made a job too slow for any plan.
    Only report number 1, 2, 4, 8, ... is a scheduling event: later ones change the estimate less.
    """
    curve = state.curves.get(spec_of(job).profile_key)
    if state.config.confidence is None or curve is None or not curve.complete or not event.iterations_per_s:
        return state
    if not job.trains_as_profiled or not job.has_settled(event.at_s):
        return state
    if not (expected := speed_at_place(state, job, curve)):
        return state
    speed = job.speed.with_ratio(event.iterations_per_s / expected)
    state = with_job(state, fast_replace(job, speed=speed))
    return scheduling_event(state, sequence) if speed.count.bit_count() == 1 else state


def progressed(job: Job, event: events.JobProgressed) -> Job:
    """Order the reports of a generation by iteration first: the monitor's clock differs from the executor's."""
    if event.generation != job.training_generation:
        return job
    if (event.iteration, event.at_s) <= (job.iteration, job.progressed_at_s):
        return job
    return fast_replace(
        checkpointed(job, event.checkpoint_iteration),
        iteration=event.iteration,
        iterations_per_s=event.iterations_per_s,
        metrics={**job.metrics, **event.metrics},
        progressed_at_s=event.at_s,
    )


def checkpoint_completed(job: Job, event: events.CheckpointWritten | events.CheckpointFailed, sequence: int) -> Job:
    """The result of the newest request ends it; that of an older one changes nothing."""
    if event.request != job.checkpoint_request:
        return job
    stores = job.stores_checkpoint
    job = fast_replace(job, checkpoint_request=0, stores_checkpoint=False)
    if isinstance(event, events.CheckpointFailed):
        return job
    job = checkpointed(job, event.iteration)
    return with_artifacts_due(job, event.node_id or "", sequence) if stores else job


def workers_stopped(job: Job, event: events.WorkersStopped) -> Job:
    left = _still_stopping(job, event)
    if len(left) == len(job.stopping):
        return job
    job = fast_replace(job, stopping=left)
    if event.iteration is None or event.generation <= job.void_generation:
        return job
    job = checkpointed(job, event.iteration)
    if job.iteration == job.checkpoint_iteration or job.training_generation is not None:
        return job
    return fast_replace(job, iteration=job.checkpoint_iteration)


def _still_stopping(job: Job, stopped: events.WorkersStopped) -> tuple[StoppingWorkers, ...]:
    return tuple(s for s in job.stopping if s.node_id != stopped.node_id or s.generation != stopped.generation)


def worker_crashed(state: PoolState, job: Job, event: events.WorkerCrashed, sequence: int) -> PoolState:
    """A crash breaks the current generation, also a crash in the previous generation, which should switch to it."""
    previous = job.previous_generation
    in_previous = previous is not None and event.generation == previous.generation
    gpus = previous.gpus if previous is not None and in_previous else job.gpus
    if not is_intact(job, job.generation if in_previous else event.generation):
        return state
    lost = frozenset(gpus[event.rank : event.rank + 1])
    if previous is not None and in_previous and lost <= set(previous.lost):
        return state  # a repeated report: the current generation was placed without this worker
    if job.started_at_s is None and previous is None:
        job = fast_replace(job, crashed_start=_crashed_start(job, event))
    return scheduling_event(with_job(state, with_lost_workers(state, job, crashes=1, lost=lost)), sequence)


def _crashed_start(job: Job, event: events.WorkerCrashed) -> CrashedStart:
    nodes = nodes_of(job.gpus)
    return CrashedStart(
        generation=event.generation,
        reporter=event.node_id,
        nodes=nodes,
        placed_at_s=job.placed_at_s,
        crashed_at_s=event.at_s,
    )


def memory_exceeded(state: PoolState, job: Job, event: events.MemoryExceeded, sequence: int) -> PoolState:
    """Halve the micro-batches from the next generation on, also for later jobs of the same profile."""
    previous = job.previous_generation
    is_current = event.generation == job.generation or (
        previous is not None and event.generation == previous.generation
    )
    smaller = halved(event.micro_batch_size)
    is_placed = job.micro_batch_size is not None
    if not is_placed or not is_current or has_micro_batches_of(job, smaller):
        return state
    key = spec_of(job).measured_key
    known = state.micro_batch_sizes.get(key, smaller)
    state = fast_replace(state, micro_batch_sizes=state.micro_batch_sizes.set(key, min(smaller, known)))
    job = fast_replace(job, micro_batch_size=smaller)
    if not job.broken:
        job = with_waiting_workers(state, job)
    return scheduling_event(with_job(state, job), sequence)


def has_micro_batches_of(job: Job, micro_batch_size: int) -> bool:
    """Whether its micro-batches have at most this size."""
    return 0 < (job.micro_batch_size or 0) <= micro_batch_size


def halved(micro_batch_size: int) -> int:
    """The next smaller size, rounded up."""
    return (micro_batch_size + 1) // 2


def worker_lagged(state: PoolState, job: Job, event: events.WorkerLagged) -> PoolState:
    """The worker's GPU counts as slow for `PoolConfig.slow_gpu_s`."""
    if event.generation != job.generation or not is_new_slow_gpu(state, job, event.rank, event.at_s):
        return state
    gpu = job.gpus[event.rank]
    slow = SlowGpu(
        gpu_index=gpu.gpu_index,
        slowdown=event.slowdown,
        job_id=job.job_id,
        generation=job.generation,
        since_s=event.at_s,
        num_virtual_nodes=event.num_virtual_nodes,
    )
    node = state.nodes[gpu.node_id]
    others = (other for other in node.slow_gpus if other.gpu_index != gpu.gpu_index)
    node = replace(node, slow_gpus=(*others, slow))
    return fast_replace(state, nodes=state.nodes.set(node.node_id, node))


def is_new_warning(job: Job, warning: str) -> bool:
    return warning not in job.warnings and len(job.warnings) < _MOST_WARNINGS


def job_warned(job: Job, warning: str) -> Job:
    return fast_replace(job, warnings=(*job.warnings, warning)) if is_new_warning(job, warning) else job


def is_new_phase(job: Job, phase: str) -> bool:
    """Whether a report on this start adds anything."""
    return job.started_at_s is None and phase not in job.start_phases and len(job.start_phases) < _MOST_PHASES


def start_phase_reported(job: Job, event: events.JobWarned) -> Job:
    """What the code of a worker does in the start of the current generation."""
    if not is_intact(job, event.generation) or not is_new_phase(job, event.phase):
        return job
    return fast_replace(job, start_phases=(*job.start_phases, event.phase))


def is_new_slow_gpu(state: PoolState, job: Job, rank: int, at_s: float) -> bool:
    """Whether a report on this rank of the current generation adds anything: its GPU does not yet count as slow,
    or will soon no longer do so.

    A GPU that the generation relieves is not reported anew. It takes longer for each sample because it has few, also
    once it is healthy, so that it would never take part as before.
    """
    if not is_intact(job, job.generation) or rank >= len(job.gpus):
        return False
    known = slow_gpu(state, job.gpus[rank])
    if known is None:
        return True
    if known.job_id == job.job_id and job.predicted_speedup and job.virtual_nodes_by_rank:
        return False
    same = (known.job_id, known.generation) == (job.job_id, job.generation)
    return at_s - known.since_s > (state.config.slow_gpu_s / 2 if same else 0.0)


def gpu_limits_yield(state: PoolState, event: events.JobAtRisk) -> PoolState:
    """A promise at risk takes precedence over the GPU limits of promised jobs: all of them expire now."""
    all_limits = state.gpu_limits
    for job_id, limits in state.gpu_limits.items():
        job = state.live_jobs.get(job_id)
        if job is not None and job.promised and not limits.yields_to:
            all_limits = all_limits.set(job_id, replace(limits, until_s=event.at_s, yields_to=event.job_id))
    return fast_replace(state, gpu_limits=all_limits)


def workers_gone_after_the_end(state: PoolState, event: Event) -> PoolState:
    job = state.ended_jobs.get(event.job_id) if isinstance(event, events.WorkersStopped) else None
    if job is None or not isinstance(event, events.WorkersStopped):
        return state
    left, saved = _still_stopping(job, event), job.checkpoint_iteration
    was_admitted = job.admitted_at_s is not None  # a profiling run has no checkpoint
    if was_admitted and len(left) < len(job.stopping) and event.generation > job.void_generation:
        saved = max(saved, event.iteration or 0)
    job = fast_replace(job, stopping=left, checkpoint_iteration=saved)
    return fast_replace(state, ended_jobs=state.ended_jobs.set(job.job_id, job))

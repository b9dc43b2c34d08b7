"""The fold of what executors and the monitor tell of a job's workers. Part of `lifecycle`."""

from dataclasses import replace

from shared.messages import events
from shared.messages.changed import changed
from shared.messages.events import Event
from shared.messages.fold_jobs import (
    broken,
    checkpointed,
    interrupted,
    scheduling_event,
    whole,
    with_job,
    workers_on,
)
from shared.messages.job_state import Job, StoppingWorkers
from shared.messages.node_state import SlowGpu
from shared.messages.pool_state import PoolState, slow_gpu, spec_of

MAX_START_COST_S = 120.0
FASTER_START_WEIGHT = 0.2


def start_seen(state: PoolState, job: Job, event: events.GenerationStarted) -> PoolState:
    """Learn what a start costs here: a slower one at once, a faster one by and by.

    How soon workers went over says nothing of those that have to stop first; only how late.
    """
    if not whole(job, event.generation) or job.started_at_s is not None:
        return state
    cost_s = min(max(event.at_s - job.placed_at_s, 0.0), MAX_START_COST_S)
    if cost_s < state.start_cost_s:
        if job.predecessor is not None:
            return state
        cost_s = state.start_cost_s + FASTER_START_WEIGHT * (cost_s - state.start_cost_s)
    return changed(state, start_cost_s=cost_s)


def generation_started(state: PoolState, job: Job, event: events.GenerationStarted) -> Job:
    """All train in it. What is left of its predecessor are the workers on the GPUs that it does not have."""
    if not whole(job, event.generation) or job.started_at_s is not None:
        return job
    before, stopping = job.predecessor, job.stopping
    if before is not None:
        left = (gpu for gpu in before.surviving if gpu not in job.gpus)
        stopping = (*stopping, *workers_on(state, before.generation, left))
        if before.lost and event.iteration > job.survived_iteration:
            job = changed(job, survived_iteration=event.iteration, restarts=0)
    if event.resize is None:
        job = checkpointed(job, event.iteration)
    return changed(
        job,
        started_at_s=event.at_s,
        iteration=event.iteration,
        iterations_per_s=None,
        progressed_at_s=event.at_s,
        predecessor=None,
        stopping=stopping,
    )


def speed_seen(state: PoolState, job: Job, event: events.JobProgressed, sequence: int) -> PoolState:
    """The job's speed against its curve, where a confidence asks for it; news of it become rare as they say less."""
    curve = state.curves.get(spec_of(job).profile_key)
    expected = curve.iterations_per_s.get(len(job.gpus)) if curve is not None and curve.complete else None
    if state.config.confidence is None or not expected or not event.iterations_per_s or not job.training:
        return state
    speed = job.speed.and_ratio(event.iterations_per_s / expected)
    state = with_job(state, changed(job, speed=speed))
    return scheduling_event(state, sequence) if speed.count.bit_count() == 1 else state


def progressed(job: Job, event: events.JobProgressed) -> Job:
    """Reports of a generation are ordered by iteration first: their writer's clock is not that of its start."""
    if event.generation != job.training_generation:
        return job
    if (event.iteration, event.at_s) <= (job.iteration, job.progressed_at_s):
        return job
    return changed(
        checkpointed(job, event.checkpoint_iteration),
        iteration=event.iteration,
        iterations_per_s=event.iterations_per_s,
        metrics={**job.metrics, **event.metrics},
        progressed_at_s=event.at_s,
    )


def checkpoint_answered(job: Job, event: events.CheckpointWritten | events.CheckpointFailed) -> Job:
    """Of a request that is not the newest there is nothing to say."""
    if event.request != job.checkpoint_request:
        return job
    job = changed(job, checkpoint_request=0)
    return checkpointed(job, event.iteration) if isinstance(event, events.CheckpointWritten) else job


def workers_stopped(job: Job, event: events.WorkersStopped) -> Job:
    gone = StoppingWorkers(generation=event.generation, node_id=event.node_id)
    if gone not in job.stopping:
        return job
    job = changed(job, stopping=tuple(s for s in job.stopping if s != gone))
    if event.iteration is None:
        return job
    job = checkpointed(job, event.iteration)
    return job if job.training_generation is not None else changed(job, iteration=job.checkpoint_iteration)


def worker_crashed(state: PoolState, job: Job, event: events.WorkerCrashed, sequence: int) -> PoolState:
    """It breaks the current generation, also from the predecessor, whose workers were to go over to it."""
    before = job.predecessor
    incumbent = before is not None and event.generation == before.generation
    gpus = before.gpus if before is not None and incumbent else job.gpus
    if not whole(job, job.generation if incumbent else event.generation):
        return state
    lost = frozenset(gpus[event.rank : event.rank + 1])
    if before is not None and incumbent and lost <= set(before.lost):
        return state  # told again: the current generation goes on without it already
    return scheduling_event(with_job(state, broken(state, job, crashes=1, lost=lost)), sequence)


def memory_exceeded(state: PoolState, job: Job, event: events.MemoryExceeded, sequence: int) -> PoolState:
    """Micro-batches of half the size from the next generation on; also for the next job of its profile."""
    before = job.predecessor
    speaks = event.generation == job.generation or (
        before is not None and event.generation == before.generation
    )
    smaller = half_of(event.micro_batch_size)
    is_placed = job.micro_batch_size is not None
    if not is_placed or not speaks or knows(job, smaller):
        return state
    key = spec_of(job).measured_key
    known = state.micro_batch_sizes.get(key, smaller)
    state = changed(state, micro_batch_sizes=state.micro_batch_sizes.set(key, min(smaller, known)))
    job = changed(job, micro_batch_size=smaller)
    if not job.broken:
        job = interrupted(state, job)
    return scheduling_event(with_job(state, job), sequence)


def knows(job: Job, micro_batch_size: int) -> bool:
    """Its micro-batches are no larger than this already."""
    return 0 < (job.micro_batch_size or 0) <= micro_batch_size


def half_of(micro_batch_size: int) -> int:
    """What is tried next, rounded up."""
    return (micro_batch_size + 1) // 2


def worker_lagged(state: PoolState, job: Job, event: events.WorkerLagged) -> PoolState:
    """Its GPU counts as slow for a while."""
    if event.generation != job.generation or not lag_is_news(state, job, event.rank, event.at_s):
        return state
    gpu = job.gpus[event.rank]
    slow = SlowGpu(
        gpu_index=gpu.gpu_index,
        slowdown=event.slowdown,
        job_id=job.job_id,
        generation=job.generation,
        since_s=event.at_s,
    )
    node = state.nodes[gpu.node_id]
    others = (other for other in node.slow_gpus if other.gpu_index != gpu.gpu_index)
    node = replace(node, slow_gpus=(*others, slow))
    return changed(state, nodes=state.nodes.set(node.node_id, node))


def lag_is_news(state: PoolState, job: Job, rank: int, at_s: float) -> bool:
    """Of a worker of the current generation: nobody knows that its GPU is slow, or will know it for long."""
    if not whole(job, job.generation) or rank >= len(job.gpus):
        return False
    known = slow_gpu(state, job.gpus[rank])
    if known is None:
        return True
    same = (known.job_id, known.generation) == (job.job_id, job.generation)
    return at_s - known.since_s > (state.config.slow_gpu_s / 2 if same else 0.0)


def workers_gone_after_the_end(state: PoolState, event: Event) -> PoolState:
    job = state.ended_jobs.get(event.job_id) if isinstance(event, events.WorkersStopped) else None
    if job is None or not isinstance(event, events.WorkersStopped):
        return state
    gone = StoppingWorkers(generation=event.generation, node_id=event.node_id)
    job = changed(job, stopping=tuple(s for s in job.stopping if s != gone))
    return changed(state, ended_jobs=state.ended_jobs.set(job.job_id, job))

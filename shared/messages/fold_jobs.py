"""Small steps that every part of the fold takes: a job changed, ended, broken; whom a generation waits for."""

from dataclasses import replace

from shared.messages.pool_state import Job, Phase, PoolState, StoppingWorkers


def with_job(state: PoolState, job: Job) -> PoolState:
    return replace(state, live_jobs=state.live_jobs.set(job.job_id, job))


def scheduling_event(state: PoolState, sequence: int) -> PoolState:
    return replace(state, scheduling_event_sequence=sequence)


def speaks_for(job: Job, generation: int) -> bool:
    """A generation may report its end while it runs, or while it is being replaced and not yet gone."""
    return generation == job.generation or any(s.generation == generation for s in job.stopping)


def whole(job: Job, generation: int) -> bool:
    """This is the job's current generation, placed, and no worker of it is known to be lost."""
    return generation == job.generation and bool(job.gpus) and not job.broken


def ended(
    state: PoolState, job: Job, phase: Phase, at_s: float, sequence: int, *, explanation: str = ""
) -> PoolState:
    ended = replace(
        job,
        phase=phase,
        explanation=explanation,
        ended_at_s=at_s,
        num_gpus=0,
        gpus=(),
        stopping=all_stopping(state, job),
    )
    state = replace(
        state,
        live_jobs=state.live_jobs.delete(job.job_id) if job.job_id in state.live_jobs else state.live_jobs,
        ended_jobs=state.ended_jobs.set(job.job_id, ended),
    )
    return scheduling_event(state, sequence)


def all_stopping(state: PoolState, job: Job) -> tuple[StoppingWorkers, ...]:
    """Whom the next generation waits for: a node that is gone has no workers, and nobody to say so."""
    current = (
        StoppingWorkers(generation=job.generation, node_id=node_id)
        for node_id in job.nodes
        if alive(state, node_id)
    )
    return (*job.stopping, *current)


def alive(state: PoolState, node_id: str) -> bool:
    node = state.nodes.get(node_id)
    return node is not None and node.alive


def checkpointed(job: Job, iteration: int) -> Job:
    """Only a newer checkpoint is progress that a crash cannot take back."""
    if iteration <= job.checkpoint_iteration:
        return job
    return replace(job, checkpoint_iteration=iteration, restarts=0)


def broken(job: Job, *, crashes: int) -> Job:
    return replace(
        job,
        broken=True,
        started_at_s=None,
        iteration=job.checkpoint_iteration,
        iterations_per_s=None,
        restarts=job.restarts + crashes,
    )

"""Small steps that every part of the fold takes: a job changed, ended, broken; whom a generation waits for."""

from collections.abc import Iterable
from dataclasses import replace

from shared.messages.changed import changed
from shared.messages.cluster import GpuId
from shared.messages.events import JobFinished
from shared.messages.fold_curves import with_speed
from shared.messages.job import TORCHRUN
from shared.messages.job_state import Job, Phase, Predecessor, StoppingWorkers, nodes_of
from shared.messages.pool_state import PoolState, spec_of

# What the state keeps of jobs that ended (decision record 0010); all of it is in the ledger, and in the jobs' logs.
MAX_ENDED_JOBS = 10_000
FORGET_AT_ONCE = 1_000
MAX_TRACEBACK = 2_000  # characters: its end says what happened
MAX_EXPLANATION = 2_000


def with_job(state: PoolState, job: Job) -> PoolState:
    return changed(state, live_jobs=state.live_jobs.set(job.job_id, job))


def scheduling_event(state: PoolState, sequence: int) -> PoolState:
    return changed(state, scheduling_event_sequence=sequence)


def speaks_for(job: Job, generation: int) -> bool:
    """A generation may report its end while it runs, or while it is being replaced and not yet gone."""
    if job.predecessor is not None and generation == job.predecessor.generation:
        return True
    return generation == job.generation or any(s.generation == generation for s in job.stopping)


def whole(job: Job, generation: int) -> bool:
    """This is the job's current generation, placed, and no worker of it is known to be lost."""
    return generation == job.generation and bool(job.gpus) and not job.broken


def stopped_short(job: Job, finished: JobFinished) -> bool:
    """Its workers did all that they had been told, and it was amended to more: the next generation goes on."""
    return finished.condition == "max_iterations" and finished.iteration < spec_of(job).max_iterations


def ended(
    state: PoolState, job: Job, phase: Phase, at_s: float, sequence: int, *, explanation: str = ""
) -> PoolState:
    ended = changed(
        job,
        phase=phase,
        explanation=explanation[:MAX_EXPLANATION],
        traceback=job.traceback[-MAX_TRACEBACK:],
        ended_at_s=at_s,
        num_gpus=0,
        gpus=(),
        seat=(),
        stopping=all_stopping(state, job),
        predecessor=None,
    )
    state = changed(
        with_speed(state, job),
        live_jobs=state.live_jobs.delete(job.job_id) if job.job_id in state.live_jobs else state.live_jobs,
        ended_jobs=state.ended_jobs.set(job.job_id, ended),
        bounds=state.bounds.delete(job.job_id) if job.job_id in state.bounds else state.bounds,
        scheduling_event_sequence=sequence,
    )
    return _without_the_oldest(state) if len(state.ended_jobs) > MAX_ENDED_JOBS + FORGET_AT_ONCE else state


def _without_the_oldest(state: PoolState) -> PoolState:
    """Forget what ended long ago, many at once: the ledger has it. Whose workers are awaited stays."""
    gone = sorted(
        (job for job in state.ended_jobs.values() if not job.stopping),
        key=lambda job: (job.ended_at_s or 0.0, job.job_id),
    )[: len(state.ended_jobs) - MAX_ENDED_JOBS]
    ended_jobs = state.ended_jobs.mutate()
    for job in gone:
        del ended_jobs[job.job_id]
    return changed(state, ended_jobs=ended_jobs.finish(), num_forgotten=state.num_forgotten + len(gone))


def all_stopping(state: PoolState, job: Job) -> tuple[StoppingWorkers, ...]:
    """Whom the next generation waits for: a node that is gone has no workers, and nobody to say so."""
    before = job.predecessor
    preceding = () if before is None else workers_on(state, before.generation, before.gpus)
    stopping = (*job.stopping, *preceding, *workers_on(state, job.generation, job.gpus))
    return tuple(dict.fromkeys(stopping))  # of a broken job, the two are one generation


def workers_on(state: PoolState, generation: int, gpus: Iterable[GpuId]) -> tuple[StoppingWorkers, ...]:
    """Of a generation, on the nodes of these GPUs that are alive."""
    return tuple(
        StoppingWorkers(generation=generation, node_id=node_id)
        for node_id in nodes_of(gpus)
        if alive(state, node_id)
    )


def alive(state: PoolState, node_id: str) -> bool:
    node = state.nodes.get(node_id)
    return node is not None and node.alive


def checkpointed(job: Job, iteration: int) -> Job:
    """Only a newer checkpoint is progress that a crash cannot take back. A pre-run has none."""
    if iteration <= job.checkpoint_iteration or job.phase is Phase.PROFILING:
        return job
    return changed(job, checkpoint_iteration=iteration, restarts=0)


def broken(state: PoolState, job: Job, *, crashes: int, lost: frozenset[GpuId]) -> Job:
    """It cannot go on in its current generation, for the loss of the workers on these GPUs; those who survive it have
    all that was done."""
    before = holders(state, job)
    if before is not None:
        before = replace(before, lost=tuple(gpu for gpu in before.gpus if gpu in lost or gpu in before.lost))
    survivors = before is not None and bool(before.surviving)
    return changed(
        job,
        broken=True,
        predecessor=before if survivors else None,
        started_at_s=None,
        iteration=job.iteration if survivors else job.checkpoint_iteration,
        iterations_per_s=None,
        restarts=job.restarts + crashes,
    )


def interrupted(state: PoolState, job: Job) -> Job:
    """It cannot go on in its current generation, though nobody is lost: its workers wait for the next one."""
    job = broken(state, job, crashes=0, lost=frozenset())
    before = job.predecessor
    return job if before is None else changed(job, predecessor=replace(before, waiting=True))


def holders(state: PoolState, job: Job) -> Predecessor | None:
    """Whose workers have the state of the job in their memory, and could go over to another generation; None if nobody
    could."""
    if job.predecessor is not None or not state.config.stop_free:
        return job.predecessor
    trains = job.started_at_s is not None and job.phase is Phase.ADMITTED and not job.outdated
    can_be_joined = spec_of(job).entry != TORCHRUN
    return Predecessor(generation=job.generation, gpus=job.gpus) if trains and can_be_joined else None

"""Steps that all parts of the fold share: change, end or break a job, and collect the workers it must wait for."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import JobFailed, JobFinished, ProfilingFailed
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import TORCHRUN
from elasticflow.shared.state.fold.profiles import with_curve, with_speed
from elasticflow.shared.state.gpu_types import placed_mix
from elasticflow.shared.state.job import Job, Phase, PreviousGeneration, StoppingWorkers, nodes_of
from elasticflow.shared.state.measured_curve import MeasuredMix
from elasticflow.shared.state.pool import PoolState, spec_of

# --- The fold of what jobs have produced: which node must store it, and what is stored -----------------


def with_artifacts_due(job: Job, node_id: str, sequence: int) -> Job:
    """The executor of this node must store the job's model and files. No effect without a node."""
    if not node_id:
        return job
    return fast_replace(job, artifacts=replace(job.artifacts, due=sequence, node_id=node_id))


def artifacts_stored(state: PoolState, event: events.ArtifactsStored, sequence: int) -> PoolState:
    """A report counts only from the node that must store the artifacts, and only once."""
    job = state.job(event.job_id)
    if job is None or (event.due, event.node_id) != (job.artifacts.due, job.artifacts.node_id):
        return state
    artifacts = replace(
        job.artifacts,
        due=0,
        node_id="",
        sequence=sequence,
        model_iteration=event.iteration if event.model is not None else None,
        num_bytes=event.num_bytes,
    )
    job = fast_replace(job, artifacts=artifacts)
    if job.live:
        return fast_replace(state, live_jobs=state.live_jobs.set(job.job_id, job))
    return fast_replace(state, ended_jobs=state.ended_jobs.set(job.job_id, job))


# --- jobs ----------------------------------------------------------------------------------------------

# How much the state keeps of ended jobs (decision record 0010). The ledger and the jobs' logs keep everything.
MAX_ENDED_JOBS = 10_000
FORGET_AT_ONCE = 1_000
MAX_TRACEBACK = 2_000  # characters, from its end
MAX_EXPLANATION = 2_000


def with_job(state: PoolState, job: Job) -> PoolState:
    return fast_replace(state, live_jobs=state.live_jobs.set(job.job_id, job))


def scheduling_event(state: PoolState, sequence: int) -> PoolState:
    return fast_replace(state, scheduling_event_sequence=sequence)


def may_report_end(job: Job, generation: int) -> bool:
    """Whether a generation may report the job's end: while it runs, and while its replacement waits for its end.

    Workers of a rejected job of the same id may not: they trained something else. Nor may those of a failed profiling
    run, whose job continues without their GPU type.
    """
    if 0 < generation <= job.void_generation:
        return False
    if job.previous_generation is not None and generation == job.previous_generation.generation:
        return True
    return generation == job.generation or any(s.generation == generation for s in job.stopping)


def is_intact(job: Job, generation: int) -> bool:
    """Whether this is the job's current generation, it is placed, and no loss of a worker of it is known."""
    return generation == job.generation and bool(job.gpus) and not job.broken


def is_outdated_finish(job: Job, finished: JobFinished) -> bool:
    """Whether workers finished the iterations of an older spec: an amendment requires more, so the job continues."""
    return finished.condition == "max_iterations" and finished.iteration < spec_of(job).max_iterations


def is_outdated_failure(state: PoolState, job: Job, failed: JobFailed | ProfilingFailed) -> bool:
    """Whether its writer paused and did not know the newest state: a stalled job moved on, or the node was lost."""
    if failed.progressed_at_s is not None:
        return (failed.generation, failed.progressed_at_s) != (job.generation, job.progressed_at_s)
    if failed.node_id is None:
        return False
    node = state.nodes.get(failed.node_id)
    return node is None or not node.alive or node.incarnation != failed.incarnation


class JobEnd(NamedTuple):
    """node_id: of rank 0, if it reports the end."""

    phase: Phase
    at_s: float
    explanation: str = ""
    node_id: str | None = None


def ended(state: PoolState, job: Job, end: JobEnd, sequence: int) -> PoolState:
    if job.phase is Phase.ADMITTED:
        job = with_artifacts_due(job, end.node_id or job.rank_0_node, sequence)
    ended = fast_replace(
        job,
        phase=end.phase,
        explanation=end.explanation[:MAX_EXPLANATION],
        traceback=job.traceback[-MAX_TRACEBACK:],
        last_lines=job.last_lines[-MAX_TRACEBACK:],
        ended_at_s=end.at_s,
        num_gpus=0,
        gpus=(),
        reserved_gpus=(),
        shown_gpus=(),
        predicted_speedup=0.0,
        stopping=all_stopping(state, job),
        previous_generation=None,
    )
    state = fast_replace(
        with_speed(state, job),
        live_jobs=state.live_jobs.delete(job.job_id) if job.job_id in state.live_jobs else state.live_jobs,
        ended_jobs=state.ended_jobs.set(job.job_id, ended),
        gpu_limits=state.gpu_limits.delete(job.job_id) if job.job_id in state.gpu_limits else state.gpu_limits,
        scheduling_event_sequence=sequence,
    )
    return _without_the_oldest(state) if len(state.ended_jobs) > MAX_ENDED_JOBS + FORGET_AT_ONCE else state


def _without_the_oldest(state: PoolState) -> PoolState:
    """Forget the jobs that ended first, many at once; the ledger has them. Jobs with stopping workers stay."""
    gone = sorted(
        (job for job in state.ended_jobs.values() if not job.stopping),
        key=lambda job: (job.ended_at_s or 0.0, job.job_id),
    )[: len(state.ended_jobs) - MAX_ENDED_JOBS]
    ended_jobs = state.ended_jobs.mutate()
    for job in gone:
        del ended_jobs[job.job_id]
    return fast_replace(state, ended_jobs=ended_jobs.finish(), num_forgotten=state.num_forgotten + len(gone))


def all_stopping(state: PoolState, job: Job) -> tuple[StoppingWorkers, ...]:
    """All workers that must end before the next generation starts. Lost nodes have none: they could not report."""
    previous = job.previous_generation
    of_previous = () if previous is None else workers_on(state, previous.generation, previous.gpus)
    stopping = (*job.stopping, *of_previous, *workers_on(state, job.generation, job.gpus))
    return tuple(dict.fromkeys(stopping))  # a broken job's current and previous generation may be the same


def workers_on(state: PoolState, generation: int, gpus: Iterable[GpuId]) -> tuple[StoppingWorkers, ...]:
    """The generation's workers on those nodes of these GPUs that are alive."""
    return tuple(
        StoppingWorkers(generation=generation, node_id=node_id) for node_id in nodes_of(gpus) if alive(state, node_id)
    )


def alive(state: PoolState, node_id: str) -> bool:
    node = state.nodes.get(node_id)
    return node is not None and node.alive


def takes_jobs(state: PoolState, node_id: str) -> bool:
    node = state.nodes.get(node_id)
    return node is not None and node.takes_jobs


def checkpointed(job: Job, iteration: int) -> Job:
    """The job with a newer checkpoint, which is durable progress: it resets the restarts. A profiling run has none."""
    if iteration <= job.checkpoint_iteration or job.phase is Phase.PROFILING:
        return job
    return fast_replace(job, checkpoint_iteration=iteration, restarts=0)


def with_lost_workers(state: PoolState, job: Job, *, crashes: int, lost: frozenset[GpuId]) -> Job:
    """The job with a broken generation: the workers on these GPUs are lost. Survivors keep all steps done."""
    previous = state_holders(state, job)
    if previous is not None:
        all_lost = _whole_gangs(previous.gpus, lost.union(previous.lost), spec_of(job).gang_size)
        previous = replace(previous, lost=all_lost)
    survivors = previous is not None and bool(previous.surviving)
    return fast_replace(
        job,
        broken=True,
        previous_generation=previous if survivors else None,
        started_at_s=None,
        iteration=job.iteration if survivors else job.checkpoint_iteration,
        iterations_per_s=None,
        restarts=job.restarts + crashes,
    )


def _whole_gangs(gpus: tuple[GpuId, ...], lost: frozenset[GpuId], gang_size: int) -> tuple[GpuId, ...]:
    """The GPUs of all gangs of which some are lost: the others have parts of a model without a whole."""
    gangs = (gpus[start : start + gang_size] for start in range(0, len(gpus), gang_size))
    return tuple(gpu for gang in gangs if not lost.isdisjoint(gang) for gpu in gang)


def with_waiting_workers(state: PoolState, job: Job) -> Job:
    """The job with a broken generation of which no worker is lost: all of them wait for the next generation."""
    job = with_lost_workers(state, job, crashes=0, lost=frozenset())
    previous = job.previous_generation
    return job if previous is None else fast_replace(job, previous_generation=replace(previous, waiting=True))


def state_holders(state: PoolState, job: Job) -> PreviousGeneration | None:
    """The generation whose workers hold the job's state in memory and can switch to the next one; None if none can."""
    if job.previous_generation is not None or not state.config.stop_free:
        return job.previous_generation
    trains = job.started_at_s is not None and job.phase is Phase.ADMITTED and not job.has_outdated_spec
    can_be_joined = spec_of(job).entry != TORCHRUN
    if not trains or not can_be_joined:
        return None
    return PreviousGeneration(generation=job.generation, gpus=job.gpus, num_added_gpus=job.num_added_gpus)


# --- The fold of the speeds of jobs that GPUs of other types joined ------------------------------------

MAX_MIXES = 16  # of a profile on a type
SPEED_CHANGE = 0.1  # a speed that is so much off the known one corrects it
CORRECT_EVERY_S = 10.0  # the same mix


def with_measured_mix(state: PoolState, job: Job, event: events.JobProgressed) -> PoolState:
    """Keep the speed of the mix with the profile: a new one as it is, a known one half-way to the new speed."""
    key, measured = spec_of(job).measured_key, event.iterations_per_s
    curve = state.curves.get(key)
    if curve is None or not measured or not job.virtual_nodes_by_rank or not _is_settled(job, event):
        return state
    mix = placed_mix(state, job)
    known = next((each for each in curve.mixes if each.virtual_nodes == mix), None)
    if known is not None:
        is_close = abs(measured - known.iterations_per_s) <= SPEED_CHANGE * known.iterations_per_s
        if is_close or event.at_s - known.at_s < CORRECT_EVERY_S:
            return state
        measured = (measured + known.iterations_per_s) / 2
    newest = MeasuredMix(virtual_nodes=mix, iterations_per_s=measured, at_s=event.at_s)
    others = tuple(each for each in curve.mixes if each is not known)
    return with_curve(state, key, replace(curve, mixes=(*others, newest)[-MAX_MIXES:]))


def _is_settled(job: Job, event: events.JobProgressed) -> bool:
    """Whether the job trains with GPUs of other types, and its speed counts."""
    return bool(job.num_added_gpus and job.own_gpus) and job.has_settled(event.at_s)


def with_slower_mix(state: PoolState, job: Job, event: events.JobProgressed, sequence: int) -> PoolState:
    """Mark a job that GPUs of other types slow down, by its curve on its own GPUs; the allocator takes them away."""
    curve = state.curves.get(spec_of(job).profile_key)
    alone = curve.iterations_per_s.get(len(job.own_gpus)) if curve is not None else None
    if not alone or event.iterations_per_s is None or not _is_settled(job, event) or event.iterations_per_s >= alone:
        return state
    return scheduling_event(with_job(state, fast_replace(job, slower_when_mixed=True)), sequence)

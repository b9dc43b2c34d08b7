"""The fold of allocations and placements. Part of `lifecycle`."""

from shared.messages import events
from shared.messages.changed import changed
from shared.messages.cluster import GpuId
from shared.messages.fold_curves import tried
from shared.messages.fold_jobs import alive, all_stopping, holders, workers_on
from shared.messages.job_state import Job, Phase, StoppingWorkers
from shared.messages.pool_state import PoolState, spec_of


def allocated(state: PoolState, event: events.AllocationDecided) -> PoolState:
    """Only the jobs that it changes are looked at, of the thousands that it may name."""
    before, after = state.num_gpus_by_job, event.num_gpus_by_job
    resized = [job_id for job_id, num_gpus in after.items() if before.get(job_id) != num_gpus]
    suspended = [job_id for job_id in before if job_id not in after]
    live_jobs = state.live_jobs.mutate()
    for job_id in {*resized, *suspended, *event.planned}:
        job = live_jobs.get(job_id)
        if job is not None:
            num_gpus = after.get(job_id, 0)
            live_jobs[job_id] = changed(
                job,
                num_gpus=num_gpus,
                seat=job.seat if num_gpus == job.num_gpus else (),
                planned_share=event.planned.get(job_id, job.planned_share),
            )
    state = changed(
        state,
        live_jobs=live_jobs.finish(),
        num_gpus_by_job=after,
        allocation_valid_until_s=event.valid_until_s,
    )
    trying = state.live_jobs.get(event.tries) if event.tries is not None else None
    return state if trying is None else tried(state, trying, trying.num_gpus, event.at_s)


def placed(state: PoolState, event: events.PlacementDecided) -> PoolState:
    live_jobs = state.live_jobs.mutate()
    for placement in event.placements:
        job = live_jobs.get(placement.job_id)
        if job is not None and placement.generation > job.generation:
            live_jobs[job.job_id] = _moved(state, job, placement, event)
    return changed(state, live_jobs=live_jobs.finish())


def _moved(state: PoolState, job: Job, placement: events.PlacedJob, decided: events.PlacementDecided) -> Job:
    alive_everywhere = all(alive(state, gpu.node_id) for gpu in placement.gpus)
    goes_over = alive_everywhere and _goes_over(state, job, placement, decided)
    return changed(
        job,
        predecessor=holders(state, job) if goes_over else None,
        stopping=_stopping_anyway(state, job) if goes_over else all_stopping(state, job),
        generation=placement.generation,
        gpus=placement.gpus,
        seat=_kept_seat(job, placement),
        placed_at_s=decided.at_s,
        started_at_s=None,
        broken=not alive_everywhere,  # a node was lost while this was decided
        rendezvous="",
        micro_batch_size=_micro_batch_size(state, job),
        iterations_per_s=None,
        at_risk=False,
        earliest_deadline_s=None,
        outdated=False,
    )


def _kept_seat(job: Job, placement: events.PlacedJob) -> tuple[GpuId, ...]:
    """Whoever is placed on a part of its share are survivors (decision record 0025): the rest stays theirs, for those
    who will take the place of the lost."""
    seat = job.seat or job.gpus
    in_part = 0 < len(placement.gpus) < len(seat) == job.num_gpus
    return seat if in_part and set(placement.gpus) <= set(seat) else ()


def _goes_over(
    state: PoolState, job: Job, placement: events.PlacedJob, decided: events.PlacementDecided
) -> bool:
    """Whether workers of the job can go over to its next generation without a stop (decision record 0018): all of one
    that trains, or those of a broken one who survive.

    Newcomers wait for the GPUs that other jobs leave, and leavers leave theirs when all newcomers are ready. So of the
    jobs of one decision, whoever both takes and leaves GPUs must leave them to nobody: then those that take wait for
    those that only leave, these for nobody, and nobody waits in a circle. Between decisions the later wait for
    the earlier.
    """
    before = holders(state, job)
    if before is None or job.outdated or not (job.training or job.broken):
        return False  # a pre-run keeps no work: it is broken once its job is admitted
    left = set(before.surviving).difference(placement.gpus)
    taken = set(placement.gpus).difference(before.surviving)
    others = (other for other in decided.placements if other.job_id != job.job_id)
    if left and taken and any(not left.isdisjoint(other.gpus) for other in others):
        return False
    return bool(placement.gpus) and bool(before.surviving)


def _micro_batch_size(state: PoolState, job: Job) -> int:
    """Found by trying, by the job or by those before it. Whoever has begun keeps its own: its bits depend on it."""
    if job.micro_batch_size is None or job.phase is Phase.PROFILING:
        return state.micro_batch_sizes.get(spec_of(job).measured_key, 0)
    return job.micro_batch_size


def _stopping_anyway(state: PoolState, job: Job) -> tuple[StoppingWorkers, ...]:
    """Newcomers of a generation that never started."""
    if job.predecessor is None or job.predecessor.generation == job.generation:
        return job.stopping
    return (*job.stopping, *workers_on(state, job.generation, job.gpus))

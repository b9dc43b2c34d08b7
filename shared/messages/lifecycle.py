"""The life of jobs and nodes: `evolve(state, event)` for the one state that all services fold.

Total and idempotent: an event that is late, doubled, of an older generation or about something unknown
changes nothing. No clock, no chance: events carry their own times.
"""

from dataclasses import replace
from typing import assert_never

from shared.messages import events
from shared.messages.events import Event, PlanDecided
from shared.messages.job import JobSpec
from shared.messages.pool_state import Job, MeasuredCurve, NodeState, Phase, PoolState, StoppingWorkers, Usage

FOLD = 1  # raise it when the same messages fold to another state: snapshots of the old fold are then not read
DAY_S = 86_400.0
MAX_START_COST_S = 120.0
FASTER_START_WEIGHT = 0.2
MAX_EARLIER_INCARNATIONS = 8  # a join is told again within minutes, if ever
_NO_CURVE = MeasuredCurve(iterations_per_s={})


def evolve(state: PoolState, message: Event | PlanDecided | None, sequence: int) -> PoolState:
    """The state after the ledger's message at this sequence; one at or below state.sequence is old news.

    None stands for a message that nobody can read: it happened, and it says nothing.
    """
    if sequence <= state.sequence:
        return state
    if message is None:
        return replace(state, sequence=sequence)
    if not isinstance(message, PlanDecided):
        return replace(apply(state, message, sequence), sequence=sequence)
    for event in message.events:
        state = apply(state, event, sequence)
    if message.service == "allocator":
        state = replace(state, allocation_based_on=message.based_on)
    return replace(state, sequence=sequence, plan_sequence=sequence)


def apply(state: PoolState, event: Event, sequence: int) -> PoolState:
    """One event's effect, sequence numbers aside."""
    match event:
        case events.PoolConfigured():
            return _configured(state, event, sequence)
        case events.ProfileRequested() | events.JobAdmitted():
            return _accepted(state, event, sequence)
        case events.JobRejected():
            return _rejected(state, event, sequence)
        case events.AllocationDecided():
            return _allocated(state, event)
        case events.PlacementDecided():
            for placed in event.placements:
                state = _placed(state, placed, event.at_s)
            return state
        case events.ProfileCompleted():
            return _profile_completed(state, event)
        case events.NodeJoined():
            return _node_joined(state, event, sequence)
        case events.NodeLost():
            return _node_lost(state, event, sequence)
        case events.CancelRefused():
            return state
        case events.ThroughputMeasured():
            return _measured(state, event, sequence)
        case _:
            return _of_a_job(state, event, sequence)


def _of_a_job(
    state: PoolState,
    event: events.JobCancelled
    | events.RendezvousOpened
    | events.GenerationStarted
    | events.WorkersStopped
    | events.WorkerCrashed
    | events.JobProgressed
    | events.JobFinished
    | events.JobFailed
    | events.JobAtRisk,
    sequence: int,
) -> PoolState:
    job = state.live_jobs.get(event.job_id)
    if job is None:
        return _workers_gone_after_the_end(state, event)
    match event:
        case events.JobCancelled():
            return _ended(state, job, Phase.CANCELLED, event.at_s, sequence, explanation=event.reason)
        case events.JobFailed():
            if not _speaks_for(job, event.generation):
                return state
            job = replace(job, traceback=event.traceback)
            return _ended(state, job, Phase.FAILED, event.at_s, sequence, explanation=event.error)
        case events.JobFinished():
            if not _speaks_for(job, event.generation) or job.phase is Phase.PROFILING:
                return state
            job = replace(job, iteration=event.iteration, metrics=event.metrics)
            return _ended(state, job, Phase.FINISHED, event.at_s, sequence)
        case events.WorkersStopped():
            return _with_job(state, _workers_stopped(job, event))
        case events.WorkerCrashed():
            if not _whole(job, event.generation):
                return state
            return _scheduling_event(_with_job(state, _broken(job, crashes=1)), sequence)
        case events.RendezvousOpened():
            if not _whole(job, event.generation) or job.rendezvous:
                return state
            return _with_job(state, replace(job, rendezvous=event.address))
        case events.GenerationStarted():
            return _with_job(_start_seen(state, job, event), _generation_started(job, event))
        case events.JobProgressed():
            return _with_job(state, _progressed(job, event))
        case events.JobAtRisk():
            if job.at_risk or job.phase is Phase.PROFILING or event.generation != job.generation:
                return state
            return _scheduling_event(_with_job(state, replace(job, at_risk=True)), sequence)
        case _:
            assert_never(event)


def _with_job(state: PoolState, job: Job) -> PoolState:
    return replace(state, live_jobs=state.live_jobs.set(job.job_id, job))


def _scheduling_event(state: PoolState, sequence: int) -> PoolState:
    return replace(state, scheduling_event_sequence=sequence)


def _speaks_for(job: Job, generation: int) -> bool:
    """A generation may report its end while it runs, or while it is being replaced and not yet gone."""
    return generation == job.generation or any(s.generation == generation for s in job.stopping)


def _whole(job: Job, generation: int) -> bool:
    """This is the job's current generation, placed, and no worker of it is known to be lost."""
    return generation == job.generation and bool(job.gpus) and not job.broken


# --- admission ------------------------------------------------------------------------------------------


def _configured(state: PoolState, event: events.PoolConfigured, sequence: int) -> PoolState:
    curves = state.curves
    for profile_key, table in event.config.curves.items():
        known = curves.get(profile_key, _NO_CURVE)
        at_s = {num_gpus: max(event.at_s, known.measured_at_s.get(num_gpus, 0.0)) for num_gpus in table}
        at_s = {**known.measured_at_s, **at_s}
        curve = replace(known, iterations_per_s=table, measured_at_s=at_s, complete=True)
        curves = curves.set(profile_key, curve)
    state = replace(state, config=event.config, configured=True, curves=curves)
    return _scheduling_event(state, sequence)


def _accepted(
    state: PoolState, event: events.ProfileRequested | events.JobAdmitted, sequence: int
) -> PoolState:
    known = state.job(event.job_id)
    profiling = isinstance(event, events.ProfileRequested)
    if known is not None and (profiling or known.phase is not Phase.PROFILING):
        return state
    job = Job(
        job_id=event.job_id,
        tenant=event.tenant,
        spec=event.spec,
        phase=Phase.PROFILING if profiling else Phase.ADMITTED,
        decided_at_s=event.at_s,
        decided_sequence=sequence,
        deadline_s=event.deadline_s,
        minimum_satisfactory_share=() if profiling else event.minimum_satisfactory_share,
        planned_share=() if profiling else event.minimum_satisfactory_share,
    )
    if known is not None:  # the pre-run's workers, if any are left, are fenced like any older generation
        job = replace(
            job,
            num_gpus=known.num_gpus,
            generation=known.generation,
            gpus=known.gpus,
            placed_at_s=known.placed_at_s,
            stopping=known.stopping,
            broken=bool(known.gpus),
        )
    if not profiling:
        state = _charge(_made_room(state, event), event)
    return _scheduling_event(_with_job(state, job), sequence)


def _made_room(state: PoolState, event: events.JobAdmitted) -> PoolState:
    for job_id, schedule in event.replanned.items():
        other = state.live_jobs.get(job_id)
        if other is not None:
            state = _with_job(state, replace(other, planned_share=schedule))
    return state


def _charge(state: PoolState, event: events.JobAdmitted) -> PoolState:
    recent = [u for u in state.usage.get(event.tenant, ()) if u.at_s > event.at_s - DAY_S]
    usage = (*recent, Usage(at_s=event.at_s, gpu_seconds=event.gpu_seconds))
    return replace(state, usage=state.usage.set(event.tenant, usage))


def _rejected(state: PoolState, event: events.JobRejected, sequence: int) -> PoolState:
    known = state.job(event.job_id)
    if event.reason == "duplicate" or (known is not None and known.phase is not Phase.PROFILING):
        return state
    job = Job(
        job_id=event.job_id,
        tenant=event.tenant,
        spec=event.spec,
        phase=Phase.PROFILING,
        decided_at_s=event.at_s,
        decided_sequence=sequence,
        deadline_s=event.deadline_s,
        generation=known.generation if known else 0,
        earliest_deadline_s=event.earliest_deadline_s,
        stopping=_all_stopping(state, known) if known else (),
        rejection=event.reason,
    )
    return _ended(state, job, Phase.REJECTED, event.at_s, sequence, explanation=event.explanation)


def _ended(
    state: PoolState, job: Job, phase: Phase, at_s: float, sequence: int, *, explanation: str = ""
) -> PoolState:
    ended = replace(
        job,
        phase=phase,
        explanation=explanation,
        ended_at_s=at_s,
        num_gpus=0,
        gpus=(),
        stopping=_all_stopping(state, job),
    )
    state = replace(
        state,
        live_jobs=state.live_jobs.delete(job.job_id) if job.job_id in state.live_jobs else state.live_jobs,
        ended_jobs=state.ended_jobs.set(job.job_id, ended),
    )
    return _scheduling_event(state, sequence)


# --- allocation, placement, profiles --------------------------------------------------------------------


def _allocated(state: PoolState, event: events.AllocationDecided) -> PoolState:
    live_jobs = state.live_jobs
    for job_id, job in live_jobs.items():
        num_gpus = event.num_gpus_by_job.get(job_id, 0)
        planned = event.planned.get(job_id, job.planned_share)
        if num_gpus != job.num_gpus or planned != job.planned_share:
            live_jobs = live_jobs.set(job_id, replace(job, num_gpus=num_gpus, planned_share=planned))
    return replace(state, live_jobs=live_jobs, allocation_valid_until_s=event.valid_until_s)


def _placed(state: PoolState, placed: events.PlacedJob, at_s: float) -> PoolState:
    job = state.live_jobs.get(placed.job_id)
    if job is None or placed.generation <= job.generation:
        return state
    job = replace(
        job,
        stopping=_all_stopping(state, job),
        generation=placed.generation,
        gpus=placed.gpus,
        placed_at_s=at_s,
        started_at_s=None,
        broken=not all(_alive(state, gpu.node_id) for gpu in placed.gpus),  # lost while this was decided
        rendezvous="",
        iterations_per_s=None,
        at_risk=False,
    )
    return _with_job(state, job)


def _all_stopping(state: PoolState, job: Job) -> tuple[StoppingWorkers, ...]:
    """Whom the next generation waits for: a node that is gone has no workers, and nobody to say so."""
    current = (
        StoppingWorkers(generation=job.generation, node_id=node_id)
        for node_id in job.nodes
        if _alive(state, node_id)
    )
    return (*job.stopping, *current)


def _alive(state: PoolState, node_id: str) -> bool:
    node = state.nodes.get(node_id)
    return node is not None and node.alive


def _measured(state: PoolState, event: events.ThroughputMeasured, sequence: int) -> PoolState:
    curve = state.curves.get(event.profile_key, _NO_CURVE)
    if event.at_s <= curve.measured_at_s.get(event.num_gpus, -1.0):
        return state
    curve = replace(
        curve,
        iterations_per_s={**curve.iterations_per_s, event.num_gpus: event.iterations_per_s},
        measured_at_s={**curve.measured_at_s, event.num_gpus: event.at_s},
        dataset_size=curve.dataset_size if event.dataset_size is None else event.dataset_size,
    )
    state = replace(state, curves=state.curves.set(event.profile_key, curve))
    return _scheduling_event(state, sequence)


def _profile_completed(state: PoolState, event: events.ProfileCompleted) -> PoolState:
    """No scheduling event: the allocator says it together with an allocation that knows it."""
    curve = state.curves.get(event.profile_key, _NO_CURVE)
    curve = replace(curve, iterations_per_s=event.iterations_per_s, complete=True)
    return replace(state, curves=state.curves.set(event.profile_key, curve))


# --- workers --------------------------------------------------------------------------------------------


def _start_seen(state: PoolState, job: Job, event: events.GenerationStarted) -> PoolState:
    """Learn what a start costs here: a slower one at once, a faster one by and by."""
    if not _whole(job, event.generation) or job.started_at_s is not None:
        return state
    cost_s = min(max(event.at_s - job.placed_at_s, 0.0), MAX_START_COST_S)
    if cost_s < state.start_cost_s:
        cost_s = state.start_cost_s + FASTER_START_WEIGHT * (cost_s - state.start_cost_s)
    return replace(state, start_cost_s=cost_s)


def _generation_started(job: Job, event: events.GenerationStarted) -> Job:
    if not _whole(job, event.generation) or job.started_at_s is not None:
        return job
    job = _checkpointed(job, event.iteration)
    return replace(job, started_at_s=event.at_s, iteration=event.iteration, progressed_at_s=event.at_s)


def _progressed(job: Job, event: events.JobProgressed) -> Job:
    """Reports of a generation are ordered by iteration first: their writer's clock is not that of its start."""
    if event.generation != job.generation or not job.training:
        return job
    if (event.iteration, event.at_s) <= (job.iteration, job.progressed_at_s):
        return job
    return replace(
        _checkpointed(job, event.checkpoint_iteration),
        iteration=event.iteration,
        iterations_per_s=event.iterations_per_s,
        metrics={**job.metrics, **event.metrics},
        progressed_at_s=event.at_s,
    )


def _checkpointed(job: Job, iteration: int) -> Job:
    """Only a newer checkpoint is progress that a crash cannot take back."""
    if iteration <= job.checkpoint_iteration:
        return job
    return replace(job, checkpoint_iteration=iteration, restarts=0)


def _workers_stopped(job: Job, event: events.WorkersStopped) -> Job:
    gone = StoppingWorkers(generation=event.generation, node_id=event.node_id)
    if gone not in job.stopping:
        return job
    job = replace(job, stopping=tuple(s for s in job.stopping if s != gone))
    if event.iteration is None:
        return job
    job = _checkpointed(job, event.iteration)
    return job if job.started_at_s is not None else replace(job, iteration=job.checkpoint_iteration)


def _broken(job: Job, *, crashes: int) -> Job:
    return replace(
        job,
        broken=True,
        started_at_s=None,
        iteration=job.checkpoint_iteration,
        iterations_per_s=None,
        restarts=job.restarts + crashes,
    )


def _workers_gone_after_the_end(state: PoolState, event: Event) -> PoolState:
    job = state.ended_jobs.get(event.job_id) if isinstance(event, events.WorkersStopped) else None
    if job is None or not isinstance(event, events.WorkersStopped):
        return state
    gone = StoppingWorkers(generation=event.generation, node_id=event.node_id)
    job = replace(job, stopping=tuple(s for s in job.stopping if s != gone))
    return replace(state, ended_jobs=state.ended_jobs.set(job.job_id, job))


# --- nodes ----------------------------------------------------------------------------------------------


def _node_joined(state: PoolState, event: events.NodeJoined, sequence: int) -> PoolState:
    known = state.nodes.get(event.node_id)
    if known is not None and event.incarnation in (known.incarnation, *known.earlier_incarnations):
        return state
    if known is not None and known.alive:
        state = _without_workers_on(state, event.node_id)
    earlier = (known.incarnation, *known.earlier_incarnations) if known is not None else ()
    node = NodeState(
        node_id=event.node_id,
        incarnation=event.incarnation,
        earlier_incarnations=earlier[:MAX_EARLIER_INCARNATIONS],
        num_gpus=event.num_gpus,
        device=event.device,
        alive=True,
        since_s=event.at_s,
    )
    return _scheduling_event(replace(state, nodes=state.nodes.set(event.node_id, node)), sequence)


def _node_lost(state: PoolState, event: events.NodeLost, sequence: int) -> PoolState:
    node = state.nodes.get(event.node_id)
    if node is None or node.incarnation != event.incarnation or not node.alive:
        return state
    node = replace(node, alive=False, since_s=event.at_s)
    state = replace(state, nodes=state.nodes.set(event.node_id, node))
    return _scheduling_event(_without_workers_on(state, event.node_id), sequence)


def _without_workers_on(state: PoolState, node_id: str) -> PoolState:
    for job in state.live_jobs.values():
        if job.stopping:
            job = replace(job, stopping=tuple(s for s in job.stopping if s.node_id != node_id))
        if node_id in job.nodes:
            job = _broken(job, crashes=0)
        state = _with_job(state, job)
    for job in state.ended_jobs.values():
        if any(s.node_id == node_id for s in job.stopping):
            stopping = tuple(s for s in job.stopping if s.node_id != node_id)
            ended_jobs = state.ended_jobs.set(job.job_id, replace(job, stopping=stopping))
            state = replace(state, ended_jobs=ended_jobs)
    return state


# --- in other words -------------------------------------------------------------------------------------


def spec_of(job: Job) -> JobSpec:
    """The spec of a live job, which always has one."""
    assert job.spec is not None, job.job_id
    return job.spec


def outcome(job: Job) -> events.AdmissionEvent | events.JobFailed:
    """What was said of this job, told again to whoever asks again: admission's word, or its end if that was none
    that its user had hoped for."""
    match job.phase:
        case Phase.PROFILING:
            return events.ProfileRequested(
                job_id=job.job_id,
                tenant=job.tenant,
                spec=spec_of(job),
                deadline_s=job.deadline_s,
                at_s=job.decided_at_s,
            )
        case Phase.REJECTED:
            return events.JobRejected(
                job_id=job.job_id,
                tenant=job.tenant,
                spec=job.spec,
                reason=job.rejection or "invalid",
                explanation=job.explanation,
                deadline_s=job.deadline_s,
                earliest_deadline_s=job.earliest_deadline_s,
                at_s=job.decided_at_s,
            )
        case Phase.FAILED:
            return events.JobFailed(
                job_id=job.job_id,
                generation=job.generation,
                error=job.explanation,
                traceback=job.traceback,
                at_s=job.ended_at_s or job.decided_at_s,
            )
        case Phase.CANCELLED:
            return events.JobCancelled(
                job_id=job.job_id, reason=job.explanation, at_s=job.ended_at_s or job.decided_at_s
            )
        case Phase.ADMITTED | Phase.FINISHED:
            return events.JobAdmitted(
                job_id=job.job_id,
                tenant=job.tenant,
                spec=spec_of(job),
                deadline_s=job.deadline_s,
                minimum_satisfactory_share=job.minimum_satisfactory_share,
                gpu_seconds=sum(s.num_gpus * (s.end_s - s.start_s) for s in job.minimum_satisfactory_share),
                at_s=job.decided_at_s,
            )

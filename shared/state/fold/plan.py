"""The fold of allocations and placements, of profiling runs, and of decided commands. Part of `ledger_fold`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.state.fold.jobs import (
    MAX_EXPLANATION,
    alive,
    all_stopping,
    scheduling_event,
    state_holders,
    with_job,
    workers_on,
)
from elasticflow.shared.state.fold.profiles import NO_CURVE, num_virtual_nodes, probed, with_curve, with_profile
from elasticflow.shared.state.gpu_types import (
    large_enough_types,
    possible_types,
    profiling_failure,
    spec_on,
    submitted_spec,
)
from elasticflow.shared.state.job import Job, Phase, PreviousGeneration, StoppingWorkers, nodes_of
from elasticflow.shared.state.pool import MAX_DECIDED_COMMANDS, PoolState, spec_of

# --- profiling runs -----------------------------------------------------------------------------------
# The fold of profiling runs: on which GPU type each job is measured, and on which types a profile failed.
#
# A failure belongs to the profile, so later jobs do not repeat it. It counts until the profile is measured there. If no
# other type is left, it is not the type's fault: then the failures of all types that the job accepts are forgotten.


def with_profiling_on(state: PoolState, profiled_on: Mapping[str, str]) -> PoolState:
    """The pool with these profiling runs on GPUs of these types, by job. Their workers on other types must stop."""
    for job_id, gpu_type in profiled_on.items():
        job = state.live_jobs.get(job_id)
        spec = None if job is None else spec_on(state, spec_of(job), gpu_type)
        if job is not None and spec is not None and spec is not job.spec:
            moved = fast_replace(
                job, spec=spec, submitted_spec=submitted_spec(job), broken=job.broken or bool(job.gpus)
            )
            state = fast_replace(with_profile(state, spec), live_jobs=state.live_jobs.set(job_id, moved))
    return state


def profiling_failed(state: PoolState, job: Job, event: events.ProfilingFailed, sequence: int) -> PoolState:
    """The job goes on without this type: its workers there must stop, and their generation reports no more."""
    failed, spec = spec_on(state, submitted_spec(job), event.gpu_type), spec_of(job)
    is_there = spec.gpu_type == failed.gpu_type  # or it has left the type before its workers failed
    job = fast_replace(
        job,
        broken=job.broken or (is_there and bool(job.gpus)),
        void_generation=max(job.void_generation, event.generation),
        restarts=0 if is_there else job.restarts,
        nodes_lost_at_start=() if is_there else job.nodes_lost_at_start,
        nodes_lost_in_preparation=() if is_there else job.nodes_lost_in_preparation,
        unwitnessed_starts=() if is_there else job.unwitnessed_starts,
        ended_starts=() if is_there else job.ended_starts,
    )
    return scheduling_event(with_job(_with_failure(state, failed, event.error[:MAX_EXPLANATION]), job), sequence)


def with_failures_forgotten(state: PoolState, spec: JobSpec) -> PoolState:
    """Forget the failures of a submitted spec, on all types that it accepts and that have enough GPUs."""
    for gpu_type in large_enough_types(state, spec):
        if profiling_failure(state, spec, gpu_type):
            state = _with_failure(state, spec_on(state, spec, gpu_type), "")
    return state


def with_another_attempt(state: PoolState, spec: JobSpec) -> PoolState:
    """A submitted spec that no type is left for is measured again."""
    return state if possible_types(state, spec) else with_failures_forgotten(state, spec)


def _with_failure(state: PoolState, spec: JobSpec, failure: str) -> PoolState:
    curve = state.curves.get(spec.measured_key, NO_CURVE)
    return with_curve(state, spec.measured_key, replace(curve, failure=failure))


def commands_decided(state: PoolState, decision: events.PlanDecided, sequence: int) -> PoolState:
    if not decision.queue_positions:
        return state
    decided = state.decided_commands.mutate()
    for position in decision.queue_positions:
        slot = position.sequence % MAX_DECIDED_COMMANDS
        decided[slot] = (position.sequence, position.stored_at_s, sequence)
    return fast_replace(state, decided_commands=decided.finish())


def allocated(state: PoolState, event: events.AllocationDecided) -> PoolState:
    """Change only the jobs whose share or schedule changes; the event may name thousands."""
    state = with_profiling_on(state, event.profiled_on)
    before, after = state.num_gpus_by_job, event.num_gpus_by_job
    resized = [job_id for job_id, num_gpus in after.items() if before.get(job_id) != num_gpus]
    suspended = [job_id for job_id in before if job_id not in after]
    live_jobs = state.live_jobs.mutate()
    for job_id in {*resized, *suspended, *event.planned}:
        job = live_jobs.get(job_id)
        if job is not None:
            num_gpus = after.get(job_id, 0)
            live_jobs[job_id] = fast_replace(
                job,
                num_gpus=num_gpus,
                reserved_gpus=job.reserved_gpus if num_gpus == job.num_gpus else (),
                predicted_speedup=job.predicted_speedup if num_gpus == job.num_gpus else 0.0,
                planned_share=event.planned.get(job_id, job.planned_share),
            )
    state = fast_replace(
        state,
        live_jobs=live_jobs.finish(),
        num_gpus_by_job=after,
        virtual_nodes_by_type=event.virtual_nodes_by_type,
        lent_until_s=event.lent_until_s,
        allocation_valid_until_s=event.valid_until_s,
    )
    probing = state.live_jobs.get(event.probes) if event.probes is not None else None
    return state if probing is None else probed(state, probing, probing.num_gpus, event.at_s)


def placed(state: PoolState, event: events.PlacementDecided, sequence: int) -> PoolState:
    live_jobs = state.live_jobs.mutate()
    for placement in event.placements:
        job = live_jobs.get(placement.job_id)
        if job is not None and placement.generation > job.generation:
            live_jobs[job.job_id] = _with_generation(state, job, placement, event)
    last = sequence if event.needs_other_plan else state.scheduling_event_sequence
    return fast_replace(state, live_jobs=live_jobs.finish(), scheduling_event_sequence=last)


def _with_generation(state: PoolState, job: Job, placement: events.PlacedJob, decided: events.PlacementDecided) -> Job:
    alive_everywhere = all(alive(state, node_id) for node_id in nodes_of(placement.gpus))
    switches = alive_everywhere and _switches(state, job, placement, decided)
    return fast_replace(
        job,
        previous_generation=state_holders(state, job) if switches else None,
        stopping=_stopping_despite_switch(state, job) if switches else all_stopping(state, job),
        generation=placement.generation,
        gpus=placement.gpus,
        num_virtual_nodes=_num_virtual_nodes(state, job),
        virtual_nodes_by_rank=placement.virtual_nodes_by_rank,
        num_added_gpus=placement.num_added_gpus,
        reserved_gpus=_kept_reserved_gpus(job, placement),
        shown_gpus=_shown_gpus(job, placement, switches=switches),
        predicted_speedup=placement.predicted_speedup,
        placed_at_s=decided.at_s,
        migrated_at_s=decided.at_s if job.job_id in decided.migrated else job.migrated_at_s,
        started_at_s=None,
        start_phases=(),
        broken=not alive_everywhere,  # a node was lost after the decision
        rendezvous="",
        micro_batch_size=_micro_batch_size(state, job),
        iterations_per_s=None,
        at_risk=False,
        earliest_deadline_s=None,
        has_outdated_spec=False,
    )


def _kept_reserved_gpus(job: Job, placement: events.PlacedJob) -> tuple[GpuId, ...]:
    """A job on a part of its share consists of survivors (docs/adr/0025), or leaves slow GPUs out (docs/adr/0109).

    The other GPUs stay reserved for the workers that join later.
    """
    share = job.reserved_gpus or job.own_gpus
    placed = placement.gpus[: len(placement.gpus) - placement.num_added_gpus]
    on_a_part = 0 < len(placed) < len(share) == job.num_gpus
    return share if on_a_part and set(placed) <= set(share) else ()


def _switches(state: PoolState, job: Job, placement: events.PlacedJob, decided: events.PlacementDecided) -> bool:
    """Whether the workers that hold the job's state can switch to the next generation (decision record 0018).

    Joining workers wait for GPUs that other jobs leave; leaving workers keep theirs until all joining ones are ready.
    So a job that both takes and leaves GPUs must leave none to another job of this decision. Then jobs that take
    GPUs wait for jobs that only leave some, these wait for none, and no cycle arises. Across decisions, later
    ones wait for earlier ones. A job that leaves GPUs of another type may leave them to any job if no job has
    those that it takes: then it waits for none.
    """
    previous = state_holders(state, job)
    if previous is None or job.has_outdated_spec or not (job.training or job.broken):
        return False  # a profiling run keeps no work: it breaks when its job is admitted
    if _shows_other_gpus(state, job, placement, previous):
        return False
    left = set(previous.surviving).difference(placement.gpus)
    taken = set(placement.gpus).difference(previous.surviving)
    others = (other for other in decided.placements if other.job_id != job.job_id)
    if left and taken and any(not left.isdisjoint(other.gpus) for other in others):
        return job.num_added_gpus > 0 and taken.isdisjoint(_held_by_others(state, job))
    return bool(placement.gpus) and bool(previous.surviving)


def _shows_other_gpus(state: PoolState, job: Job, placement: events.PlacedJob, before: PreviousGeneration) -> bool:
    """Whether a worker that stays would have to see other GPUs of its node than since its start.

    CUDA connects only those that it has found at its start (docs/adr/0115).
    """
    staying = set(nodes_of(before.surviving)).intersection(nodes_of(placement.gpus))
    separating = [node_id for node_id in staying if state.nodes[node_id].separates_gpus]
    shown = _shown_gpus(job, placement, switches=False) if separating else ()
    return any(_on(node_id, shown) != _on(node_id, job.shown_gpus) for node_id in separating)


def _shown_gpus(job: Job, placement: events.PlacedJob, *, switches: bool) -> tuple[GpuId, ...]:
    """The job's own GPUs; if it switches, also what workers see that leave, since they go on if the switch fails."""
    own = {*placement.gpus, *_kept_reserved_gpus(job, placement)}
    nodes = nodes_of(own)
    left = (gpu for gpu in job.shown_gpus if gpu.node_id not in nodes) if switches else ()
    return tuple(sorted(own.union(left)))


def _on(node_id: str, gpus: Iterable[GpuId]) -> list[GpuId]:
    return [gpu for gpu in gpus if gpu.node_id == node_id]


def _held_by_others(state: PoolState, job: Job) -> Iterator[GpuId]:
    """GPUs that workers of other jobs have."""
    for other in state.live_jobs.values():
        if other.job_id != job.job_id:
            yield from other.gpus
            if other.previous_generation is not None:
                yield from other.previous_generation.gpus


def _num_virtual_nodes(state: PoolState, job: Job) -> int:
    """A profiling run has those that are known by now. An admitted job keeps its own, and one that continues another
    those of that one: its bits depend on them."""
    is_open = job.phase is Phase.PROFILING and spec_of(job).continues is None
    return num_virtual_nodes(state, spec_of(job)) if is_open else job.num_virtual_nodes


def _micro_batch_size(state: PoolState, job: Job) -> int:
    """The size that earlier jobs of the profile found. A job that has started keeps its own: its bits depend on it."""
    if job.micro_batch_size is None or job.phase is Phase.PROFILING:
        return state.micro_batch_sizes.get(spec_of(job).measured_key, 0)
    return job.micro_batch_size


def _stopping_despite_switch(state: PoolState, job: Job) -> tuple[StoppingWorkers, ...]:
    """The stopping workers, also the joining ones of a current generation that never started.

    The next generation must wait for their end.
    """
    if job.previous_generation is None or job.previous_generation.generation == job.generation:
        return job.stopping
    return (*job.stopping, *workers_on(state, job.generation, job.gpus))

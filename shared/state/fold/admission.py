"""The fold of admission's decisions on submissions and quotes, and of the pool's settings. Part of `ledger_fold`."""

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import ProfileJob, SubmitJob
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.state.fold.job_changes import (
    with_demand,
    with_rejected_demand,
    with_replanned,
    with_usage,
    without_share,
)
from elasticflow.shared.state.fold.jobs import JobEnd, all_stopping, ended, scheduling_event, with_job
from elasticflow.shared.state.fold.profiles import configured_curves, num_virtual_nodes, with_profile
from elasticflow.shared.state.fold.profiling_runs import with_another_attempt
from elasticflow.shared.state.gpu_types import spec_on
from elasticflow.shared.state.job import Job, Phase, identity_of
from elasticflow.shared.state.pool import PoolState, QuoteReservation, Usage

MAX_EARLIER_IDENTITIES = 16


def configured(state: PoolState, event: events.PoolConfigured, sequence: int) -> PoolState:
    unreadable = state.unreadable_plan_sequence
    state = fast_replace(
        configured_curves(state, event),
        config=event.config,
        configured=True,
        unreadable_plan_sequence=unreadable if unreadable > event.config.skip_plan_up_to else 0,
    )
    return scheduling_event(state, sequence)


def accepted(state: PoolState, event: events.ProfileRequested | events.JobAdmitted, sequence: int) -> PoolState:
    known = state.job(event.job_id)
    profiling = isinstance(event, events.ProfileRequested)
    was_waiting = known is not None and known.phase is Phase.PROFILING and not profiling
    if known is not None and not was_waiting and not is_resubmission(known, event):
        return state
    is_new = known is None or not known.live
    # the allocator decides on which type a profiling run begins
    spec = spec_on(state, event.spec, "" if isinstance(event, events.ProfileRequested) else event.gpu_type)
    job = Job(
        job_id=event.job_id,
        tenant=event.tenant,
        spec=spec,
        submitted_spec=event.spec if event.spec != spec else None,
        phase=Phase.PROFILING if profiling else Phase.ADMITTED,
        decided_at_s=event.at_s,
        decided_sequence=sequence,
        identity=_identity(known, event, sequence),
        replaces=_replaces(known, event),
        earlier_identities=_earlier_identities(known),
        admitted_at_s=None if profiling else event.at_s,
        deadline_s=event.deadline_s,
        least_gpu_seconds=0.0 if isinstance(event, events.ProfileRequested) else event.least_gpu_seconds,
        profile_only=isinstance(event, events.ProfileRequested) and event.profile_only,
        minimum_satisfactory_share=() if profiling else event.minimum_satisfactory_share,
        planned_share=() if profiling else event.minimum_satisfactory_share,
        pinned=isinstance(event, events.JobAdmitted) and event.pinned,
    )
    if known is not None:  # remaining workers of a profiling run are fenced like any older generation
        # Reports on a job that was admitted name its last generation also before that is placed.
        generation = known.generation + (is_new and bool(event.replaces))
        job = fast_replace(
            job,
            num_gpus=known.num_gpus,
            generation=generation,
            void_generation=generation if is_new else known.void_generation,
            gpus=known.gpus,
            placed_at_s=0.0 if is_new else known.placed_at_s,
            stopping=known.stopping,
            broken=bool(known.gpus),
            warnings=known.warnings if was_waiting else (),
        )
    source = _continued(state, known, event.spec)
    if source is not None:
        generation = max(job.generation, source.generation)
        job = fast_replace(job, generation=generation, num_virtual_nodes=source.num_virtual_nodes)
        if is_new:
            job = fast_replace(job, void_generation=generation)
    if not profiling:
        job = fast_replace(job, iteration=spec.first_iteration, checkpoint_iteration=spec.first_iteration)
    if profiling:
        state = with_another_attempt(state, event.spec)
    else:
        used = Usage.on(event.gpu_type, event.gpu_seconds, event.at_s)
        state = with_usage(with_replanned(without_quote(state, event.job_id), event), event.tenant, used)
        state = with_demand(state, event)
    if is_new and known is not None:
        state = fast_replace(state, ended_jobs=state.ended_jobs.delete(event.job_id))
    if is_new and event.job_id in state.num_gpus_by_job:
        state = without_share(state, event.job_id)
    state = with_profile(state, spec)
    if not profiling and source is None:
        job = fast_replace(job, num_virtual_nodes=num_virtual_nodes(state, spec))
    return scheduling_event(with_job(state, job), sequence)


def _identity(
    known: Job | None, event: events.ProfileRequested | events.JobAdmitted | events.JobRejected, sequence: int
) -> str:
    """That of the profiling run, if this decides after it."""
    if known is not None and known.phase is Phase.PROFILING:
        return known.identity
    return identity_of(event.tenant, event.job_id, sequence, event.at_s)


def _continued(state: PoolState, known: Job | None, spec: JobSpec) -> Job | None:
    """The job that one with this specification continues: its checkpoint is that of an earlier generation. Once its
    speed is measured, the job itself has what counts of it. known: the job that has the id."""
    if spec.continues is None:
        return None
    if known is not None and known.live:
        return known
    source = state.job(spec.continues.job_id)
    return source if source is not None and source.identity == spec.continues.identity else None


def _replaces(known: Job | None, event: events.ProfileRequested | events.JobAdmitted | events.JobRejected) -> str:
    return known.replaces if known is not None and known.live else event.replaces


def _earlier_identities(known: Job | None) -> tuple[str, ...]:
    if known is None or known.live:
        return () if known is None else known.earlier_identities
    return (*known.earlier_identities, known.identity)[-MAX_EARLIER_IDENTITIES:]


def is_resubmission(
    known: Job,
    other: SubmitJob | ProfileJob | events.ProfileRequested | events.JobAdmitted | events.JobRejected,
) -> bool:
    """Another job under the id of an ended one, which the command names by its identity (docs/adr/0114).

    Under the id of a rejected one also without: a rejection is final, so admission decides on the other job anew. But
    not if that had taken the id of an earlier job: the command may be the one of that job, which comes late.
    """
    if not isinstance(other, ProfileJob) and other.replaces:
        return not known.live and (known.identity, known.tenant) == (other.replaces, other.tenant)
    submitted = known.submitted_spec or known.spec
    is_free = known.phase is Phase.REJECTED and not known.replaces
    return is_free and (submitted, known.tenant) != (other.spec, other.tenant)


def quote_reserved(state: PoolState, event: events.QuoteReserved, sequence: int) -> PoolState:
    """Add the reservation and drop expired ones, so that at most those of the longest reservation time are kept."""
    quote = QuoteReservation(
        job_id=event.job_id,
        tenant=event.tenant,
        spec=event.spec,
        deadline_s=event.deadline_s,
        schedule=event.schedule,
        gpu_seconds=event.gpu_seconds,
        at_s=event.at_s,
        until_s=event.until_s,
    )
    quotes = state.quote_reservations
    for job_id in [other.job_id for other in quotes.values() if other.until_s <= event.at_s]:
        quotes = quotes.delete(job_id)
    state = with_profile(with_replanned(state, event), event.spec)
    state = fast_replace(state, quote_reservations=quotes.set(event.job_id, quote))
    return scheduling_event(state, sequence)


def without_quote(state: PoolState, job_id: str) -> PoolState:
    """Remove the reservation of a submitted job: its schedule now belongs to the job."""
    if job_id not in state.quote_reservations:
        return state
    return fast_replace(state, quote_reservations=state.quote_reservations.delete(job_id))


def rejected(state: PoolState, event: events.JobRejected, sequence: int) -> PoolState:
    known = state.job(event.job_id)
    if event.reason == "duplicate":
        return state
    if known is not None and known.phase is not Phase.PROFILING:
        if not is_resubmission(known, event):
            return state
        if known.phase is not Phase.REJECTED:  # the ended job keeps its id, its files and its logs
            return with_rejected_demand(with_demand(state, event), event)
    spec = None if event.spec is None else spec_on(state, event.spec, event.gpu_type)
    job = Job(
        job_id=event.job_id,
        tenant=event.tenant,
        spec=spec,
        submitted_spec=event.spec if event.spec != spec else None,
        phase=Phase.PROFILING,
        decided_at_s=event.at_s,
        decided_sequence=sequence,
        identity=_identity(known, event, sequence),
        replaces=_replaces(known, event),
        earlier_identities=_earlier_identities(known),
        deadline_s=event.deadline_s,
        generation=known.generation if known else 0,
        earliest_deadline_s=event.earliest_deadline_s,
        offers=event.offers,
        least_gpu_seconds=event.least_gpu_seconds,
        stopping=all_stopping(state, known) if known else (),
        rejection=event.reason,
    )
    state = with_rejected_demand(with_demand(state, event), event)
    after = ended(state, job, JobEnd(Phase.REJECTED, event.at_s, event.explanation), sequence)
    if known is not None and known.live:
        return after
    # A job that was never live frees no GPUs: the allocator need not decide again.
    return fast_replace(after, scheduling_event_sequence=state.scheduling_event_sequence)

"""The fold of admission's decisions and of the pool's settings. Part of `ledger_fold`."""

from collections.abc import Mapping
from dataclasses import replace

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import ProfileJob, SubmitJob
from elasticflow.shared.messages.gpus import GpuLimits, GpuRange
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.state.fold.jobs import JobEnd, all_stopping, ended, scheduling_event, with_job
from elasticflow.shared.state.fold.plan import with_another_attempt
from elasticflow.shared.state.fold.profiles import configured_curves, num_virtual_nodes, with_profile
from elasticflow.shared.state.gpu_types import spec_on, submitted_spec
from elasticflow.shared.state.job import Job, Phase, identity_of
from elasticflow.shared.state.pool import Demand, PoolState, QuoteReservation, Usage, spec_of

# --- job changes --------------------------------------------------------------------------------------
# The fold of admission's decisions on admitted jobs. Part of `ledger_fold`.
#
# An operator's GPU limits narrow the range in the job's spec while they are in force, so planning sees only a range.

# --- usage and demand ----------------------------------------------------------------------------------
# What each tenant was promised, for its quota, and what all tenants asked for, for the price.

MAX_USAGES = 1_440  # entries of one tenant within its longest window; one more may exist


def with_usage(state: PoolState, tenant: str, newest: Usage) -> PoolState:
    """Add what a promise uses of the tenant's quota."""
    usage = _added(state.usage.get(tenant, ()), newest, state.config.quota(tenant).longest_window_s)
    return fast_replace(state, usage=state.usage.set(tenant, usage))


def _added(usage: tuple[Usage, ...], newest: Usage, window_s: float) -> tuple[Usage, ...]:
    """The usage with one entry more, and without entries that are older than a window.

    Usage within one interval shares an entry with the time of the last one. The interval is a minute, or longer in
    proportion if the window exceeds a day. So at most 1,441 entries exist.
    """
    interval_s = window_s / MAX_USAGES
    num_old = next((n for n, used in enumerate(usage) if used.at_s > newest.at_s - window_s), len(usage))
    if usage and newest.at_s // interval_s <= usage[-1].at_s // interval_s:
        last = usage[-1]
        newest = Usage(
            at_s=max(last.at_s, newest.at_s),
            gpu_seconds=last.gpu_seconds + newest.gpu_seconds,
            num_jobs=last.num_jobs + newest.num_jobs,
            on_other_types=_sum(last.on_other_types, newest.on_other_types),
        )
        usage = usage[:-1]
    return (*usage[num_old:], newest)


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {each: one.get(each, 0.0) + other.get(each, 0.0) for each in sorted({*one, *other})}


def with_demand(state: PoolState, event: events.JobAdmitted | events.JobRejected) -> PoolState:
    if event.deadline_s is None:
        return state
    window_s = max(event.deadline_s - state.config.deadline_slack_s - event.at_s, 0.0)
    least = {event.gpu_type: event.least_gpu_seconds}
    if isinstance(event, events.JobRejected):
        least = {**event.least_elsewhere, **least}
    for gpu_type, least_gpu_seconds in least.items():
        if least_gpu_seconds:
            state = _with_demand_on(state, gpu_type, event.at_s, least_gpu_seconds, window_s)
    return state


def _with_demand_on(state: PoolState, gpu_type: str, at_s: float, gpu_seconds: float, window_s: float) -> PoolState:
    if not gpu_type:
        return fast_replace(state, demand=state.demand.added(at_s, gpu_seconds, window_s))
    of_type = state.demand_by_type.get(gpu_type, Demand()).added(at_s, gpu_seconds, window_s)
    return fast_replace(state, demand_by_type=state.demand_by_type.set(gpu_type, of_type))


def with_rejected_demand(state: PoolState, event: events.JobRejected) -> PoolState:
    """Add to what a tenant with a quota asked for without a promise: it bounds the demand that counts."""
    quota = state.config.quota(event.tenant)
    if not event.least_gpu_seconds or quota == TenantQuota():
        return state
    newest = Usage(at_s=event.at_s, gpu_seconds=event.least_gpu_seconds)
    before = state.rejected_demand.get(event.tenant, ())
    after = _added(before, newest, quota.longest_window_s)
    return fast_replace(state, rejected_demand=state.rejected_demand.set(event.tenant, after))


# --- job changes ---------------------------------------------------------------------------------------


def amended(state: PoolState, job: Job, event: events.JobAmended, sequence: int) -> PoolState:
    """Workers learn of another number of iterations in their next generation, which placement starts at once."""
    if job.phase is not Phase.ADMITTED:
        return state
    spec = spec_of(job)
    if event.max_iterations != spec.max_iterations:
        job = fast_replace(
            job,
            spec=replace(spec, max_iterations=event.max_iterations),
            submitted_spec=job.submitted_spec or spec,
            has_outdated_spec=bool(job.gpus),
        )
    if event.gpu_type is not None:
        state, job = _moved(state, job, event.gpu_type, sequence)
    job = fast_replace(
        job,
        deadline_s=event.deadline_s,
        minimum_satisfactory_share=event.minimum_satisfactory_share,
        planned_share=event.minimum_satisfactory_share,
        at_risk=False,
        earliest_deadline_s=None,
    )
    used = Usage.on(spec_of(job).gpu_type, event.gpu_seconds, event.at_s, num_jobs=0)
    state = with_usage(with_replanned(state, event), job.tenant, used)
    return scheduling_event(with_job(state, job), sequence)


def with_replanned(
    state: PoolState,
    event: events.JobAdmitted | events.QuoteReserved | events.JobAmended | events.GpuLimitsSet | events.GpuTypeChanged,
) -> PoolState:
    if not event.replanned:
        return state
    live_jobs = state.live_jobs.mutate()
    for job_id, schedule in event.replanned.items():
        other = live_jobs.get(job_id)
        if other is not None:
            live_jobs[job_id] = fast_replace(other, planned_share=schedule)
    return fast_replace(state, live_jobs=live_jobs.finish())


def without_share(state: PoolState, job_id: str) -> PoolState:
    """Remove the share that the last allocation gave to a job of this id: for GPUs that it no longer trains on."""
    shares = {name: num_gpus for name, num_gpus in state.num_gpus_by_job.items() if name != job_id}
    return fast_replace(state, num_gpus_by_job=shares)


# --- GPU limits -----------------------------------------------------------------------------------------


def submitted_range(job: Job) -> GpuRange:
    """The range that the user gave."""
    return (job.submitted_spec or spec_of(job)).gpu_range


def with_gpu_range(job: Job, gpu_range: GpuRange) -> JobSpec:
    """The job's spec with this range."""
    return replace(spec_of(job), min_gpus=gpu_range.least, max_gpus=gpu_range.most)


def gpu_limits_set(state: PoolState, job: Job, event: events.GpuLimitsSet, sequence: int) -> PoolState:
    limits = GpuLimits(
        min_gpus=event.min_gpus, max_gpus=event.max_gpus, until_s=event.until_s, without_gpus=event.without_gpus
    )
    gpu_range = submitted_range(job).intersection(limits.gpu_range)
    if job.phase is not Phase.ADMITTED or gpu_range.is_empty:
        return state
    job = fast_replace(
        job,
        spec=with_gpu_range(job, gpu_range),
        submitted_spec=job.submitted_spec or spec_of(job),
        minimum_satisfactory_share=event.minimum_satisfactory_share,
        planned_share=event.minimum_satisfactory_share,
    )
    used = Usage.on(spec_of(job).gpu_type, event.gpu_seconds, event.at_s, num_jobs=0)
    state = with_usage(with_replanned(state, event), job.tenant, used)
    state = fast_replace(with_profile(state, spec_of(job)), gpu_limits=state.gpu_limits.set(job.job_id, limits))
    return scheduling_event(with_job(state, job), sequence)


def gpu_limits_cleared(state: PoolState, job: Job, sequence: int) -> PoolState:
    """Restore the user's range. The schedule stays: it keeps the promise with more sizes as well."""
    if job.job_id not in state.gpu_limits:
        return state
    spec = job.submitted_spec or spec_of(job)
    job = fast_replace(
        job,
        spec=replace(spec_of(job), min_gpus=spec.min_gpus, max_gpus=spec.max_gpus),
        at_risk=False,
        earliest_deadline_s=None,
    )
    state = fast_replace(state, gpu_limits=state.gpu_limits.delete(job.job_id))
    return scheduling_event(with_job(with_profile(state, spec_of(job)), job), sequence)


# --- GPU types ------------------------------------------------------------------------------------------


def gpu_type_changed(state: PoolState, job: Job, event: events.GpuTypeChanged, sequence: int) -> PoolState:
    """The next generation has GPUs of the other type. Until it is placed, the workers train on those that they have."""
    if job.phase is not Phase.ADMITTED or spec_on(state, spec_of(job), event.gpu_type) is job.spec:
        return state
    state, job = _moved(with_replanned(state, event), job, event.gpu_type, sequence)
    job = fast_replace(
        job,
        minimum_satisfactory_share=event.minimum_satisfactory_share,
        planned_share=event.minimum_satisfactory_share,
        at_risk=False,
        earliest_deadline_s=None,
    )
    return scheduling_event(with_job(state, job), sequence)


def _moved(state: PoolState, job: Job, gpu_type: str, sequence: int) -> tuple[PoolState, Job]:
    """The job on another type, without a share there. The GPUs on which it trains are of another type now."""
    spec = spec_on(state, spec_of(job), gpu_type)
    moved = fast_replace(
        job,
        spec=spec,
        submitted_spec=submitted_spec(job),
        decided_sequence=sequence,
        num_gpus=0,
        num_added_gpus=len(job.gpus),
        reserved_gpus=(),
        predicted_speedup=0.0,
        gpu_type_kept_at_s=None,
        gpu_type_kept_sequence=0,
    )
    return without_share(with_profile(state, spec), job.job_id), moved


def gpu_type_kept(state: PoolState, job: Job, event: events.GpuTypeKept, sequence: int) -> PoolState:
    return with_job(state, fast_replace(job, gpu_type_kept_at_s=event.at_s, gpu_type_kept_sequence=sequence))


# --- admission ----------------------------------------------------------------------------------------
# The fold of admission's decisions on submissions and quotes, and of the pool's settings. Part of `ledger_fold`.

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

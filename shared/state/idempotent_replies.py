"""Replies to commands that repeat others: the earlier decision, rebuilt from the state."""

from collections.abc import Mapping
from typing import Any, Literal

from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import (
    AmendJob,
    CancelJob,
    CancelLoad,
    Command,
    LoadCommand,
    OpenLoad,
    ProfileJob,
    RequestCheckpoint,
    ReserveQuote,
    SealLoad,
    SetGpuLimits,
    SubmitJob,
    id_of,
)
from elasticflow.shared.messages.gpus import GpuLimits, segments
from elasticflow.shared.state.gpu_types import shown_type, spec_on, submitted_spec
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.load import Load, LoadPhase
from elasticflow.shared.state.pool import PoolState, QuoteReservation, spec_of

# the events by which admission answers each command
ANSWERS: Mapping[type[Command], tuple[type[Any], ...]] = {
    SubmitJob: (events.ProfileRequested, events.JobAdmitted, events.JobRejected),
    ProfileJob: (events.ProfileRequested, events.JobProfiled, events.JobRejected),
    CancelJob: (events.JobCancelled, events.CancelRejected),
    ReserveQuote: (events.QuoteReserved, events.QuoteRejected),
    AmendJob: (events.JobAmended, events.AmendRejected),
    SetGpuLimits: (events.GpuLimitsSet, events.GpuLimitsRejected, events.GpuLimitsCleared),
    RequestCheckpoint: (events.CheckpointRequested, events.CheckpointUpToDate, events.CheckpointRejected),
    OpenLoad: (events.LoadOpened, events.LoadRejected),
    SealLoad: (events.LoadSealed, events.SealRejected),
    CancelLoad: (events.LoadCancelled, events.CancelLoadRejected),
}


def is_answer(event: events.PlanEvent, command: Command) -> bool:
    """Whether this event is the answer to this command, or to another of its kind on the same job."""
    kinds = ANSWERS[type(command)]
    return isinstance(event, kinds) and id_of(event) == id_of(command)


def is_submission_of(command: SubmitJob | ProfileJob, job: Job) -> bool:
    """Whether the command submits just this job."""
    submitted = (job.submitted_spec or job.spec, job.tenant, job.profile_only)
    return submitted == (command.spec, command.tenant, isinstance(command, ProfileJob))


def idempotent_reply(state: PoolState, command: Command) -> events.AdmissionEvent | events.JobFailed | None:
    """The reply to a command that changes nothing, because an equal one did; None if the state has forgotten that.

    None too about a job, load or quote of another tenant: no command changes those.
    """
    if isinstance(command, OpenLoad | SealLoad | CancelLoad):
        load = state.loads.get(command.load_id)
        return _of_load(load, command) if load is not None and load.tenant == command.tenant else None
    quote = state.quote_reservations.get(command.job_id)
    if isinstance(command, ReserveQuote) and quote is not None and quote.tenant == command.tenant:
        return _quote_reserved(state, quote)
    job, limits = state.job(command.job_id), state.gpu_limits.get(command.job_id)
    if job is None or job.tenant != command.tenant:
        return None
    if isinstance(command, SetGpuLimits) and limits is not None:
        return _gpu_limits_set(job, limits)
    return outcome(state, job)


def _of_load(load: Load, command: LoadCommand) -> events.LoadDecision:
    match command:
        case OpenLoad() if load.phase is not LoadPhase.CANCELLED:
            return events.LoadOpened(
                load_id=load.load_id,
                tenant=load.tenant,
                spec=load.spec,
                useful_share=load.useful_share,
                at_s=load.opened_at_s,
            )
        case SealLoad(num_tasks=num_tasks):
            return events.LoadSealed(
                load_id=load.load_id, num_tasks=num_tasks, at_s=load.sealed_at_s or load.opened_at_s
            )
        case OpenLoad() | CancelLoad():
            return events.LoadCancelled(
                load_id=load.load_id, reason=load.explanation, at_s=load.ended_at_s or load.opened_at_s
            )


def _quote_reserved(state: PoolState, quote: QuoteReservation) -> events.QuoteReserved:
    return events.QuoteReserved(
        job_id=quote.job_id,
        tenant=quote.tenant,
        spec=quote.spec,
        deadline_s=quote.deadline_s,
        schedule=quote.schedule,
        gpu_seconds=quote.gpu_seconds,
        until_s=quote.until_s,
        gpu_type=shown_type(state, quote.spec.gpu_type),
        at_s=quote.at_s,
    )


def _gpu_limits_set(job: Job, limits: GpuLimits) -> events.GpuLimitsSet:
    return events.GpuLimitsSet(
        job_id=job.job_id,
        min_gpus=limits.min_gpus,
        max_gpus=limits.max_gpus,
        until_s=limits.until_s,
        without_gpus=limits.without_gpus,
        minimum_satisfactory_share=job.minimum_satisfactory_share,
        at_s=job.decided_at_s,
    )


def waits_for(state: PoolState) -> Literal["profile", "gpus"]:
    """What an undecided command waits for."""
    return "profile" if state.num_gpus else "gpus"


def outcome(state: PoolState, job: Job) -> events.AdmissionEvent | events.JobFailed:
    """The last decision on this job: admission's, or the job's end if it failed or was cancelled."""
    match job.phase:
        case Phase.PROFILING:
            return events.ProfileRequested(
                job_id=job.job_id,
                tenant=job.tenant,
                spec=submitted_spec(job),
                deadline_s=job.deadline_s,
                profile_only=job.profile_only,
                waits_for=waits_for(state),
                at_s=job.decided_at_s,
            )
        case Phase.REJECTED:
            return events.JobRejected(
                job_id=job.job_id,
                tenant=job.tenant,
                spec=job.submitted_spec or job.spec,
                reason=job.rejection or "invalid",
                explanation=job.explanation,
                deadline_s=job.deadline_s,
                earliest_deadline_s=job.earliest_deadline_s,
                least_gpu_seconds=job.least_gpu_seconds,
                offers=job.offers,
                gpu_type=job.spec.gpu_type if job.spec is not None else "",
                at_s=job.decided_at_s,
            )
        case Phase.FAILED:
            return events.JobFailed(
                job_id=job.job_id,
                generation=job.generation,
                error=job.explanation,
                traceback=job.traceback,
                last_lines=job.last_lines,
                iteration=job.iteration or None,
                at_s=job.ended_at_s or job.decided_at_s,
            )
        case Phase.PROFILED:
            submitted = submitted_spec(job)  # the last run may have measured another type than the one it names
            curve = state.curves.get(spec_on(state, submitted, submitted.gpu_type).profile_key)
            return events.JobProfiled(
                job_id=job.job_id,
                iterations_per_s={} if curve is None else curve.iterations_per_s,
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
                spec=submitted_spec(job),
                deadline_s=job.deadline_s,
                minimum_satisfactory_share=job.minimum_satisfactory_share,
                gpu_seconds=sum(s.num_gpus * (s.end_s - s.start_s) for s in segments(job.minimum_satisfactory_share)),
                least_gpu_seconds=job.least_gpu_seconds,
                gpu_type=spec_of(job).gpu_type,
                at_s=job.decided_at_s,
            )


# --- reply recipient -----------------------------------------------------------------------------------
# To which tenant a reply goes: an id does not tell, because several tenants may send commands about one job.


def recipient(state: PoolState, reply: object) -> str:
    """The tenant that the reply names, else that of its job or load; "" if the state knows neither.

    Rejections name the tenant of their command. All other replies without a tenant are about a job of that tenant.
    """
    if tenant := getattr(reply, "tenant", ""):
        return tenant
    about = state.loads.get(id_of(reply)) if hasattr(reply, "load_id") else state.job(id_of(reply))
    return "" if about is None else about.tenant

"""What was decided on a job, told again to whoever asks again."""

from typing import Literal

from shared.messages import events
from shared.messages.cluster import segments
from shared.messages.commands import Command, HoldQuote, ScaleJob
from shared.messages.gpu_range import GpuBound
from shared.messages.job_state import Job, Phase
from shared.messages.pool_state import HeldQuote, PoolState, spec_of


def told_before(state: PoolState, wish: Command) -> events.AdmissionEvent | events.JobFailed:
    """What was said to a wish that came again, so that nothing was left to decide."""
    quote = state.held_quotes.get(wish.job_id)
    if isinstance(wish, HoldQuote) and quote is not None:
        return _held(quote)
    job, bound = state.job(wish.job_id), state.bounds.get(wish.job_id)
    assert job is not None, wish.job_id
    if isinstance(wish, ScaleJob) and bound is not None:
        return _scaled(job, bound)
    return outcome(state, job)


def _held(quote: HeldQuote) -> events.QuoteHeld:
    return events.QuoteHeld(
        job_id=quote.job_id,
        tenant=quote.tenant,
        spec=quote.spec,
        deadline_s=quote.deadline_s,
        schedule=quote.schedule,
        gpu_seconds=quote.gpu_seconds,
        until_s=quote.until_s,
        at_s=quote.at_s,
    )


def _scaled(job: Job, bound: GpuBound) -> events.JobScaled:
    return events.JobScaled(
        job_id=job.job_id,
        min_gpus=bound.min_gpus,
        max_gpus=bound.max_gpus,
        until_s=bound.until_s,
        minimum_satisfactory_share=job.minimum_satisfactory_share,
        at_s=job.decided_at_s,
    )


def waits_for(state: PoolState) -> Literal["profile", "gpus"]:
    """Why there is no decision yet on a wish that is none of those that can be decided at once."""
    return "profile" if state.num_gpus else "gpus"


def outcome(state: PoolState, job: Job) -> events.AdmissionEvent | events.JobFailed:
    """What was said of this job, told again to whoever asks again: admission's word, or its end if that was none
    that its user had hoped for."""
    match job.phase:
        case Phase.PROFILING:
            return events.ProfileRequested(
                job_id=job.job_id,
                tenant=job.tenant,
                spec=spec_of(job),
                deadline_s=job.deadline_s,
                only_measured=job.only_measured,
                waits_for=waits_for(state),
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
                least_gpu_seconds=job.least_gpu_seconds,
                offers=job.offers,
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
        case Phase.MEASURED:
            curve = state.curves.get(spec_of(job).profile_key)
            return events.JobMeasured(
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
                spec=job.submitted or spec_of(job),
                deadline_s=job.deadline_s,
                minimum_satisfactory_share=job.minimum_satisfactory_share,
                gpu_seconds=sum(
                    s.num_gpus * (s.end_s - s.start_s) for s in segments(job.minimum_satisfactory_share)
                ),
                least_gpu_seconds=job.least_gpu_seconds,
                at_s=job.decided_at_s,
            )

"""An amendment that the job's own GPU type cannot keep is decided on the other types that its user accepts."""

from dataclasses import dataclass, replace

from elasticflow.services.admission.commands.amend import Terms, amend, obstacle
from elasticflow.services.admission.commands.replan import objection_to_more
from elasticflow.services.admission.commands.rest_on_type import rest_on_type
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.services.admission.sessions_by_type import SessionsByType
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.commands import AmendJob
from elasticflow.shared.messages.events import AmendRejected, JobAmended
from elasticflow.shared.scheduling.admission.proposal import Proposal
from elasticflow.shared.scheduling.jobs.job_table import gpu_seconds
from elasticflow.shared.scheduling.jobs.planned_pool import flat
from elasticflow.shared.state.gpu_types import possible_types, submitted_spec, type_name
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """What keeps the new terms on another type. added_gpu_seconds: beyond those of the schedule that the job has."""

    session: AdmissionSession
    cost: tuple[float, float]
    proposal: Proposal
    added_gpu_seconds: float


def amend_on_types(sessions: SessionsByType, command: AmendJob) -> SessionsByType:
    """Grant the amendment on the job's own type, else on the type where it displaces least."""
    job = sessions.state.live_jobs.get(command.job_id)
    if job is None or not job.promised or obstacle(job, command, sessions.whole.now_s) is not None:
        return sessions.on_job(command.job_id, lambda session: amend(session, command))
    own = spec_of(job).gpu_type
    others = [each for each in possible_types(sessions.state, submitted_spec(job)) if each != own]
    session = amend(sessions.by_type[own], command)
    (answer,) = session.events
    if not isinstance(answer, AmendRejected) or not others:
        return sessions.after_type(own, session)
    terms = Terms.of(job, command)
    found = {gpu_type: _on_type(sessions, job, terms, gpu_type) for gpu_type in others}
    moves = {gpu_type: each for gpu_type, each in found.items() if isinstance(each, _Move)}
    if not moves:
        reasons = (answer.explanation, *(why for why in found.values() if isinstance(why, str)))
        explanation = f"on {type_name(sessions.state, own)}: {'; '.join(reasons)}"
        return sessions.after_type(own, session, (replace(answer, explanation=explanation),))
    chosen = min(moves, key=lambda gpu_type: moves[gpu_type].cost)
    sessions = _moved(sessions, job, terms, chosen, moves[chosen])
    for gpu_type in (own, chosen):
        sessions = sessions.with_session(gpu_type, sessions.by_type[gpu_type].replanned())
    return sessions


def _on_type(sessions: SessionsByType, job: Job, terms: Terms, gpu_type: str) -> _Move | str:
    """The job with its new terms on another type, or why it cannot be there."""
    spec = replace(spec_of(job), max_iterations=terms.max_iterations)
    amended = fast_replace(job, spec=spec, deadline_s=terms.deadline_s)
    found = rest_on_type(sessions, amended, gpu_type, is_promised=True, is_displaced=False)
    if isinstance(found, str):
        return found
    assert found.proposal is not None, "a promise rests on a schedule"
    held = sessions.by_type[spec_of(job).gpu_type].with_plan().plan.schedules.get(job.job_id, ())
    added = max(gpu_seconds(found.proposal.schedule) - gpu_seconds(held), 0.0)
    why = objection_to_more(found.session, job, added)
    if why is not None:
        return f"on {type_name(sessions.state, gpu_type)}: {why}"
    return _Move(session=found.session, cost=found.cost, proposal=found.proposal, added_gpu_seconds=added)


def _moved(sessions: SessionsByType, job: Job, terms: Terms, gpu_type: str, move: _Move) -> SessionsByType:
    session, replanned = move.session.accept(move.proposal)
    amended = JobAmended(
        job_id=job.job_id,
        deadline_s=terms.deadline_s,
        max_iterations=terms.max_iterations,
        gpu_type=gpu_type,
        minimum_satisfactory_share=flat(move.proposal.schedule),
        gpu_seconds=move.added_gpu_seconds,
        replanned=replanned,
        at_s=session.now_s,
    )
    return sessions.after_type(gpu_type, session, (amended,))

"""The rest of an admitted job on another GPU type than its own: what it costs there, and what keeps its promise."""

from dataclasses import dataclass, replace

from elasticflow.services.admission.commands.decide_on_types import cost_on_type
from elasticflow.services.admission.commands.submission import Submission
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.services.admission.sessions_by_type import SessionsByType
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.admission.proposal import Proposal
from elasticflow.shared.scheduling.availability.earliest_completion import earliest_deadline_around_s
from elasticflow.shared.scheduling.jobs.scheduler_view import arriving_job, known_curve
from elasticflow.shared.state.gpu_types import spec_on, type_name
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The session that plans the job on another type, what it costs others there, and what keeps its promise."""

    session: AdmissionSession
    cost: tuple[float, float]
    proposal: Proposal | None = None  # None: nothing is promised


def rest_on_type(
    sessions: SessionsByType, job: Job, gpu_type: str, *, is_promised: bool, is_displaced: bool
) -> Alternative | str:
    """The rest of the job on another type, or why it cannot be there.

    is_displaced: its own type has failed. Then it pays no price, and uses the GPUs that are kept for failures.
    """
    session, name = sessions.ready(gpu_type, spec_of(job)), type_name(sessions.state, gpu_type)
    spec = replace(
        spec_on(sessions.state, spec_of(job), gpu_type),
        max_iterations=max(spec_of(job).max_iterations - job.iteration, 1),
        job_class=JobClass.SLO if is_promised else JobClass.BEST_EFFORT,
    )
    curve = known_curve(session.state, spec, curves=session.cache.curves)
    if curve is None:
        return f"its speed on {name} is unknown, which `eflow profile` measures"
    rest = Submission(job_id=job.job_id, tenant=job.tenant, spec=spec, deadline_s=job.deadline_s)
    session, cost = cost_on_type(session, rest)
    if not is_promised:
        return Alternative(session=session, cost=cost)
    planned = session.with_plan()
    arriving = arriving_job(planned.planned_state, job.job_id, spec, curve, job.deadline_s)
    if not is_displaced and planned.with_pricing().is_overpriced(arriving):
        return f"on {name} it would displace more than it is worth"
    planned, proposal = planned.propose(arriving)
    if proposal is None and is_displaced:
        arriving = replace(arriving, reserve_nodes=0)
        planned, proposal = _on_the_reserve(session).propose(arriving)
    if proposal is not None:
        return Alternative(session=planned, cost=cost, proposal=proposal)
    ends_s = earliest_deadline_around_s(planned.plan, arriving)
    when = "never" if ends_s is None else f"in {ends_s - session.now_s:.0f} s at the earliest"
    return f"beside the promises on {name} it would end {when}"


def _on_the_reserve(session: AdmissionSession) -> AdmissionSession:
    """The session with the GPUs of the type that are kept for failures: what has failed is of another type."""
    state = session.planned_state
    without_reserve = fast_replace(state, config=replace(state.config, reserve_nodes=0))
    return fast_replace(session, planned_state=without_reserve, planned=None, search=None, rejected=())

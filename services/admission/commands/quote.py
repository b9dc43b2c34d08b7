"""A quote is the earliest deadline that would be promised now. It reserves nothing."""

import math
from dataclasses import replace

from elasticflow.services.admission.rejection.text import no_deadline, problems_of, why_no_type, why_unquotable
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.messages.commands import QuoteDeadline, owned
from elasticflow.shared.messages.events import DeadlineQuoted
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.job_table import gpu_seconds
from elasticflow.shared.scheduling.jobs.planned_pool import flat
from elasticflow.shared.scheduling.jobs.scheduler_view import arriving_job, known_curve, promised_deadline_s
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.owned_profiles import with_own_curves
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.gpu_types import part_of_type, possible_types, shown_type, spec_on, type_name
from elasticflow.shared.state.pool import PoolState


def quote(
    state: PoolState, question: QuoteDeadline, now_s: float, cache: PlanningCache | None = None
) -> DeadlineQuoted:
    """The earliest deadline that this job would be promised now, on any GPU type, or why there is none."""
    question, cache = owned(question), PlanningCache() if cache is None else cache
    state = with_own_curves(state, question.spec)
    possible = possible_types(state, question.spec)
    if state.num_gpus and not possible:
        return DeadlineQuoted(earliest_deadline_s=None, explanation=why_no_type(state, question.spec), at_s=now_s)
    answers = {
        gpu_type: _quote_on_type(
            part_of_type(state, gpu_type),
            replace(question, spec=spec_on(state, question.spec, gpu_type)),
            now_s,
            cache.of_type(gpu_type),
        )
        for gpu_type in possible or [""]
    }
    best = min(answers.values(), key=lambda answer: answer.earliest_deadline_s or math.inf)
    if len(answers) == 1 or best.earliest_deadline_s is not None:
        return best
    why = (f"on {type_name(state, gpu_type)}: {answer.explanation}" for gpu_type, answer in answers.items())
    return replace(best, explanation="; ".join(why))


def _quote_on_type(state: PoolState, question: QuoteDeadline, now_s: float, cache: PlanningCache) -> DeadlineQuoted:
    spec, state = question.spec, with_profile(state, question.spec)
    session = AdmissionSession.start(state, now_s, cache)
    problems = problems_of(state, replace(spec, job_class=JobClass.BEST_EFFORT), now_s)
    curve = known_curve(state, spec, curves=session.cache.curves)
    if problems or curve is None:
        why = "; ".join(problems) or why_unquotable(state, spec)
        return DeadlineQuoted(earliest_deadline_s=None, explanation=why, at_s=now_s)
    job = arriving_job(state, "quote", spec, curve, math.inf)
    session = session.expecting_another().with_pricing().with_search()
    planned_s = session.earliest_deadline_s(job)
    if planned_s is None:
        return DeadlineQuoted(earliest_deadline_s=None, explanation=no_deadline(state), at_s=now_s)
    proposal = session.admission_search.propose(replace(job, deadline_s=planned_s))
    return DeadlineQuoted(
        earliest_deadline_s=promised_deadline_s(state, planned_s),
        gpu_seconds=gpu_seconds(proposal.schedule) if proposal else None,
        gpu_type=shown_type(state, spec.gpu_type),
        schedule=flat(proposal.schedule) if proposal else (),
        at_s=now_s,
    )

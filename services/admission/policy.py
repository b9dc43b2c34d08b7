"""Admission control: minimum satisfactory shares for all promises, or no promise.

What is promised is judged at the `desk`, why not is said in `refusals`, whom one would not serve in `rules`.
Source: ElasticFlow, section 4.1 and Algorithm 1.
"""

import math
from dataclasses import replace
from itertools import groupby

from services.admission.amendments import amend
from services.admission.bounds import ended_bounds, scale
from services.admission.cancellations import cancel
from services.admission.checkpoints import checkpoint
from services.admission.desk import Desk
from services.admission.quotes import hold
from services.admission.refusals import no_deadline, problems_of, why_unquotable
from shared.messages.commands import (
    AmendJob,
    CancelJob,
    CheckpointJob,
    Command,
    HoldQuote,
    ProfileJob,
    QuoteDeadline,
    ScaleJob,
    SubmitJob,
)
from shared.messages.events import AdmissionEvent, DeadlineQuoted
from shared.messages.fold_curves import with_range
from shared.messages.job import JobClass
from shared.messages.policy import planner
from shared.messages.pool_state import PoolState
from shared.scheduling.job_table import gpu_seconds
from shared.scheduling.outlook import known_curve, newcomer


def decide(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[AdmissionEvent, ...]:
    """Answer each wish in turn, each on what the ones before it left; then those that waited."""
    desk = Desk(state, now_s)
    for ended in ended_bounds(state, now_s):
        desk.answer(ended)
    for kind, together in groupby(commands, key=type):
        if kind is SubmitJob:
            for wish in desk.in_order([wish for wish in together if isinstance(wish, SubmitJob)]):
                desk.submit(wish)
        for command in together:
            if isinstance(command, SubmitJob | ProfileJob):
                desk.submit(command)
            else:
                desk.answer(_judged(desk, command))
    for job in desk.state.profiling_jobs:
        desk.decide_waiting(job)
    return tuple(desk.said)


def _judged(
    desk: Desk, command: CancelJob | HoldQuote | AmendJob | ScaleJob | CheckpointJob
) -> AdmissionEvent | None:
    """A wish that takes one step."""
    state, promises, now_s = desk.state, desk.promises, desk.now_s
    match command:
        case CancelJob():
            return cancel(state, command, now_s)
        case HoldQuote():
            return hold(state, promises, command, now_s)
        case AmendJob():
            return amend(state, promises, command, now_s)
        case ScaleJob():
            return scale(state, promises, command, now_s)
        case CheckpointJob():
            return checkpoint(state, command, now_s)


def wake_at_s(state: PoolState) -> float | None:
    """When the first job that still waits for a decision runs out of time, or an operator's bound ends."""
    overdue_s = (job.deadline_s for job in state.profiling_jobs)
    bounds_over_s = (bound.until_s for bound in state.bounds.values())
    return min((at_s for at_s in (*overdue_s, *bounds_over_s) if at_s is not None), default=None)


def quote(state: PoolState, question: QuoteDeadline, now_s: float) -> DeadlineQuoted:
    """The earliest deadline that this job would be promised now; nothing is reserved."""
    spec, state = question.spec, with_range(state, question.spec)
    desk = Desk(state, now_s)
    problems = problems_of(state, replace(spec, job_class=JobClass.BEST_EFFORT), now_s)
    curve = known_curve(state, spec)
    if problems or curve is None:
        why = "; ".join(problems) or why_unquotable(state, spec)
        return DeadlineQuoted(earliest_deadline_s=None, explanation=why, at_s=now_s)
    job = newcomer(state, "quote", spec, curve, math.inf)
    desk.promises.expect_another()
    planned_s = desk.promises.earliest_deadline_s(job)
    if planned_s is None:
        return DeadlineQuoted(earliest_deadline_s=None, explanation=no_deadline(state), at_s=now_s)
    proposal = desk.promises.room.propose(replace(job, deadline_s=planned_s))
    return DeadlineQuoted(
        earliest_deadline_s=planned_s + state.config.deadline_slack_s,
        gpu_seconds=gpu_seconds(proposal.schedule) if proposal else None,
        at_s=now_s,
    )


POLICY = planner("admission", decide, wake_at_s)

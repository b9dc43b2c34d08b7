"""Decisions on a pool with several GPU types: each command is answered by the session of its type.

Submissions and quotes that name no type are decided on each, and the best answer counts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import cast

from elasticflow.services.admission.commands.dispatch import answered
from elasticflow.services.admission.commands.gpu_limits import expired_gpu_limits
from elasticflow.services.admission.commands.quote_and_reserve import (
    is_reserved,
    obstacle,
    quote_rejected,
    reserve,
)
from elasticflow.services.admission.commands.submit import demand_of
from elasticflow.services.admission.commands.submit_by_type import decide_waiting_by_type, submit_by_type
from elasticflow.services.admission.quota_rules import Request, objection
from elasticflow.services.admission.rejection.text import why_no_type
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.services.admission.sessions_by_type import SessionsByType
from elasticflow.shared.messages.commands import (
    CancelLoad,
    Command,
    OpenLoad,
    ProfileJob,
    ReserveQuote,
    SealLoad,
    SubmitJob,
)
from elasticflow.shared.messages.events import AdmissionEvent, QuoteReserved
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.gpu_types import accepts, possible_types, spec_on, submitted_spec
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, profiling_jobs, spec_of


def names_types(state: PoolState, commands: Sequence[Command], waiting: Sequence[Job]) -> bool:
    """Whether a decision has to distinguish types: the pool has several, or a user names one."""
    asked = (
        command.spec.gpu_type for command in commands if isinstance(command, SubmitJob | ProfileJob | ReserveQuote)
    )
    return len(state.gpu_types) > 1 or any(asked) or any(submitted_spec(job).gpu_type for job in waiting)


def decide_by_type(
    state: PoolState, commands: tuple[Command, ...], now_s: float, cache: PlanningCache | None = None
) -> tuple[AdmissionEvent, ...]:
    """Answer each command on what the earlier ones left; then decide on the jobs that waited."""
    sessions = SessionsByType.start(state, now_s, cache)
    for cleared in expired_gpu_limits(state, now_s):
        sessions = _on_job(
            sessions, cleared.job_id, lambda session, event=cleared: session.with_event(event).replanned()
        )
    for kind, group in groupby(commands, key=type):
        together = tuple(group)
        if kind is SubmitJob:
            sessions, together = _in_order(sessions, cast(tuple[SubmitJob, ...], together))
        for command in together:
            sessions = _answered(sessions, command)
    for job in profiling_jobs(sessions.whole.state.live_jobs):
        sessions = decide_waiting_by_type(sessions, job)
    return sessions.whole.events


def _answered(sessions: SessionsByType, command: Command) -> SessionsByType:
    if isinstance(command, SubmitJob | ProfileJob):
        return submit_by_type(sessions, command)
    if isinstance(command, ReserveQuote):
        return _reserved(sessions, command)
    if isinstance(command, OpenLoad | SealLoad | CancelLoad):
        return sessions.after_whole(answered(sessions.whole, command))
    return _on_job(sessions, command.job_id, lambda session: answered(session, command))


def _on_job(
    sessions: SessionsByType, job_id: str, decide: Callable[[AdmissionSession], AdmissionSession]
) -> SessionsByType:
    """Decide in the session that plans the job; in that of the whole pool, which plans nothing, if it is not live."""
    job = sessions.whole.state.live_jobs.get(job_id)
    if job is None:
        return sessions.after_whole(decide(sessions.whole))
    gpu_type = spec_of(job).gpu_type
    return sessions.after_type(gpu_type, decide(sessions.by_type[gpu_type]))


def _in_order(sessions: SessionsByType, commands: tuple[SubmitJob, ...]) -> tuple[SessionsByType, Sequence[SubmitJob]]:
    """Submissions that came together: each counts as demand on each type on which it may run."""
    state, least = sessions.whole.state, dict[int, float]()
    new = {number: each for number, each in enumerate(commands) if state.job(each.job_id) is None}
    for gpu_type, session in sessions.by_type.items():
        demand = {
            number: demand_of(session, replace(command, spec=spec_on(state, command.spec, gpu_type)))
            for number, command in new.items()
            if gpu_type in possible_types(state, command.spec)
        }
        asked = {number: each for number, each in demand.items() if each[0] > 0}
        sessions = sessions.with_session(gpu_type, session.expecting(tuple(asked.values())))
        least |= {number: min(each[0], least.get(number, math.inf)) for number, each in asked.items()}
    if not sessions.whole.is_selective:
        return sessions, commands
    order = sorted(range(len(commands)), key=lambda number: least.get(number, 0.0))
    return sessions, [commands[number] for number in order]


def _reserved(sessions: SessionsByType, command: ReserveQuote) -> SessionsByType:
    """The earliest reservation of all types. A repeated command changes nothing."""
    whole, state = sessions.whole, sessions.whole.state
    known = state.quote_reservations.get(command.job_id)
    same = known is not None and accepts(state, command.spec, known.spec.gpu_type)
    if known is not None and same and is_reserved(known, _on(state, command, known.spec.gpu_type), whole.now_s):
        return sessions
    types = possible_types(state, command.spec)
    why = obstacle(state, command, whole.now_s)
    if why is not None or not types:
        return sessions.after_whole(quote_rejected(whole, command, why or why_no_type(state, command.spec)))
    found = {gpu_type: reserve(sessions.by_type[gpu_type], _on(state, command, gpu_type)) for gpu_type in types}

    def quoted_s(gpu_type: str) -> float:
        (event,) = found[gpu_type].events
        return event.deadline_s if isinstance(event, QuoteReserved) else math.inf

    chosen = min(found, key=quoted_s)
    (event,) = found[chosen].events
    if isinstance(event, QuoteReserved):  # the part of a type does not know all that the tenant asked for
        request = Request(job_id=command.job_id, tenant=command.tenant, gpu_seconds=event.gpu_seconds, at_s=whole.now_s)
        if (why := objection(state, request)) is not None:
            return sessions.after_whole(quote_rejected(whole, command, why))
    return sessions.after_type(chosen, found[chosen])


def _on(state: PoolState, command: ReserveQuote, gpu_type: str) -> ReserveQuote:
    return replace(command, spec=spec_on(state, command.spec, gpu_type))

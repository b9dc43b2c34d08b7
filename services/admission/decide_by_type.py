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
from elasticflow.services.admission.commands.quote_and_reserve import reserve
from elasticflow.services.admission.commands.submit import in_order
from elasticflow.services.admission.commands.submit_by_type import decide_waiting_by_type, submit_by_type
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
from elasticflow.shared.state.gpu_types import possible_types, spec_on, submitted_spec
from elasticflow.shared.state.pool import PoolState, profiling_jobs, spec_of


def names_types(state: PoolState, commands: Sequence[Command]) -> bool:
    """Whether a decision has to distinguish types: the pool has several, or a user names one."""
    if len(state.gpu_types) > 1:
        return True
    asked = (
        command.spec.gpu_type for command in commands if isinstance(command, SubmitJob | ProfileJob | ReserveQuote)
    )
    waiting = (submitted_spec(job).gpu_type for job in profiling_jobs(state.live_jobs))
    return any(asked) or any(waiting)


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
    state, ordered = sessions.whole.state, commands
    for gpu_type, session in sessions.by_type.items():
        on_type = {
            command.job_id: replace(command, spec=spec_on(state, command.spec, gpu_type))
            for command in commands
            if gpu_type in possible_types(state, command.spec)
        }
        session, in_turn = in_order(session, tuple(on_type.values()))
        sessions = sessions.with_session(gpu_type, session)
        if len(in_turn) == len(commands):
            by_id = {command.job_id: command for command in commands}
            ordered = tuple(by_id[command.job_id] for command in in_turn)
    return sessions, ordered


def _reserved(sessions: SessionsByType, command: ReserveQuote) -> SessionsByType:
    """The earliest reservation of all types; a repeated command has the type of the first one."""
    state = sessions.whole.state
    known = state.quote_reservations.get(command.job_id)
    types = [known.spec.gpu_type] if known is not None else possible_types(state, command.spec)
    if not types:
        return sessions.after_whole(reserve(sessions.whole, command))
    found = {
        gpu_type: reserve(sessions.by_type[gpu_type], replace(command, spec=spec_on(state, command.spec, gpu_type)))
        for gpu_type in types
    }

    def quoted_s(gpu_type: str) -> float:
        event = found[gpu_type].events[-1] if found[gpu_type].events else None
        return event.deadline_s if isinstance(event, QuoteReserved) else math.inf

    chosen = min(found, key=quoted_s)
    return sessions.after_type(chosen, found[chosen])

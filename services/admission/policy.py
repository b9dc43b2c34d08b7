"""Admission control: minimum satisfactory shares for all promises, or no promise.

Each command is answered on the sessions that the earlier ones left, one for each GPU type (`sessions_by_type`,
`commands`); `rejection` words why not and makes counteroffers; `quota_rules` limits tenants.
Source: ElasticFlow, section 4.1 and Algorithm 1.
"""

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import assert_never, cast

from elasticflow.services.admission.change_job import (
    amend_on_types,
    cancel,
    change_gpu_type,
    checkpoint,
    jobs_due,
    next_due_s,
)
from elasticflow.services.admission.gpu_limits import expired_gpu_limits, set_gpu_limits
from elasticflow.services.admission.loads import cancel_load, open_load, seal_load
from elasticflow.services.admission.reserve import reserve
from elasticflow.services.admission.session import AdmissionSession, SessionsByType
from elasticflow.services.admission.submit import decide_waiting, in_order, submit, without_profiling_run
from elasticflow.shared.messages.commands import (
    AmendJob,
    CancelJob,
    CancelLoad,
    Command,
    JobDescription,
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
from elasticflow.shared.messages.events import AdmissionEvent, Event, PlanEvent
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.profiles import with_own_curves
from elasticflow.shared.state.idempotent_replies import (
    ANSWERS,
    idempotent_reply,
    is_answer,
    is_submission_of,
    outcome,
    recipient,
)
from elasticflow.shared.state.policy import Policy, Reply, UserReplies, finished, planner
from elasticflow.shared.state.pool import PoolState, profiling_jobs

# --- Which function answers which command, and in the session of which GPU type ------------------------


def answered(sessions: SessionsByType, command: Command) -> SessionsByType:
    """The sessions after one command."""
    match command:
        case SubmitJob() | ProfileJob():
            return submit(sessions, command)
        case ReserveQuote():
            return reserve(sessions, command)
        case OpenLoad() | SealLoad() | CancelLoad():
            return sessions.after_whole(_of_load(sessions.whole, command))
        case AmendJob():
            return amend_on_types(sessions, command)
        case CancelJob() | SetGpuLimits() | RequestCheckpoint():
            return sessions.on_job(command.job_id, lambda session: _of_job(session, command))
        case _:
            assert_never(command)


def _of_load(whole: AdmissionSession, command: LoadCommand) -> AdmissionSession:
    match command:
        case OpenLoad():
            return open_load(whole, command)
        case SealLoad():
            return seal_load(whole, command)
        case CancelLoad():
            return cancel_load(whole, command)


def _of_job(session: AdmissionSession, command: CancelJob | SetGpuLimits | RequestCheckpoint) -> AdmissionSession:
    match command:
        case CancelJob():
            return cancel(session, command)
        case SetGpuLimits():
            return set_gpu_limits(session, command)
        case RequestCheckpoint():
            return checkpoint(session, command)


# --- policy --------------------------------------------------------------------------------------------


def decide(
    state: PoolState, commands: tuple[Command, ...], now_s: float, cache: PlanningCache | None = None
) -> tuple[AdmissionEvent, ...]:
    """Answer each command on what the earlier ones left; then decide on the jobs that waited.

    Before, jobs whose GPU type no longer suffices move.
    """
    return finished(decide_in_steps(state, commands, now_s, cache))


def decide_in_steps(
    state: PoolState, commands: tuple[Command, ...], now_s: float, cache: PlanningCache | None = None
) -> Generator[None, None, tuple[AdmissionEvent, ...]]:
    """The same, with a pause after each command."""
    cache = PlanningCache() if cache is None else cache
    for described in commands:
        if isinstance(described, JobDescription):
            state = with_own_curves(state, described.spec)
    expired, waiting = expired_gpu_limits(state, now_s), cache.last(profiling_jobs, state.live_jobs)
    due = jobs_due(state, now_s)
    if not (commands or expired or waiting or due):
        return ()
    sessions = SessionsByType.start(state, now_s, cache)
    for cleared in expired:
        sessions = sessions.on_job(cleared.job_id, lambda session, event=cleared: session.with_event(event).replanned())
    for job in due:
        sessions = change_gpu_type(sessions, job.job_id)
    for kind, group in groupby(commands, key=type):
        together = tuple(group)
        if kind is SubmitJob:
            sessions, together = in_order(sessions, cast(tuple[SubmitJob, ...], together))
        for command in together:
            sessions = answered(sessions, command)
            yield
    live_jobs = sessions.state.live_jobs
    unmeasured = cache.last(without_profiling_run, live_jobs)
    for job in cache.last(profiling_jobs, live_jobs):
        sessions = decide_waiting(sessions, job, is_measured=job.job_id not in unmeasured)
    return sessions.whole.events


def wake_at_s(state: PoolState, cache: PlanningCache | None = None) -> float | None:
    """When the deadline of a job that still waits for a decision passes, an operator's GPU limits end, or a job may
    need another GPU type."""
    cache = PlanningCache() if cache is None else cache
    waiting = cache.last(without_profiling_run, state.live_jobs)
    overdue_s = (state.live_jobs[job_id].deadline_s for job_id in waiting)
    limits_end_s = (limits.until_s for limits in state.gpu_limits.values())
    return min((at_s for at_s in (*overdue_s, *limits_end_s, next_due_s(state)) if at_s is not None), default=None)


def shorten(events: tuple[PlanEvent, ...]) -> tuple[PlanEvent, ...] | None:
    """The first half: each event rests on the ones before it only, and the next decision makes the others."""
    return events[: len(events) // 2] if len(events) > 1 else None


def replies(state: PoolState, commands: tuple[Command, ...], events: tuple[Event, ...]) -> tuple[Reply, ...]:
    """The decisions; for a command that led to none, because it equals an earlier one, the earlier decision."""
    decided = cast(tuple[AdmissionEvent, ...], events)
    answered = {(recipient(state, event), id_of(event), type(event)) for event in decided}
    unanswered = (
        command
        for command in commands
        if answered.isdisjoint((command.tenant, id_of(command), kind) for kind in ANSWERS[type(command)])
    )
    earlier = (idempotent_reply(state, command) for command in unanswered)
    return (*decided, *(reply for reply in earlier if reply is not None))


def replies_again(state: PoolState, command: Command, events: tuple[PlanEvent, ...]) -> tuple[Reply, ...]:
    """The first reply. For a submission the newest one: the first may have been that its speed is measured."""
    if isinstance(command, SubmitJob | ProfileJob):
        job = state.job(command.job_id)
        was_rejected = isinstance(command, SubmitJob) and job is not None and command.replaces == job.identity
        if job is not None and is_submission_of(command, job) and not was_rejected:
            return (outcome(state, job),)
    first = tuple(event for event in events if is_answer(event, command) and recipient(state, event) == command.tenant)
    return replies(state, (command,), first)


POLICY = planner(
    "admission",
    decide,
    wake_at_s,
    decide_in_steps=decide_in_steps,
    shorten=shorten,
    user_replies=UserReplies(is_answer=is_answer, replies=replies, replies_again=replies_again),
)


def with_cache(cache: PlanningCache) -> Policy[PoolState]:
    """The same policy as an instance that keeps a cache between decisions."""
    return replace(
        POLICY,
        decide=partial(decide, cache=cache),
        decide_in_steps=partial(decide_in_steps, cache=cache),
        wake_at_s=partial(wake_at_s, cache=cache),
    )

"""Jobs whose GPU type no longer suffices continue on another one: nodes were lost, or came back with another type.

A promise moves once the monitor has found it at risk, if its type cannot keep it and another type keeps it beside all
promises there. A job without a promise, or past its deadline, moves once its type has had too few GPUs for a while.
Nothing moves back by itself, and a job whose user named its type stays (docs/adr/0047).
"""

import math

from elasticflow.services.admission.change_job import Alternative, rest_on_type
from elasticflow.services.admission.session import AdmissionSession, SessionsByType
from elasticflow.shared.messages.event_summary import gpus_counted
from elasticflow.shared.messages.events import GpuTypeChanged, GpuTypeKept
from elasticflow.shared.scheduling.admission.planned_pool import flat
from elasticflow.shared.state.gpu_types import (
    accepted_types,
    num_gpus_by_recorded_type,
    possible_types,
    submitted_spec,
    type_name,
)
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState, spec_of

WAIT_S = 60.0  # for a node that restarts, before jobs without a promise move
RETRY_S = 60.0  # between two decisions that a job stays


def next_due_s(state: PoolState) -> float | None:
    """When the next decision is due."""
    return min(_due_s(state).values(), default=None)


def jobs_due(state: PoolState, now_s: float) -> list[Job]:
    """The jobs to decide on now, the earliest deadline first."""
    due = (state.live_jobs[job_id] for job_id, due_s in _due_s(state).items() if due_s <= now_s)
    return sorted(due, key=lambda job: (job.deadline_s or math.inf, job.job_id))


def _due_s(state: PoolState) -> dict[str, float]:
    """The time when a decision is due, by job, for jobs of a pool of several types whose user leaves the type open."""
    if len(state.gpu_types) <= 1:
        return {}
    num_gpus = num_gpus_by_recorded_type(state)
    lost_s = max((node.since_s for node in state.nodes.values() if not node.alive), default=-math.inf)
    found = dict[str, float]()
    for job in state.live_jobs.values():
        lacks_gpus = num_gpus[spec_of(job).gpu_type] < spec_of(job).gpu_range.least
        if job.phase is Phase.ADMITTED and (job.at_risk or lacks_gpus):
            due_s = _job_due_s(state, job, lost_s + WAIT_S if lacks_gpus else math.inf)
            if due_s < math.inf and len(accepted_types(state, submitted_spec(job))) > 1:
                found[job.job_id] = due_s
    return found


def _job_due_s(state: PoolState, job: Job, lacks_gpus_s: float) -> float:
    """A promise is due when it is found at risk, and as a job without a promise after its deadline.

    After a decision that the job stays it is due again if something has happened since.
    """
    kept_s = -math.inf if job.gpu_type_kept_at_s is None else job.gpu_type_kept_at_s
    deadline_s = job.deadline_s if job.promised else None
    again_s = kept_s + RETRY_S
    has_news = state.scheduling_event_sequence > job.gpu_type_kept_sequence
    is_open = lacks_gpus_s < math.inf or (deadline_s is not None and again_s < deadline_s)
    times_s = (
        math.inf if deadline_s is None or not job.at_risk else job.at_risk_since_s or 0.0,
        max(lacks_gpus_s, deadline_s or 0.0),
        again_s if has_news and is_open else math.inf,
    )
    return min((at_s for at_s in times_s if at_s > kept_s), default=math.inf)


def change_gpu_type(sessions: SessionsByType, job_id: str) -> SessionsByType:
    """Move a job that is due to the type where it costs others least; without such a type it stays."""
    job, now_s = sessions.state.live_jobs[job_id], sessions.whole.now_s
    own, types = spec_of(job).gpu_type, possible_types(sessions.state, submitted_spec(job))
    is_promised = job.promised and job.deadline_s is not None and job.deadline_s > now_s
    if own in types:
        sessions = sessions.with_session(own, sessions.by_type[own].with_plan())
        if not is_promised or _is_kept(sessions.by_type[own], job):
            return _stays(sessions, job, f"the GPUs of type {type_name(sessions.state, own)} suffice for it")
    found = {
        gpu_type: rest_on_type(sessions, job, gpu_type, is_promised=is_promised, is_displaced=True)
        for gpu_type in types
        if gpu_type != own
    }
    possible = {gpu_type: each for gpu_type, each in found.items() if isinstance(each, Alternative)}
    lack = _lack(sessions.state, own)
    if not possible:
        reasons = [why for why in found.values() if isinstance(why, str)] or ["no other type has GPUs for it"]
        return _stays(sessions, job, "; ".join([lack, *reasons]))
    chosen = min(possible, key=lambda gpu_type: possible[gpu_type].cost)
    sessions = _moved(sessions, job, chosen, possible[chosen], lack)
    for gpu_type in (own, chosen):
        sessions = sessions.with_session(gpu_type, sessions.by_type[gpu_type].replanned())
    return sessions


def _stays(sessions: SessionsByType, job: Job, why: str) -> SessionsByType:
    kept = GpuTypeKept(job_id=job.job_id, explanation=why, at_s=sessions.whole.now_s)
    return sessions.after_whole(sessions.whole.with_event(kept))


def _moved(sessions: SessionsByType, job: Job, gpu_type: str, found: Alternative, lack: str) -> SessionsByType:
    session, replanned = found.session.accept(found.proposal) if found.proposal else (found.session, {})
    changed = GpuTypeChanged(
        job_id=job.job_id,
        gpu_type=gpu_type,
        explanation=lack,
        minimum_satisfactory_share=flat(found.proposal.schedule) if found.proposal else (),
        replanned=replanned,
        at_s=session.now_s,
    )
    return sessions.after_type(gpu_type, session, (changed,))


def _is_kept(session: AdmissionSession, job: Job) -> bool:
    """Whether the plan of its type keeps the promise."""
    planned = session.planned_pool
    return job.job_id not in planned.plan.late_jobs and any(job.job_id == each.job_id for each in planned.listed)


def _lack(state: PoolState, gpu_type: str) -> str:
    """What the GPUs of a type lack for a job."""
    num_gpus = num_gpus_by_recorded_type(state)[gpu_type]
    return f"the pool has {gpus_counted(num_gpus, type_name(state, gpu_type))} now"

"""Submissions: a job is decided on at once, or waits for its profiles or for the pool's first node."""

import math
from collections.abc import Sequence
from dataclasses import replace

from elasticflow.services.admission.commands.decide_on_types import decide_on_types
from elasticflow.services.admission.commands.reserve import take
from elasticflow.services.admission.commands.submission import (
    Submission,
    on_type,
    profile_requested,
    rejected,
    request_of,
    submission_of,
    waiting_submission,
)
from elasticflow.services.admission.quota_rules import counts_as_demand
from elasticflow.services.admission.rejection.text import problems_of, size_problems, why_no_type
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.services.admission.sessions_by_type import SessionsByType
from elasticflow.shared.messages.commands import ProfileJob, SubmitJob
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.limits import next_name
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.scheduling.admission.admission_pricing import Submitted, submitted
from elasticflow.shared.scheduling.jobs.scheduler_view import arriving_job, known_curve, profile_known
from elasticflow.shared.state.fold.admission import is_resubmission
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.gpu_types import accepted_types, large_enough_types, possible_types, spec_on
from elasticflow.shared.state.idempotent_replies import is_submission_of
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, profiling_jobs, spec_of

_MEASURE_IT = (
    "no GPU was free for that: `eflow profile` waits for one, and `eflow quote` has the earliest deadline then"
)


def in_order(sessions: SessionsByType, commands: Sequence[SubmitJob]) -> tuple[SessionsByType, Sequence[SubmitJob]]:
    """Submissions that came together, in the order of judgement: selective admission judges the smallest first.

    Each counts as demand on each type on which it may run.
    """
    state, least = sessions.state, dict[int, float]()
    types = [possible_types(state, command.spec) for command in commands]
    for gpu_type, session in sessions.by_type.items():
        demand = {
            number: _demand_of(session, replace(command, spec=spec_on(state, command.spec, gpu_type)))
            for number, command in enumerate(commands)
            if gpu_type in types[number]
        }
        asked = {number: each for number, each in demand.items() if each[0] > 0}
        sessions = sessions.with_session(gpu_type, session.expecting(tuple(asked.values())))
        least |= {number: min(each[0], least.get(number, math.inf)) for number, each in asked.items()}
    if not sessions.whole.is_selective:
        return sessions, commands
    order = sorted(range(len(commands)), key=lambda number: least.get(number, 0.0))
    return sessions, [commands[number] for number in order]


def _demand_of(session: AdmissionSession, command: SubmitJob) -> Submitted:
    """0 GPU-seconds without a deadline, while the job's speed is unknown, for a known job, and beyond a quota."""
    submission = submission_of(command, session.now_s)
    spec, deadline_s = submission.spec, submission.deadline_s
    state = with_profile(session.state, spec)
    curve = known_curve(state, spec, curves=session.cache.curves) if spec.job_class is JobClass.SLO else None
    if curve is None or deadline_s is None or session.pool.job(command.job_id) is not None:
        return 0.0, 0.0
    job = arriving_job(state, command.job_id, spec, curve, deadline_s)
    asked = submitted(job, session.now_s)
    counts = counts_as_demand(state, request_of(session, submission, asked[0]))
    return asked if counts else (0.0, 0.0)


def submit(sessions: SessionsByType, command: SubmitJob | ProfileJob) -> SessionsByType:
    """Decide on a submission, unless the same was decided already."""
    whole = sessions.whole
    submission = submission_of(command, whole.now_s)
    if (answered := _repeated_or_wrong(whole, submission, command)) is not None:
        return sessions.after_whole(answered)
    if isinstance(command, SubmitJob) and (taken := take(sessions, command)) is not None:
        return taken
    possible = possible_types(whole.state, command.spec)
    if whole.state.num_gpus and not large_enough_types(whole.state, command.spec):
        why = why_no_type(whole.state, command.spec)
        return sessions.after_whole(rejected(whole, submission, "unrunnable", why))
    if not possible or _profiled(sessions, submission, possible) != possible:
        return sessions.after_whole(profile_requested(whole, submission))
    return decide_on_types(sessions, submission, possible)


def _repeated_or_wrong(
    whole: AdmissionSession, submission: Submission, command: SubmitJob | ProfileJob
) -> AdmissionSession | None:
    """The answer to a submission that was decided already, or that no schedule can repair; None: decide on it."""
    state, spec = whole.state, submission.spec
    if _is_reserved_by_another(whole, submission):
        why = f"job_id: another tenant has reserved a quote under the name {command.job_id}; choose another"
        return rejected(whole, submission, "duplicate", why)
    known = state.job(submission.job_id)
    if known is not None and not is_resubmission(known, command):
        if is_submission_of(command, known):
            return whole
        why = _taken(state, known, submission)
        return rejected(whole, submission, "duplicate", why)
    problems = problems_of(state, spec_on(state, spec, spec.gpu_type), whole.now_s)
    return rejected(whole, submission, "invalid", "; ".join(problems)) if problems else None


def _taken(state: PoolState, known: Job, submission: Submission) -> str:
    """A name stays that of its job, whose history, logs and checkpoints it names, also after its end."""
    free = next_name(known.job_id)
    while state.job(free) is not None or free in state.quote_reservations:
        free = next_name(free)
    of = "of another tenant" if known.tenant != submission.tenant else "submitted with other code or options"
    end = f" and {known.phase.value}" if not known.live and known.tenant == submission.tenant else ""
    return f"the name {known.job_id} is taken by another job, {of}{end}; {free} is free"


def _is_reserved_by_another(whole: AdmissionSession, submission: Submission) -> bool:
    quote = whole.state.quote_reservations.get(submission.job_id)
    return quote is not None and quote.tenant != submission.tenant and whole.now_s < quote.until_s


def without_profiling_run(live_jobs: Map[str, Job]) -> frozenset[str]:
    """The jobs that wait for a profile which no GPU measures now, for them or for another job.

    An SLO job whose profile is measured waits beyond its deadline, so that its rejection has a counteroffer.
    """
    waiting = profiling_jobs(live_jobs)
    measured = {spec_of(job).measured_key for job in waiting if job.num_gpus}
    return frozenset(
        job.job_id
        for job in waiting
        if spec_of(job).job_class is not JobClass.SLO or spec_of(job).measured_key not in measured
    )


def decide_waiting(sessions: SessionsByType, job: Job, *, is_measured: bool) -> SessionsByType:
    """Decide on a job that waits for its profiles, or for GPUs. is_measured: not in `without_profiling_run`.

    It waits for all types, except for one on which no GPU can be lent to its profiling run now: a later job of the
    profile is measured there. A user who asks for the profile alone waits for that type as well.
    """
    whole, submission = sessions.whole, waiting_submission(job)
    state, spec = whole.state, submission.spec
    possible = possible_types(state, spec)
    types = possible or accepted_types(state, spec)  # none may have enough GPUs now
    profiled = _profiled(sessions, submission, types)
    may_skip = bool(possible) and not submission.profile_only and _lacks_gpus(state, job, profiled)
    if not state.num_gpus or not profiled or not (profiled == types or may_skip):
        return sessions if is_measured else sessions.after_whole(_reject_late(whole, submission))
    if problems := size_problems(state, spec_on(state, spec, profiled[0])):
        return sessions.after_whole(rejected(whole, submission, "invalid", "; ".join(problems)))
    if not possible:
        return sessions.after_whole(rejected(whole, submission, "unrunnable", why_no_type(state, spec)))
    return decide_on_types(sessions, submission, profiled)


def _profiled(sessions: SessionsByType, submission: Submission, types: list[str]) -> list[str]:
    """Those of these types on which its speed is known."""
    return [
        gpu_type
        for gpu_type in types
        if profile_known(
            sessions.ready(gpu_type, submission.spec).state, on_type(sessions.state, submission, gpu_type).spec
        )
    ]


def _lacks_gpus(state: PoolState, job: Job, profiled: list[str]) -> bool:
    """The allocator knows of the job, and has no GPU for its profiling run on the type that is next."""
    is_next = spec_of(job).gpu_type not in profiled
    return is_next and not job.num_gpus and state.allocation_based_on >= job.decided_sequence


def _reject_late(whole: AdmissionSession, submission: Submission) -> AdmissionSession:
    """Reject a job that waited for GPUs until its deadline."""
    state = whole.state
    if submission.deadline_s is not None and submission.deadline_s <= whole.now_s:
        missed = "its speed was measured" if state.num_gpus else "a node joined the pool"
        reason = "deadline" if state.num_gpus else "unrunnable"
        advice = f"; {_MEASURE_IT}" if state.num_gpus else ""
        return rejected(whole, submission, reason, f"its deadline passed before {missed}{advice}")
    return whole

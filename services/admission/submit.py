"""The decision on a job of known speed: promised, admitted without a promise, profiled as requested, or rejected."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from elasticflow.services.admission.counteroffers import Refusal, refusal_of
from elasticflow.services.admission.quota_rules import counts_as_demand
from elasticflow.services.admission.rejection import (
    continuation_problems,
    problems_of,
    size_problems,
    why_no_type,
    why_not_elsewhere,
    why_unrunnable,
)
from elasticflow.services.admission.reserve import take, why_not_taken
from elasticflow.services.admission.session import AdmissionSession, SessionsByType
from elasticflow.services.admission.submission import (
    SubmittedJob,
    admitted,
    objection_to,
    on_type,
    profile_requested,
    rejected,
    request_of,
    submission_of,
    waiting_submission,
    with_measurement_plan,
)
from elasticflow.shared.messages.commands import ProfileJob, SubmitJob
from elasticflow.shared.messages.events import AdmissionEvent, JobAdmitted, JobProfiled, JobRejected
from elasticflow.shared.messages.gpus import GpuRange
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.limits import next_name
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.scheduling.admission.admission_pricing import Submitted, least_gpu_seconds, submitted
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, gpu_seconds
from elasticflow.shared.scheduling.jobs.scheduler_view import arriving_job, known_curve, profile_known
from elasticflow.shared.state.fold.admission import is_resubmission
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.gpu_types import accepted_types, large_enough_types, possible_types, spec_on, type_name
from elasticflow.shared.state.idempotent_replies import is_submission_of
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, profiling_jobs, spec_of


def admit(session: AdmissionSession, submission: SubmittedJob) -> AdmissionSession:
    """Decide on it beside all promises of the session; without an event if the deadline or the price is a reason to
    `refuse` it. Counteroffers take longer than a promise, and another GPU type may admit it."""
    spec, state = submission.spec, session.state
    curve = known_curve(state, spec, curves=session.cache.curves)
    if curve is None:
        return rejected(session, submission, "unrunnable", why_unrunnable(state, spec))
    if submission.profile_only:
        rates = state.curves[spec.profile_key].iterations_per_s
        return session.with_event(JobProfiled(job_id=submission.job_id, iterations_per_s=rates, at_s=session.now_s))
    if spec.job_class is JobClass.SLO:
        job = arriving_job(state, submission.job_id, spec, curve, submission.deadline_s)
        return _promise(session, submission, job)
    cheapest = curve.least_gpu_seconds(float(spec.own_iterations), math.inf)
    if (why := objection_to(session, submission, cheapest)) is not None:
        return rejected(session, submission, "quota", why)
    return admitted(session, submission, cheapest)


def _promise(session: AdmissionSession, submission: SubmittedJob, job: SchedulableJob) -> AdmissionSession:
    """Promise the job, or reject it for its quota; without an event if the deadline or the price prevents a promise."""
    session = session.with_plan()
    least = least_gpu_seconds(job, session.now_s)
    if not math.isfinite(least):
        return session
    session = session.with_pricing()
    if session.is_overpriced(job):
        return session
    session, proposal = session.propose(job)
    if proposal is None:
        return session
    needed = gpu_seconds(proposal.schedule)
    if (why := objection_to(session, submission, needed)) is not None:
        return rejected(session, submission, "quota", why)
    return admitted(session, submission, needed, proposal, least)


def refuse(session: AdmissionSession, submission: SubmittedJob) -> Refusal:
    """The refusal after `admit` without an event.

    It has the earliest deadline that could be promised instead, if the sender waits.
    """
    spec, state = submission.spec, session.state
    curve = known_curve(state, spec, curves=session.cache.curves)
    assert curve is not None, "else `admit` has rejected it"
    job = arriving_job(state, submission.job_id, spec, curve, submission.deadline_s)
    least = least_gpu_seconds(job, session.now_s)
    is_possible = math.isfinite(least)
    is_demand = is_possible and counts_as_demand(state, request_of(session, submission, least))
    # one that needs more GPUs than are promised displaces nothing
    is_promisable = job.curve.levels[0] <= session.plan.num_gpus
    is_overpriced = is_possible and is_promisable and session.is_overpriced(job)
    least = least if is_demand else 0.0
    return refusal_of(session, job, spec, least, is_overpriced=is_overpriced, makes_offers=submission.sender_waits)


def reject(submission: SubmittedJob, refusal: Refusal) -> AdmissionSession:
    """Reject the submission with the reason and counteroffers."""
    rejection = refusal.rejection()
    why = why_not_taken(refusal.decided, refusal.job) + rejection.explanation
    return rejected(refusal.decided, submission, refusal.reason, why, refusal, rejection)


# --- decide on types -----------------------------------------------------------------------------------
# The decision on a submission of known speed: taken on each GPU type on which it may run; the best one counts.
#
# A job trains on one type. Each type is a pool of its own with its own plan and prices, so a promise on it rests on
# curves that were measured there (docs/adr/0047).

Refusals = Mapping[str, Refusal | JobRejected]  # by type


def decide_on_types(sessions: SessionsByType, submission: SubmittedJob, possible: list[str]) -> SessionsByType:
    """The type that admits it at the least cost; if none does, the one that offers the earliest deadline."""
    if submission.profile_only:
        possible = possible[:1]
    there = {gpu_type: on_type(sessions.state, submission, gpu_type) for gpu_type in possible}
    ready = {gpu_type: sessions.ready(gpu_type, submission.spec) for gpu_type in possible}
    if len(possible) > 1:
        priced = {gpu_type: cost_on_type(ready[gpu_type], there[gpu_type]) for gpu_type in possible}
        ready = {gpu_type: session for gpu_type, (session, _) in priced.items()}
        possible = sorted(possible, key=lambda gpu_type: priced[gpu_type][1])
    for gpu_type in possible:
        ready[gpu_type] = admit(ready[gpu_type], there[gpu_type])
        if ready[gpu_type].events and not isinstance(_answer(ready[gpu_type]), JobRejected):
            return _decided(sessions, submission, gpu_type, ready, {})
    refused = {
        gpu_type: _rejection(session) if session.events else refuse(session, there[gpu_type])
        for gpu_type, session in ready.items()
    }
    chosen = min(possible, key=lambda gpu_type: _offer_order(refused[gpu_type]))
    for gpu_type, refusal in refused.items():
        if isinstance(refusal, Refusal):
            ready[gpu_type] = reject(there[gpu_type], refusal) if gpu_type == chosen else refusal.decided
    return _decided(sessions, submission, chosen, ready, refused)


def _decided(
    sessions: SessionsByType,
    submission: SubmittedJob,
    chosen: str,
    after: Mapping[str, AdmissionSession],
    refused: Refusals,
) -> SessionsByType:
    """The types that are not chosen keep their plans."""
    for gpu_type, session in after.items():
        if gpu_type != chosen:
            sessions = sessions.with_session(gpu_type, session)
    answer = _as_submitted(sessions, submission, chosen, _answer(after[chosen]), refused)
    return sessions.after_type(chosen, after[chosen], (answer,))


def _answer(session: AdmissionSession) -> AdmissionEvent:
    (event,) = session.events
    return event


def _rejection(session: AdmissionSession) -> JobRejected:
    answer = _answer(session)
    assert isinstance(answer, JobRejected), "else its type would have been chosen"
    return answer


def _as_submitted(
    sessions: SessionsByType, submission: SubmittedJob, chosen: str, answer: AdmissionEvent, refused: Refusals
) -> AdmissionEvent:
    """The decision for the ledger: the user's spec and the type; of a rejection also the demand on the other types.

    In a pool of one type it is the answer itself, which is folded once.
    """
    if not isinstance(answer, JobAdmitted | JobRejected):
        return answer
    if len(sessions.state.gpu_types) <= 1 and answer.spec is submission.spec:
        return answer
    if isinstance(answer, JobAdmitted):
        return replace(answer, spec=submission.spec, gpu_type=chosen)
    others = {gpu_type: refusal for gpu_type, refusal in refused.items() if gpu_type != chosen}
    elsewhere = {
        gpu_type: refusal.least_gpu_seconds for gpu_type, refusal in others.items() if refusal.least_gpu_seconds
    }
    answer = replace(answer, spec=submission.spec, gpu_type=chosen, least_elsewhere=elsewhere)
    offered = _offered_elsewhere(sessions, others) if submission.sender_waits else ()
    why_not = (*offered, *why_not_elsewhere(sessions.state, submission.spec))
    if not others and not why_not:
        return answer
    explanation = "; ".join((f"on {type_name(sessions.state, chosen)}: {answer.explanation}", *why_not))
    return replace(answer, explanation=explanation)


def _offered_elsewhere(sessions: SessionsByType, others: Refusals) -> Iterator[str]:
    """The earliest deadline on each of the types that are not chosen."""
    for gpu_type, refusal in others.items():
        if isinstance(refusal, Refusal):
            yield f"on {type_name(sessions.state, gpu_type)} {refusal.earliest_in_words()}"


def _offer_order(refusal: Refusal | JobRejected) -> tuple[float, bool]:
    """The earliest deadline that is offered first."""
    earliest_s = math.inf if refusal.earliest_deadline_s is None else refusal.earliest_deadline_s
    return earliest_s, refusal.reason == "unrunnable"


def cost_on_type(session: AdmissionSession, submission: SubmittedJob) -> tuple[AdmissionSession, tuple[float, float]]:
    """What the job costs there: the expected promises that it displaces, and of equal costs the slowest type, which
    others want least. Without a promise: the seconds on as many GPUs as help, and until all jobs there are done.
    """
    spec, state = submission.spec, session.state
    curve = known_curve(state, spec, curves=session.cache.curves)
    if curve is None:
        return session, (math.inf, 0.0)
    if spec.job_class is not JobClass.SLO:
        iterations = float(spec.own_iterations)
        usable = spec.gpu_range.intersection(GpuRange(1, state.num_gpus))
        rates = (rate for num_gpus, rate in curve.rate_by_num_gpus.items() if usable.allows(num_gpus))
        fastest = max(rates, default=0.0)
        if not fastest:
            return session, (math.inf, 0.0)
        alone_s = iterations / fastest
        asked = curve.least_gpu_seconds(iterations, math.inf) + _left_gpu_seconds(session, submission.job_id)
        return session, (alone_s + asked / state.num_gpus, 0.0)
    job = arriving_job(state, submission.job_id, spec, curve, submission.deadline_s)
    least = least_gpu_seconds(job, session.now_s)
    if not math.isfinite(least):
        return session, (math.inf, 0.0)
    session = session.with_plan().with_pricing()
    return session, (session.displaced_promises(job), -least)


def _left_gpu_seconds(session: AdmissionSession, except_for: str) -> float:
    """What all other live jobs of the type still need, each on the number of GPUs on which it needs least.

    except_for: the job that is decided on. A profiling run may have brought it to this type.
    """
    state, left = session.state, list[float]()
    for job in state.live_jobs.values():
        if job.job_id == except_for:
            continue
        curve = known_curve(state, spec_of(job), curves=session.cache.curves)
        iterations = max(spec_of(job).max_iterations - job.iteration, 0)
        if curve is not None and iterations:
            left.append(curve.least_gpu_seconds(float(iterations), math.inf))
    return math.fsum(left)  # exact: the order of the map must not matter


# --- submit --------------------------------------------------------------------------------------------
# Submissions: a job is decided on at once, or waits for its profiles or for the pool's first node.

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
    """0 GPU-seconds without a deadline, while the job's speed is unknown, for a known id, and beyond a quota."""
    submission = submission_of(command, session.now_s)
    spec, deadline_s = submission.spec, submission.deadline_s
    state = with_profile(session.state, spec)
    curve = known_curve(state, spec, curves=session.cache.curves) if spec.job_class is JobClass.SLO else None
    known = session.pool.job(command.job_id)
    is_new = known is None or (bool(command.replaces) and is_resubmission(known, command))
    if curve is None or deadline_s is None or not is_new:
        return 0.0, 0.0
    job = arriving_job(state, command.job_id, spec, curve, deadline_s)
    asked = submitted(job, session.now_s)
    counts = counts_as_demand(state, request_of(session, submission, asked[0]))
    return asked if counts else (0.0, 0.0)


def submit(sessions: SessionsByType, command: SubmitJob | ProfileJob) -> SessionsByType:
    """Decide on a submission, unless the same was decided already."""
    whole = sessions.whole
    if isinstance(command, SubmitJob) and command.replaces and whole.state.job(command.job_id) is None:
        command = replace(command, replaces="")  # the id is free
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
        sessions, submission = with_measurement_plan(sessions, submission, possible)
        return sessions.after_whole(profile_requested(sessions.whole, submission))
    return decide_on_types(sessions, submission, possible)


def _repeated_or_wrong(
    whole: AdmissionSession, submission: SubmittedJob, command: SubmitJob | ProfileJob
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
    problems += continuation_problems(state, spec, command.tenant)
    return rejected(whole, submission, "invalid", "; ".join(problems)) if problems else None


def _taken(state: PoolState, known: Job, submission: SubmittedJob) -> str:
    """A name stays that of its job, whose history, logs and checkpoints it names, until a command takes it from just
    this job."""
    free = next_name(known.job_id)
    while state.job(free) is not None or free in state.quote_reservations:
        free = next_name(free)
    of = "of another tenant" if known.tenant != submission.tenant else "submitted with other code or options"
    taken, is_own_end = f"the name {known.job_id} is taken by another job", known.tenant == submission.tenant
    if known.live or not is_own_end:
        return f"{taken}, {of}; {free} is free"
    return (
        f"{taken}, {of} and {known.phase.value}; {free} is free, and --again takes this one "
        f"(in a message: replaces = {known.identity})"
    )


def _is_reserved_by_another(whole: AdmissionSession, submission: SubmittedJob) -> bool:
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


def _profiled(sessions: SessionsByType, submission: SubmittedJob, types: list[str]) -> list[str]:
    """The types among these on which its speed is known."""
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


def _reject_late(whole: AdmissionSession, submission: SubmittedJob) -> AdmissionSession:
    """Reject a job that waited for GPUs until its deadline."""
    state = whole.state
    if submission.deadline_s is not None and submission.deadline_s <= whole.now_s:
        missed = "its speed was measured" if state.num_gpus else "a node joined the pool"
        reason = "deadline" if state.num_gpus else "unrunnable"
        advice = f"; {_MEASURE_IT}" if state.num_gpus else ""
        return rejected(whole, submission, reason, f"its deadline passed before {missed}{advice}")
    return whole

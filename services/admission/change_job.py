"""Commands about an admitted job: amend its promise, also on another GPU type, cancel it, and checkpoint it now."""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

from elasticflow.services.admission.rejection import RUNS_NOWHERE, no_deadline, no_such_job
from elasticflow.services.admission.replan import Found, Replanning, objection_to_more, own
from elasticflow.services.admission.session import AdmissionSession, SessionsByType
from elasticflow.services.admission.submission import SubmittedJob
from elasticflow.services.admission.submit import cost_on_type
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.commands import AmendJob, CancelJob, RequestCheckpoint
from elasticflow.shared.messages.event_summary import gpus_counted, in_the_past
from elasticflow.shared.messages.events import (
    AmendRejected,
    CancelRejected,
    CheckpointRejected,
    CheckpointRequested,
    CheckpointUpToDate,
    GpuTypeChanged,
    GpuTypeKept,
    JobAmended,
    JobCancelled,
)
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.rejection import Offer
from elasticflow.shared.scheduling.admission.admission_plan import Proposal
from elasticflow.shared.scheduling.admission.admission_search import earliest_deadline_around_s, most_iterations_by
from elasticflow.shared.scheduling.admission.planned_pool import flat
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, gpu_seconds
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    arriving_job,
    known_curve,
    planned_deadline_s,
    promised_deadline_s,
)
from elasticflow.shared.state.gpu_types import (
    accepted_types,
    num_gpus_by_recorded_type,
    possible_types,
    spec_on,
    submitted_spec,
    type_name,
)
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState, spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the job becomes. deadline_s: promised; max_iterations: in all."""

    deadline_s: float | None
    max_iterations: int

    @staticmethod
    def of(job: Job, command: AmendJob) -> "Terms":
        """What the command leaves open stays."""
        return Terms(
            deadline_s=job.deadline_s if command.deadline_s is None else command.deadline_s,
            max_iterations=command.max_iterations or spec_of(job).max_iterations,
        )


def amend(session: AdmissionSession, command: AmendJob) -> AdmissionSession:
    """Grant the amendment if it can be kept beside all other promises. Resending it grants it again."""
    job, now_s = session.state.job(command.job_id), session.now_s
    why = amendment_obstacle(session.pool, job, command, now_s)
    if why is not None or job is None:
        return session.with_event(
            AmendRejected(job_id=command.job_id, tenant=command.tenant, explanation=why or "", at_s=now_s)
        )
    terms = Terms.of(job, command)
    if job.promised:
        return _amend_promise(session, job, terms)
    amended = JobAmended(
        job_id=job.job_id,
        deadline_s=terms.deadline_s,
        max_iterations=terms.max_iterations,
        minimum_satisfactory_share=(),
        gpu_seconds=0.0,
        at_s=now_s,
    )
    return session.with_event(amended).replanned()


def amendment_obstacle(pool: PoolState, job: Job | None, command: AmendJob, now_s: float) -> str | None:
    """What speaks against it before anything is planned."""
    if job is None or job.tenant != command.tenant:
        return no_such_job(pool, command.tenant, command.job_id)
    if not job.live:
        return f"it has ended already: {job.phase.value}"
    if job.phase is Phase.PROFILING:
        return "its speed is being measured: nothing is promised yet; amend it once it is admitted"
    if command.deadline_s is None and command.max_iterations is None:
        return "deadline_s, max_iterations: give one of them at least"
    if command.deadline_s is not None and not spec_of(job).job_class.has_deadline:
        return f"deadline_s: a {spec_of(job).job_class.value} job has none"
    if command.deadline_s is not None and command.deadline_s <= now_s:
        return f"deadline: {in_the_past(command.deadline_s, now_s)}; choose a later one"
    if command.max_iterations is not None and command.max_iterations <= job.iteration:
        return f"max_iterations: it has done {job.iteration} already; choose more, or cancel it"
    return None


def _amend_promise(session: AdmissionSession, job: Job, terms: Terms) -> AdmissionSession:
    now_s = session.now_s
    replanning = Replanning.of(session, job)
    if replanning is None:
        return session.with_event(
            AmendRejected(job_id=job.job_id, tenant=job.tenant, explanation=RUNS_NOWHERE, at_s=now_s)
        )
    amendment = _Amendment(replanning)
    if amendment.needs_price(terms):
        amendment = amendment.priced()
    found = amendment.schedule(terms)
    if found is None:
        amendment = amendment.priced()
        offers = amendment.offers(terms)
        why = amendment.why_not(terms, offers)
        rejected = AmendRejected(job_id=job.job_id, tenant=job.tenant, explanation=why, offers=offers, at_s=now_s)
        return amendment.replanning.session.with_event(rejected)
    session = amendment.replanning.session
    why = replanning.objection(found)
    if why is not None:
        return session.with_event(AmendRejected(job_id=job.job_id, tenant=job.tenant, explanation=why, at_s=now_s))
    return session.with_event(amendment.granted(terms, found)).replanned()


@dataclass(frozen=True, slots=True)
class _Amendment:
    """The other terms on which the job could be promised."""

    replanning: Replanning

    def priced(self) -> "_Amendment":
        """The same amendment with a session that knows prices."""
        session = self.replanning.session.with_pricing()
        return _Amendment(replace(self.replanning, session=session))

    def schedule(self, terms: Terms) -> Found | None:
        """What keeps the terms."""
        after = self._on(terms)
        return None if self._is_overpriced(after) else self.replanning.found(after)

    def granted(self, terms: Terms, found: Found) -> JobAmended:
        return JobAmended(
            job_id=self.replanning.job.job_id,
            deadline_s=terms.deadline_s,
            max_iterations=terms.max_iterations,
            minimum_satisfactory_share=flat(own(found)),
            gpu_seconds=self.replanning.added_gpu_seconds(found),
            replanned=self.replanning.replanned(found),
            at_s=self.replanning.session.now_s,
        )

    def offers(self, terms: Terms) -> tuple[Offer, ...]:
        """Terms that would be granted now: the earliest deadline, and the most iterations by the one asked for."""
        return tuple(
            Offer(
                deadline_s=other.deadline_s,
                max_iterations=other.max_iterations,
                global_batch_size=spec_of(self.replanning.job).global_batch_size,
            )
            for other in (self._later(terms), self._fewer(terms))
            if other is not None
            and other.deadline_s is not None
            and (found := self.schedule(other)) is not None
            and self.replanning.objection(found) is None
        )

    def why_not(self, terms: Terms, offers: tuple[Offer, ...]) -> str:
        after, now_s = self._on(terms), self.replanning.session.now_s
        left_s = (after.deadline_s if terms.deadline_s is None else terms.deadline_s) - now_s  # as the user counts it
        cannot = (
            "would displace more than the job is worth"
            if self._is_overpriced(after)
            else "cannot be kept beside the other promises"
        )
        possible = " or ".join(f"{offer.max_iterations} in all in {offer.deadline_s - now_s:.0f} s" for offer in offers)
        return (
            f"{after.remaining_iterations:.0f} more iterations in {left_s:.{0 if left_s >= 1.0 else 1}f} s {cannot}; "
            f"possible instead: {possible or 'nothing'}; the existing promise is unchanged"
        )

    def _later(self, terms: Terms) -> Terms | None:
        after, session = self._on(terms), self.replanning.session
        earliest_s = self.replanning.earliest_deadline_s(after)
        if earliest_s is not None:
            earliest_s = session.first_affordable_s(after, earliest_s, 1.0)
        if earliest_s is None:
            return None
        return replace(terms, deadline_s=promised_deadline_s(session.state, earliest_s))

    def _fewer(self, terms: Terms) -> Terms | None:
        """The terms with fewer iterations; None if the job could not do one iteration more than it has done."""
        after = self._stopped(self._on(terms))
        fitting = most_iterations_by(self.replanning.others.plan, after)

        def is_overpriced(iterations: int) -> bool:
            return self._is_overpriced(replace(after, remaining_iterations=float(iterations)))

        fitting = bisect_left(range(1, fitting + 1), True, key=is_overpriced)
        in_all = math.floor(terms.max_iterations - after.remaining_iterations + fitting)
        if not self.replanning.job.iteration < in_all < terms.max_iterations:
            return None
        return replace(terms, max_iterations=in_all)

    def _on(self, terms: Terms) -> SchedulableJob:
        """The job on new terms."""
        before = self.replanning.before
        more = terms.max_iterations - spec_of(self.replanning.job).max_iterations
        after = replace(
            before,
            deadline_s=planned_deadline_s(self.replanning.session.state, terms.deadline_s),
            remaining_iterations=max(before.remaining_iterations + more, 1.0),
        )
        return self._stopped(after) if more else after

    def _stopped(self, job: SchedulableJob) -> SchedulableJob:
        """Workers learn of another number of iterations in a new generation, so the job stops once."""
        return replace(job, current_num_gpus=0, stalled_until_s=-math.inf)

    def needs_price(self, terms: Terms) -> bool:
        """Whether the terms ask for more than the promise that the job has."""
        return not self.replanning.before.asks_no_less_than(self._on(terms))

    def _is_overpriced(self, after: SchedulableJob) -> bool:
        asks_for_less = self.replanning.before.asks_no_less_than(after)
        return not asks_for_less and self.replanning.session.is_overpriced(after)


# --- rest on type --------------------------------------------------------------------------------------
# The rest of an admitted job on another GPU type than its own: what it costs there, and what keeps its promise.


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
        continues=None,
        job_class=JobClass.SLO if is_promised else JobClass.BEST_EFFORT,
    )
    curve = known_curve(session.state, spec, curves=session.cache.curves)
    if curve is None:
        return f"its speed on {name} is unknown, which `eflow profile` measures"
    rest = SubmittedJob(job_id=job.job_id, tenant=job.tenant, spec=spec, deadline_s=job.deadline_s)
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
    if ends_s is None:
        return f"on {name} {no_deadline(planned.planned_state, arriving, planned.promisable_gpus, session.now_s)}"
    return f"beside the promises on {name} it would end in {ends_s - session.now_s:.0f} s at the earliest"


def _on_the_reserve(session: AdmissionSession) -> AdmissionSession:
    """The session with the GPUs of the type that are kept for failures: what has failed is of another type."""
    state = session.planned_state
    without_reserve = fast_replace(state, config=replace(state.config, reserve_nodes=0))
    return fast_replace(session, planned_state=without_reserve, planned=None, search=None, rejected=())


# --- amend on types ------------------------------------------------------------------------------------
# An amendment that the job's own GPU type cannot keep is decided on the other types that its user accepts.


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
    if (
        job is None
        or not job.promised
        or amendment_obstacle(sessions.state, job, command, sessions.whole.now_s) is not None
    ):
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


# --- Commands that plan nothing: cancel a job, or checkpoint it now ------------------------------------
# Source: Amoeba, section 3, Table 1 (checkpoint).


def cancel(session: AdmissionSession, command: CancelJob) -> AdmissionSession:
    """Cancel a live job. A job that is cancelled already gets no event: the host repeats the reply."""
    job, now_s = session.state.job(command.job_id), session.now_s
    if job is None or job.tenant != command.tenant:
        why = no_such_job(session.pool, command.tenant, command.job_id)
        return session.with_event(
            CancelRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s)
        )
    if job.phase is Phase.CANCELLED:
        return session
    if not job.live:
        why = f"it has ended already: {job.phase.value}"
        return session.with_event(
            CancelRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s)
        )
    cancelled = JobCancelled(job_id=command.job_id, reason=command.reason, at_s=now_s)
    return session.with_event(cancelled).replanned()


def checkpoint(session: AdmissionSession, command: RequestCheckpoint) -> AdmissionSession:
    """Request a checkpoint where workers are ahead of the disk; otherwise the newest checkpoint is up to date."""
    return session.with_event(_checkpoint(session, command))


def _checkpoint(
    session: AdmissionSession, command: RequestCheckpoint
) -> CheckpointRequested | CheckpointUpToDate | CheckpointRejected:
    job, now_s = session.state.job(command.job_id), session.now_s
    if job is None or job.tenant != command.tenant:
        why = no_such_job(session.pool, command.tenant, command.job_id)
        return CheckpointRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s)
    if job.phase in (Phase.PROFILING, Phase.PROFILED, Phase.REJECTED):
        why = "the job was not admitted: it has no state to checkpoint"
        return CheckpointRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s)
    if job.live and job.gpus:
        return CheckpointRequested(job_id=command.job_id, store=command.store, at_s=now_s)
    iteration = job.iteration if job.phase is Phase.FINISHED else job.checkpoint_iteration
    return CheckpointUpToDate(job_id=command.job_id, iteration=iteration, at_s=now_s)


# --- jobs whose GPU type no longer suffices -----------------------------------------------------------
# Jobs whose GPU type no longer suffices continue on another one: nodes were lost, or came back with another type.
#
# A promise moves once the monitor has found it at risk, if its type cannot keep it and another type keeps it beside all
# promises there. A job without a promise, or past its deadline, moves once its type has had too few GPUs for a while.
# Nothing moves back by itself, and a job whose user named its type stays (docs/adr/0047).

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
    sessions = _moved_to_other_type(sessions, job, chosen, possible[chosen], lack)
    for gpu_type in (own, chosen):
        sessions = sessions.with_session(gpu_type, sessions.by_type[gpu_type].replanned())
    return sessions


def _stays(sessions: SessionsByType, job: Job, why: str) -> SessionsByType:
    kept = GpuTypeKept(job_id=job.job_id, explanation=why, at_s=sessions.whole.now_s)
    return sessions.after_whole(sessions.whole.with_event(kept))


def _moved_to_other_type(
    sessions: SessionsByType, job: Job, gpu_type: str, found: Alternative, lack: str
) -> SessionsByType:
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

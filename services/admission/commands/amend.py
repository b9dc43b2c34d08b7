"""Amending a promise: another deadline or another number of iterations for an admitted job.

The job is replanned beside all other promises; the existing promise is given up only if the new one can be kept.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

from elasticflow.services.admission.commands.replan import Found, Replanning, own
from elasticflow.services.admission.rejection.text import RUNS_NOWHERE, no_such_job
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.messages.commands import AmendJob
from elasticflow.shared.messages.event_summary import in_the_past
from elasticflow.shared.messages.events import AmendRejected, JobAmended
from elasticflow.shared.messages.rejection import Offer
from elasticflow.shared.scheduling.availability.earliest_completion import most_iterations_by
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.planned_pool import flat
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    planned_deadline_s,
    promised_deadline_s,
)
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import spec_of


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
    why = obstacle(job, command, now_s)
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


def obstacle(job: Job | None, command: AmendJob, now_s: float) -> str | None:
    """What speaks against it before anything is planned."""
    if job is None or job.tenant != command.tenant:
        return no_such_job(command.tenant)
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
        """With a session that knows prices."""
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
        cannot = (
            "would displace more than the job is worth"
            if self._is_overpriced(after)
            else "cannot be kept beside the other promises"
        )
        possible = " or ".join(f"{offer.max_iterations} in all in {offer.deadline_s - now_s:.0f} s" for offer in offers)
        return (
            f"{after.remaining_iterations:.0f} more iterations in {after.deadline_s - now_s:.0f} s {cannot}; "
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
        """None if the job could not do one iteration more than it has done."""
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

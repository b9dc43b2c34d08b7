"""Renegotiation: another deadline or another number of iterations for a job that was promised one already.

The job is planned anew beside all other promises; only where that works is the old promise given up.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

from services.admission.promises import Promises, asks_no_less
from services.admission.refusals import no_such_job
from services.admission.replanning import Found, Replanning, own
from shared.messages.commands import AmendJob
from shared.messages.events import AmendRefused, JobAmended
from shared.messages.job_state import Job, Phase
from shared.messages.offer import Offer
from shared.messages.pool_state import PoolState, spec_of
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.outlook import planned_deadline_s
from shared.scheduling.planned_pool import flat
from shared.scheduling.quoting import most_iterations_by


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What the job is to be from now on."""

    deadline_s: float | None
    max_iterations: int


def amend(state: PoolState, promises: Promises, wish: AmendJob, now_s: float) -> JobAmended | AmendRefused:
    """Grant it if it can be kept beside all other promises. The same wish again is granted again."""
    job = state.job(wish.job_id)
    why = _obstacle(job, wish, now_s)
    if why is not None or job is None:
        return AmendRefused(job_id=wish.job_id, explanation=why or "", at_s=now_s)
    terms = _Terms(
        deadline_s=job.deadline_s if wish.deadline_s is None else wish.deadline_s,
        max_iterations=wish.max_iterations or spec_of(job).max_iterations,
    )
    if job.promised:
        return _promised_anew(state, promises, job, terms, now_s)
    return JobAmended(
        job_id=job.job_id,
        deadline_s=terms.deadline_s,
        max_iterations=terms.max_iterations,
        minimum_satisfactory_share=(),
        gpu_seconds=0.0,
        at_s=now_s,
    )


def _obstacle(job: Job | None, wish: AmendJob, now_s: float) -> str | None:
    """What stands against it before anything is planned."""
    if job is None or job.tenant != wish.tenant:
        return no_such_job(wish.tenant)
    if not job.live:
        return f"it has ended already: {job.phase.value}"
    if job.phase is Phase.PROFILING:
        return "its speed is being measured: nothing is promised yet; amend it once it is admitted"
    if wish.deadline_s is None and wish.max_iterations is None:
        return "deadline_s, max_iterations: give one of them at least"
    if wish.deadline_s is not None and not spec_of(job).job_class.has_deadline:
        return f"deadline_s: a {spec_of(job).job_class.value} job has none"
    if wish.deadline_s is not None and wish.deadline_s <= now_s:
        return f"deadline_s: it is {now_s - wish.deadline_s:.0f} s in the past; choose a later one"
    if wish.max_iterations is not None and wish.max_iterations <= job.iteration:
        return f"max_iterations: it has done {job.iteration} already; choose more, or cancel it"
    return None


def _promised_anew(
    state: PoolState, promises: Promises, job: Job, terms: _Terms, now_s: float
) -> JobAmended | AmendRefused:
    replanning = Replanning.of(state, promises, job, now_s)
    if replanning is None:
        why = "it runs nowhere here now"
        return AmendRefused(job_id=job.job_id, explanation=why, at_s=now_s)
    anew = _Renegotiation(replanning)
    found = anew.schedule(terms)
    if found is None:
        offers = anew.offers(terms)
        why = anew.why_not(terms, offers)
        return AmendRefused(job_id=job.job_id, explanation=why, offers=offers, at_s=now_s)
    why = replanning.objection(found)
    if why is not None:
        return AmendRefused(job_id=job.job_id, explanation=why, at_s=now_s)
    return anew.granted(terms, found)


@dataclass(frozen=True, slots=True)
class _Renegotiation:
    """On which other terms the job could be promised."""

    anew: Replanning

    def schedule(self, terms: _Terms) -> Found | None:
        """What keeps the terms."""
        after = self._on(terms)
        return None if self._is_too_dear(after) else self.anew.found(after)

    def granted(self, terms: _Terms, found: Found) -> JobAmended:
        return JobAmended(
            job_id=self.anew.job.job_id,
            deadline_s=terms.deadline_s,
            max_iterations=terms.max_iterations,
            minimum_satisfactory_share=flat(own(found)),
            gpu_seconds=self.anew.added_gpu_seconds(found),
            replanned=self.anew.replanned(found),
            at_s=self.anew.now_s,
        )

    def offers(self, terms: _Terms) -> tuple[Offer, ...]:
        """Terms that would be granted now: the earliest deadline, and the most iterations by the one asked for."""
        return tuple(
            Offer(
                deadline_s=other.deadline_s,
                max_iterations=other.max_iterations,
                global_batch_size=spec_of(self.anew.job).global_batch_size,
            )
            for other in (self._later(terms), self._fewer(terms))
            if other is not None
            and other.deadline_s is not None
            and (found := self.schedule(other)) is not None
            and self.anew.objection(found) is None
        )

    def why_not(self, terms: _Terms, offers: tuple[Offer, ...]) -> str:
        after = self._on(terms)
        dear = self._is_too_dear(after)
        cannot = (
            "would crowd out more than it is worth" if dear else "cannot be kept beside the other promises"
        )
        would_do = " or ".join(
            f"{offer.max_iterations} in all in {offer.deadline_s - self.anew.now_s:.0f} s" for offer in offers
        )
        return (
            f"{after.remaining_iterations:.0f} iterations more in {after.deadline_s - self.anew.now_s:.0f} s: "
            f"that {cannot}; {would_do or 'nothing else'} would do; the promise of before stays"
        )

    def _later(self, terms: _Terms) -> _Terms | None:
        after = self._on(terms)
        earliest_s = self.anew.earliest_deadline_s(after)
        if earliest_s is not None:
            earliest_s = self.anew.promises.first_worth_s(after, earliest_s, 1.0)
        if earliest_s is None:
            return None
        return replace(terms, deadline_s=earliest_s + self.anew.state.config.deadline_slack_s)

    def _fewer(self, terms: _Terms) -> _Terms | None:
        """None if not one more than it has done."""
        after = self._stopped(self._on(terms))
        fitting = most_iterations_by(self.anew.others.plan, after)

        def is_too_dear(iterations: int) -> bool:
            return self._is_too_dear(replace(after, remaining_iterations=float(iterations)))

        fitting = bisect_left(range(1, fitting + 1), True, key=is_too_dear)
        in_all = math.floor(terms.max_iterations - after.remaining_iterations + fitting)
        if not self.anew.job.iteration < in_all < terms.max_iterations:
            return None
        return replace(terms, max_iterations=in_all)

    def _on(self, terms: _Terms) -> SchedulableJob:
        """The job on new terms."""
        more = terms.max_iterations - spec_of(self.anew.job).max_iterations
        after = replace(
            self.anew.before,
            deadline_s=planned_deadline_s(self.anew.state, terms.deadline_s),
            remaining_iterations=max(self.anew.before.remaining_iterations + more, 1.0),
        )
        return self._stopped(after) if more else after

    def _stopped(self, job: SchedulableJob) -> SchedulableJob:
        """Workers learn of other iterations in a new generation: whatever the job holds, it stops once."""
        return replace(job, current_num_gpus=0, stalled_until_s=-math.inf)

    def _is_too_dear(self, after: SchedulableJob) -> bool:
        return not asks_no_less(self.anew.before, after) and self.anew.promises.is_too_dear(after)

"""One decision of admission in the making: each wish is judged on what the ones before it left.

Source: ElasticFlow, section 4.1 and Algorithm 1 (shared/scheduling).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from services.admission.counteroffers import Refusal, refuse
from services.admission.promises import Promises
from services.admission.quotes import take, why_not_taken
from services.admission.refusals import problems_of, size_problems, too_small, why_unrunnable
from services.admission.rules import Request, objection
from shared.messages.commands import ProfileJob, SubmitJob
from shared.messages.events import (
    AdmissionEvent,
    BoundEnded,
    JobAdmitted,
    JobAmended,
    JobCancelled,
    JobMeasured,
    JobRejected,
    JobScaled,
    ProfileRequested,
    QuoteHeld,
    RejectionReason,
)
from shared.messages.fold_admission import is_anew
from shared.messages.fold_curves import with_range
from shared.messages.job import JobClass, JobSpec
from shared.messages.job_state import Job
from shared.messages.lifecycle import apply
from shared.messages.outcome import waits_for
from shared.messages.pool_state import PoolState, spec_of
from shared.scheduling.job_table import SchedulableJob, gpu_seconds
from shared.scheduling.outlook import known_curve, newcomer, profile_known
from shared.scheduling.planned_pool import flat
from shared.scheduling.proposal import Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A submission, or one that waited for its profile. deadline_s: absolute; only_measured: it asks for no more."""

    job_id: str
    tenant: str
    spec: JobSpec
    deadline_s: float | None
    only_measured: bool = False


class Desk:
    """One decision in the making: what was said so far, and the state and the plan that it leaves."""

    def __init__(self, state: PoolState, now_s: float) -> None:
        self.state, self.now_s = state, now_s
        self.said: list[AdmissionEvent] = []
        self.promises = Promises(state, now_s)

    def in_order(self, submissions: Sequence[SubmitJob]) -> list[SubmitJob]:
        """Wishes that came together, as they are to be judged: selective admission judges the smallest first."""
        asked = [self._least_gpu_seconds(submission) for submission in submissions]
        self.promises.expect(least for least in asked if least > 0)
        if self.state.config.admission == "first-come":
            return list(submissions)
        order = sorted(range(len(submissions)), key=lambda index: asked[index])
        return [submissions[index] for index in order]

    def _least_gpu_seconds(self, submission: SubmitJob) -> float:
        """0 where no deadline is asked for, or nothing is known yet."""
        spec, deadline_s = submission.spec, submission.spec.resolved_deadline_s(self.now_s)
        state = with_range(self.state, spec)
        curve = known_curve(state, spec) if spec.job_class is JobClass.SLO else None
        if curve is None or deadline_s is None:
            return 0.0
        job = newcomer(state, submission.job_id, spec, curve, deadline_s)
        return self.promises.least_gpu_seconds(job)

    def submit(self, submission: SubmitJob | ProfileJob) -> None:
        """Say something about a submission, unless the same was said before."""
        spec = submission.spec
        self.state = with_range(self.state, spec)
        wish = Wish(
            job_id=submission.job_id,
            tenant=submission.tenant,
            spec=spec,
            deadline_s=spec.resolved_deadline_s(self.now_s),
            only_measured=isinstance(submission, ProfileJob),
        )
        if self._is_anothers(wish):
            why = f"job_id: a quote of another tenant is held under the name {wish.job_id}; choose another"
            self._reject(wish, "duplicate", why)
            return
        known = self.state.job(wish.job_id)
        if known is not None and not is_anew(known, submission):
            same = (known.submitted or known.spec, known.tenant, known.only_measured)
            if same != (spec, wish.tenant, wish.only_measured):
                why = f"job_id: {wish.job_id} names another job already, of another spec or tenant; choose another"
                self._reject(wish, "duplicate", why)
            return
        problems = problems_of(self.state, spec, self.now_s)
        if problems:
            self._reject(wish, "invalid", "; ".join(problems))
        elif isinstance(submission, SubmitJob) and (taken := self._taken(submission)) is not None:
            self.say(taken)
            self.promises.look_again(self.state)
        elif self.state.num_gpus and (profile_known(self.state, spec) or too_small(self.state, spec)):
            self._admit_or_reject(wish)
        elif not self._objected(wish, 0.0):
            self.say(
                ProfileRequested(
                    job_id=wish.job_id,
                    tenant=wish.tenant,
                    spec=spec,
                    deadline_s=wish.deadline_s,
                    only_measured=wish.only_measured,
                    waits_for=waits_for(self.state),
                    at_s=self.now_s,
                )
            )

    def _taken(self, submission: SubmitJob) -> JobAdmitted | None:
        """As it was quoted."""
        return take(self.state, self.promises, submission, self.now_s)

    def _is_anothers(self, wish: Wish) -> bool:
        quote = self.state.held_quotes.get(wish.job_id)
        return quote is not None and quote.tenant != wish.tenant and self.now_s < quote.until_s

    def answer(self, said: AdmissionEvent | None) -> None:
        """Say what was judged of a wish, if the same was not said before; what then is there to plan on is another."""
        if said is not None:
            self.say(said)
        if isinstance(said, QuoteHeld | JobAmended | JobCancelled | JobScaled | BoundEnded):
            self.promises.look_again(self.state)

    def decide_waiting(self, job: Job) -> None:
        """Decide on a job that waits for its profile, or for the first node of a pool, if that is over or too late."""
        spec = spec_of(job)
        wish = Wish(
            job_id=job.job_id,
            tenant=job.tenant,
            spec=spec,
            deadline_s=job.deadline_s,
            only_measured=job.only_measured,
        )
        if self.state.num_gpus and profile_known(self.state, spec):
            problems = size_problems(self.state, spec)
            if problems:
                self._reject(wish, "invalid", "; ".join(problems))
            else:
                self._admit_or_reject(wish)
        elif wish.deadline_s is not None and wish.deadline_s <= self.now_s:
            missed = "its speed could be measured" if self.state.num_gpus else "a node joined the pool"
            reason = "deadline" if self.state.num_gpus else "unrunnable"
            self._reject(wish, reason, f"its deadline passed before {missed}")

    def _admit_or_reject(self, wish: Wish) -> None:
        spec, curve = wish.spec, known_curve(self.state, wish.spec)
        if curve is None:
            self._reject(wish, "unrunnable", why_unrunnable(self.state, spec))
            return
        if wish.only_measured:
            rates = self.state.curves[spec.profile_key].iterations_per_s
            self.say(JobMeasured(job_id=wish.job_id, iterations_per_s=rates, at_s=self.now_s))
            return
        if spec.job_class is JobClass.SLO:
            self._promise(wish, newcomer(self.state, wish.job_id, spec, curve, wish.deadline_s))
            return
        cheapest = curve.least_gpu_seconds(float(spec.max_iterations), math.inf)
        if not self._objected(wish, cheapest):
            self._admit(wish, cheapest)

    def _promise(self, wish: Wish, job: SchedulableJob) -> None:
        least = self.promises.least_gpu_seconds(job)
        can_ever_be = math.isfinite(least)
        dear = can_ever_be and self.promises.is_too_dear(job)
        proposal = self.promises.propose(job) if can_ever_be and not dear else None
        if proposal is None:
            dear = dear and self.promises.has_room_for(job)
            refusal = refuse(self.promises, job, wish.spec, dear=dear)
            asked = least if can_ever_be else 0.0
            why = why_not_taken(self.state, self.promises, job, self.now_s) + refusal.explanation
            self._reject(wish, refusal.reason, why, refusal, asked)
            return
        needed = gpu_seconds(proposal.schedule)
        if not self._objected(wish, needed):
            self._admit(wish, needed, proposal, least)

    def _admit(
        self,
        wish: Wish,
        needed_gpu_seconds: float,
        proposal: Proposal | None = None,
        least_gpu_seconds: float = 0.0,
    ) -> None:
        own = flat(proposal.schedule) if proposal else ()
        replanned = self.promises.accept(proposal) if proposal else {}
        self.say(
            JobAdmitted(
                job_id=wish.job_id,
                tenant=wish.tenant,
                spec=wish.spec,
                deadline_s=wish.deadline_s,
                minimum_satisfactory_share=own,
                gpu_seconds=needed_gpu_seconds,
                least_gpu_seconds=least_gpu_seconds,
                replanned=replanned,
                at_s=self.now_s,
            )
        )

    def _objected(self, wish: Wish, needed_gpu_seconds: float) -> bool:
        """Whether a rule stands against it; then that was said."""
        request = Request(
            job_id=wish.job_id, tenant=wish.tenant, gpu_seconds=needed_gpu_seconds, at_s=self.now_s
        )
        why = objection(self.state, request)
        if why is not None:
            self._reject(wish, "quota", why)
        return why is not None

    def _reject(
        self,
        wish: Wish,
        reason: RejectionReason,
        explanation: str,
        refusal: Refusal | None = None,
        least_gpu_seconds: float = 0.0,
    ) -> None:
        earliest_s = refusal.earliest_deadline_s if refusal else None
        self.say(
            JobRejected(
                job_id=wish.job_id,
                tenant=wish.tenant,
                spec=wish.spec,
                reason=reason,
                explanation=explanation,
                deadline_s=wish.deadline_s,
                earliest_deadline_s=(
                    None if earliest_s is None else earliest_s + self.state.config.deadline_slack_s
                ),
                least_gpu_seconds=least_gpu_seconds,
                offers=refusal.offers if refusal else (),
                witness=refusal.witness if refusal else None,
                at_s=self.now_s,
            )
        )

    def say(self, event: AdmissionEvent) -> None:
        self.said.append(event)
        self.state = apply(self.state, event, self.state.sequence + 1)

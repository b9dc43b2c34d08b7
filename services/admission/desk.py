"""One decision of admission in the making: each wish is judged on what the ones before it left.

Source: ElasticFlow, section 4.1 and Algorithm 1 (shared/scheduling).
"""

import math
from collections.abc import Sequence

from services.admission.amendments import amend
from services.admission.promises import Promises, Refusal
from services.admission.quotes import hold, take
from services.admission.refusals import problems_of, size_problems
from services.admission.rules import Request, objection
from shared.messages.commands import AmendJob, CancelJob, HoldQuote, SubmitJob
from shared.messages.events import (
    AdmissionEvent,
    CancelRefused,
    JobAdmitted,
    JobAmended,
    JobCancelled,
    JobRejected,
    ProfileRequested,
    QuoteHeld,
    RejectionReason,
)
from shared.messages.fold_admission import is_anew
from shared.messages.job import JobClass, JobSpec
from shared.messages.lifecycle import apply
from shared.messages.pool_state import Phase, PoolState
from shared.scheduling.admission_plan import Proposal
from shared.scheduling.job_table import SchedulableJob, gpu_seconds
from shared.scheduling.outlook import known_curve, largest_level, newcomer, profile_known
from shared.scheduling.planned_pool import flat


class Desk:
    """One decision in the making: what was said so far, and the state and the plan that it leaves."""

    def __init__(self, state: PoolState, now_s: float) -> None:
        self.state, self.now_s = state, now_s
        self.said: list[AdmissionEvent] = []
        self.promises = Promises(state, now_s)

    def in_order(self, wishes: Sequence[SubmitJob]) -> list[SubmitJob]:
        """Wishes that came together, as they are to be judged: selective admission judges the smallest first."""
        asked = [self._least_gpu_seconds(wish) for wish in wishes]
        self.promises.expect(least for least in asked if 0 < least < math.inf)
        if self.state.config.admission == "first-come":
            return list(wishes)
        order = sorted(range(len(wishes)), key=lambda index: asked[index])
        return [wishes[index] for index in order]

    def _least_gpu_seconds(self, wish: SubmitJob) -> float:
        """0 where no deadline is asked for, or nothing is known yet."""
        spec, deadline_s = wish.spec, wish.spec.resolved_deadline_s(self.now_s)
        curve = known_curve(self.state, spec) if spec.job_class is JobClass.SLO else None
        if curve is None or deadline_s is None:
            return 0.0
        return self.promises.least_gpu_seconds(newcomer(self.state, wish.job_id, spec, curve, deadline_s))

    def submit(self, wish: SubmitJob) -> None:
        """Say something about a submission, unless the same was said before."""
        known, spec = self.state.job(wish.job_id), wish.spec
        deadline_s = spec.resolved_deadline_s(self.now_s)
        if self._is_anothers(wish):
            why = (
                f"job_id: a quote of this name is held for another tenant; choose another than {wish.job_id}"
            )
            self._reject(wish.job_id, wish.tenant, spec, "duplicate", why, deadline_s=deadline_s)
            return
        if known is not None and not is_anew(known, wish):
            if (known.submitted or known.spec) != spec or known.tenant != wish.tenant:
                why = f"job_id: {wish.job_id} names another job already, of another spec or tenant; choose another"
                self._reject(wish.job_id, wish.tenant, spec, "duplicate", why, deadline_s=deadline_s)
            return
        problems = problems_of(self.state, spec, self.now_s)
        if problems:
            why = "; ".join(problems)
            self._reject(wish.job_id, wish.tenant, spec, "invalid", why, deadline_s=deadline_s)
        elif (taken := take(self.state, self.promises, wish, self.now_s)) is not None:
            self.say(taken)
            self.promises.look_again(self.state)
        elif profile_known(self.state, spec):
            self._admit_or_reject(wish.job_id, wish.tenant, spec, deadline_s)
        elif not self._objected(wish.job_id, wish.tenant, spec, deadline_s, 0.0):
            self.say(
                ProfileRequested(
                    job_id=wish.job_id,
                    tenant=wish.tenant,
                    spec=spec,
                    deadline_s=deadline_s,
                    at_s=self.now_s,
                )
            )

    def _is_anothers(self, wish: SubmitJob) -> bool:
        quote = self.state.held_quotes.get(wish.job_id)
        return quote is not None and quote.tenant != wish.tenant and self.now_s < quote.until_s

    def hold(self, wish: HoldQuote) -> None:
        """Quote a deadline and reserve what keeps it."""
        answer = hold(self.state, self.promises, wish, self.now_s)
        if answer is not None:
            self.say(answer)
        if isinstance(answer, QuoteHeld):
            self.promises.look_again(self.state)

    def amend(self, wish: AmendJob) -> None:
        """Promise something else than before, or leave it as it was."""
        answer = amend(self.state, self.promises, wish, self.now_s)
        self.say(answer)
        if isinstance(answer, JobAmended):
            self.promises.look_again(self.state)

    def cancel(self, wish: CancelJob) -> None:
        job = self.state.job(wish.job_id)
        if job is None or job.tenant != wish.tenant:
            why = f"tenant {wish.tenant} has no such job; `eflow jobs --all` lists them"
        elif job.phase is Phase.CANCELLED:
            return  # the same wish again; the host repeats the answer
        elif not job.live:
            why = f"it has ended already: {job.phase.value}"
        else:
            self.say(JobCancelled(job_id=wish.job_id, reason=wish.reason, at_s=self.now_s))
            self.promises.look_again(self.state)
            return
        self.say(CancelRefused(job_id=wish.job_id, explanation=why, at_s=self.now_s))

    def decide_profiled(self, job_id: str, tenant: str, spec: JobSpec, deadline_s: float | None) -> None:
        """Decide on a job that waits for its profile, if it is known now or comes too late."""
        if profile_known(self.state, spec):
            problems = size_problems(self.state, spec)
            if problems:
                self._reject(job_id, tenant, spec, "invalid", "; ".join(problems))
            else:
                self._admit_or_reject(job_id, tenant, spec, deadline_s)
        elif deadline_s is not None and deadline_s <= self.now_s:
            why = "its deadline passed before its speed could be measured"
            self._reject(job_id, tenant, spec, "deadline", why, deadline_s=deadline_s)

    def _admit_or_reject(self, job_id: str, tenant: str, spec: JobSpec, deadline_s: float | None) -> None:
        curve = known_curve(self.state, spec)
        if curve is None:
            most = largest_level(self.state, spec)
            why = (
                f"at this batch size it does not run on 1 to {most} GPUs"
                if most
                else "the pool has no GPUs now"
            )
            self._reject(job_id, tenant, spec, "unrunnable", why, deadline_s=deadline_s)
            return
        if spec.job_class is JobClass.SLO:
            self._promise(tenant, spec, newcomer(self.state, job_id, spec, curve, deadline_s), deadline_s)
            return
        cheapest = curve.least_gpu_seconds(float(spec.max_iterations), math.inf)
        if not self._objected(job_id, tenant, spec, deadline_s, cheapest):
            self._admit(job_id, tenant, spec, deadline_s, cheapest)

    def _promise(self, tenant: str, spec: JobSpec, job: SchedulableJob, deadline_s: float | None) -> None:
        least = self.promises.least_gpu_seconds(job)
        proposal = self.promises.propose(job) if math.isfinite(least) else None
        dear = proposal is not None and self.promises.is_too_dear(job)
        if proposal is None or dear:
            refusal = self.promises.refuse(job, spec, dear=dear)
            self._reject(
                job.job_id,
                tenant,
                spec,
                refusal.reason,
                refusal.explanation,
                deadline_s=deadline_s,
                refusal=refusal,
                least_gpu_seconds=least if math.isfinite(least) else 0.0,
            )
            return
        needed = gpu_seconds(proposal.schedule)
        if not self._objected(job.job_id, tenant, spec, deadline_s, needed):
            self._admit(job.job_id, tenant, spec, deadline_s, needed, proposal, least)

    def _admit(
        self,
        job_id: str,
        tenant: str,
        spec: JobSpec,
        deadline_s: float | None,
        needed_gpu_seconds: float,
        proposal: Proposal | None = None,
        least_gpu_seconds: float = 0.0,
    ) -> None:
        own = flat(proposal.schedule) if proposal else ()
        replanned = self.promises.accept(proposal) if proposal else {}
        self.say(
            JobAdmitted(
                job_id=job_id,
                tenant=tenant,
                spec=spec,
                deadline_s=deadline_s,
                minimum_satisfactory_share=own,
                gpu_seconds=needed_gpu_seconds,
                least_gpu_seconds=least_gpu_seconds,
                replanned=replanned,
                at_s=self.now_s,
            )
        )

    def _objected(
        self, job_id: str, tenant: str, spec: JobSpec, deadline_s: float | None, needed_gpu_seconds: float
    ) -> bool:
        """Whether a rule stands against it; then that was said."""
        request = Request(job_id=job_id, tenant=tenant, gpu_seconds=needed_gpu_seconds, at_s=self.now_s)
        why = objection(self.state, request)
        if why is not None:
            self._reject(job_id, tenant, spec, "quota", why, deadline_s=deadline_s)
        return why is not None

    def _reject(
        self,
        job_id: str,
        tenant: str,
        spec: JobSpec,
        reason: RejectionReason,
        explanation: str,
        *,
        deadline_s: float | None = None,
        refusal: Refusal | None = None,
        least_gpu_seconds: float = 0.0,
    ) -> None:
        earliest_s = refusal.earliest_deadline_s if refusal else None
        self.say(
            JobRejected(
                job_id=job_id,
                tenant=tenant,
                spec=spec,
                reason=reason,
                explanation=explanation,
                deadline_s=deadline_s,
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

"""One decision of admission in the making: each wish is judged on what the ones before it left.

Source: ElasticFlow, section 4.1 and Algorithm 1 (shared/scheduling).
"""

import math

from services.admission.refusals import problems_of, size_problems, why_late
from services.admission.rules import Request, objection
from shared.messages.commands import CancelJob, SubmitJob
from shared.messages.events import (
    AdmissionEvent,
    CancelRefused,
    JobAdmitted,
    JobCancelled,
    JobRejected,
    ProfileRequested,
    RejectionReason,
)
from shared.messages.fold_admission import is_anew
from shared.messages.job import JobClass, JobSpec
from shared.messages.lifecycle import apply
from shared.messages.pool_state import Phase, PoolState
from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.outlook import (
    admission_plan,
    as_steps,
    known_curve,
    largest_level,
    newcomer,
    profile_known,
)
from shared.scheduling.progressive_filling import SchedulableJob, gpu_seconds
from shared.scheduling.scaling_curve import ScalingCurve

MAX_TIGHT_OFFERS = 1  # of one decision: a tight one costs as much as ten wishes, which all wait for it


class Desk:
    """One decision in the making: what was said so far, and the state and the plan that it leaves."""

    def __init__(self, state: PoolState, now_s: float) -> None:
        self.state, self.now_s = state, now_s
        self.said: list[AdmissionEvent] = []
        self._plan: AdmissionPlan | None = None
        self._refused: list[SchedulableJob] = []  # beside this plan
        self._num_tight_offers = 0

    @property
    def plan(self) -> AdmissionPlan:
        if self._plan is None:
            self._plan = admission_plan(self.state, self.now_s)
        return self._plan

    def _replan(self, plan: AdmissionPlan | None) -> None:
        """Go on with this plan; None: with one made anew."""
        self._plan, self._refused = plan, []

    def submit(self, wish: SubmitJob) -> None:
        """Say something about a submission, unless the same was said before."""
        known, spec = self.state.job(wish.job_id), wish.spec
        deadline_s = spec.resolved_deadline_s(self.now_s)
        if known is not None and not is_anew(known, wish):
            if known.spec != spec or known.tenant != wish.tenant:
                why = f"job_id: {wish.job_id} names another job already, of another spec or tenant; choose another"
                self._reject(wish.job_id, wish.tenant, spec, "duplicate", why, deadline_s=deadline_s)
            return
        problems = problems_of(self.state, spec, self.now_s)
        if problems:
            why = "; ".join(problems)
            self._reject(wish.job_id, wish.tenant, spec, "invalid", why, deadline_s=deadline_s)
        elif profile_known(self.state, spec):
            self._admit_or_reject(wish.job_id, wish.tenant, spec, deadline_s)
        elif not self._objected(wish.job_id, wish.tenant, spec, deadline_s, 0.0):
            self._say(
                ProfileRequested(
                    job_id=wish.job_id,
                    tenant=wish.tenant,
                    spec=spec,
                    deadline_s=deadline_s,
                    at_s=self.now_s,
                )
            )

    def cancel(self, wish: CancelJob) -> None:
        job = self.state.job(wish.job_id)
        if job is None or job.tenant != wish.tenant:
            why = f"tenant {wish.tenant} has no such job; `eflow jobs --all` lists them"
        elif job.phase is Phase.CANCELLED:
            return  # the same wish again; the host repeats the answer
        elif not job.live:
            why = f"it has ended already: {job.phase.value}"
        else:
            self._say(JobCancelled(job_id=wish.job_id, reason=wish.reason, at_s=self.now_s))
            self._replan(None)
            return
        self._say(CancelRefused(job_id=wish.job_id, explanation=why, at_s=self.now_s))

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

    def earliest_deadline_s(self, job_id: str, spec: JobSpec, curve: ScalingCurve) -> float | None:
        """The earliest deadline that would be promised now; in whole seconds, if the slack is."""
        job = newcomer(self.state, job_id, spec, curve, None)
        return self._deadline_s(self.plan.earliest_deadline_s(job))

    def _admitting(self, job: SchedulableJob) -> AdmissionPlan | None:
        """The plan with this job promised too, or None; at once if less was refused already."""
        if any(_asks_no_less(job, refused) for refused in self._refused):
            return None
        plan = self.plan.admit(job)
        if plan is None:
            self._refused.append(job)
        return plan

    def _offer_s(self, job: SchedulableJob) -> float | None:
        """A later deadline that would be promised if taken at once.

        The first offers of a decision are the earliest ones that there are; when many wishes come at once the
        others are the earliest that move no other job, a little later at most times and much cheaper. A quote
        is always tight.
        """
        self._num_tight_offers += 1
        if self._num_tight_offers <= MAX_TIGHT_OFFERS:
            return self._deadline_s(self.plan.earliest_deadline_s(job))
        return self._deadline_s(self.plan.earliest_deadline_around_s(job))

    def _deadline_s(self, planned_s: float | None) -> float | None:
        """The deadline whose planned end is this: exactly, for filling is not monotone in the deadline."""
        return None if planned_s is None else planned_s + self.state.config.deadline_slack_s

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
            self._promise(job_id, tenant, spec, curve, deadline_s)
            return
        cheapest = curve.least_gpu_seconds(float(spec.max_iterations), math.inf)
        if not self._objected(job_id, tenant, spec, deadline_s, cheapest):
            self._admit(job_id, tenant, spec, deadline_s, cheapest)

    def _promise(
        self, job_id: str, tenant: str, spec: JobSpec, curve: ScalingCurve, deadline_s: float | None
    ) -> None:
        job = newcomer(self.state, job_id, spec, curve, deadline_s)
        plan = self._admitting(job)
        if plan is None:
            earliest_s = self._offer_s(job)
            why = why_late(self.state, spec, curve, deadline_s, earliest_s, self.now_s)
            self._reject(
                job_id, tenant, spec, "deadline", why, deadline_s=deadline_s, earliest_deadline_s=earliest_s
            )
            return
        needed = gpu_seconds(plan.schedules[job_id])
        if not self._objected(job_id, tenant, spec, deadline_s, needed):
            self._admit(job_id, tenant, spec, deadline_s, needed, plan)

    def _admit(
        self,
        job_id: str,
        tenant: str,
        spec: JobSpec,
        deadline_s: float | None,
        needed_gpu_seconds: float,
        plan: AdmissionPlan | None = None,
    ) -> None:
        before = self.plan.schedules
        self._say(
            JobAdmitted(
                job_id=job_id,
                tenant=tenant,
                spec=spec,
                deadline_s=deadline_s,
                minimum_satisfactory_share=as_steps(plan.schedules[job_id]) if plan else (),
                gpu_seconds=needed_gpu_seconds,
                replanned={
                    other: as_steps(schedule)
                    for other, schedule in (plan.schedules.items() if plan else ())
                    if other != job_id and schedule != before[other]
                },
                at_s=self.now_s,
            )
        )
        if plan:
            self._replan(plan)

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
        earliest_deadline_s: float | None = None,
    ) -> None:
        self._say(
            JobRejected(
                job_id=job_id,
                tenant=tenant,
                spec=spec,
                reason=reason,
                explanation=explanation,
                deadline_s=deadline_s,
                earliest_deadline_s=earliest_deadline_s,
                at_s=self.now_s,
            )
        )

    def _say(self, event: AdmissionEvent) -> None:
        self.said.append(event)
        self.state = apply(self.state, event, self.state.sequence + 1)


def _asks_no_less(job: SchedulableJob, other: SchedulableJob) -> bool:
    """Whether `job` takes as long as `other` on any number of GPUs, and is due no later."""
    return job.deadline_s <= other.deadline_s and all(
        job.remaining_iterations * other.curve.throughput(level)
        >= other.remaining_iterations * job.curve.throughput(level)
        for level in job.curve.levels
    )

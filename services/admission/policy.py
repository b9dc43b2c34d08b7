"""Admission control: minimum satisfactory shares for all promises, or no promise.

Source: ElasticFlow, section 4.1 and Algorithm 1 (shared/scheduling/minimum_satisfactory_share.py); quotas as the
policy hook of its section 4.4.
"""

import math
from dataclasses import replace
from datetime import UTC, datetime

from shared.messages.commands import CancelJob, Command, QuoteDeadline, SubmitJob
from shared.messages.events import (
    AdmissionEvent,
    CancelRefused,
    DeadlineQuoted,
    JobAdmitted,
    JobCancelled,
    JobRejected,
    ProfileRequested,
    RejectionReason,
)
from shared.messages.job import JobClass, JobSpec
from shared.messages.lifecycle import apply, spec_of
from shared.messages.policy import planner
from shared.messages.pool_state import Phase, PoolState
from shared.scheduling.minimum_satisfactory_share import AdmissionPlan, SchedulableJob, gpu_seconds
from shared.scheduling.outlook import (
    admission_plan,
    as_steps,
    known_curve,
    largest_level,
    newcomer,
    resize_cost_s,
)
from shared.scheduling.quota import Quota, TenantUsage, quota_refusal
from shared.scheduling.scaling_curve import ScalingCurve

MAX_TIGHT_OFFERS = 1  # of one decision: a tight one costs as much as ten wishes, which all wait for it


def decide(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[AdmissionEvent, ...]:
    """Answer each wish in turn, each on what the ones before it left; then the jobs whose profile is known now."""
    desk = _Desk(state, now_s)
    for command in commands:
        match command:
            case SubmitJob():
                desk.submit(command)
            case CancelJob():
                desk.cancel(command)
    for job in sorted(desk.state.live_jobs.values(), key=lambda job: (job.decided_sequence, job.job_id)):
        if job.phase is Phase.PROFILING:
            desk.decide_profiled(job.job_id, job.tenant, spec_of(job), job.deadline_s)
    return tuple(desk.said)


def wake_at_s(state: PoolState) -> float | None:
    """When the first job that still waits for its profile runs out of time."""
    waiting = [
        job.deadline_s
        for job in state.live_jobs.values()
        if job.phase is Phase.PROFILING and job.deadline_s is not None
    ]
    return min(waiting, default=None)


def quote(state: PoolState, question: QuoteDeadline, now_s: float) -> DeadlineQuoted:
    """The earliest deadline that this job would be promised now; nothing is reserved."""
    desk, spec = _Desk(state, now_s), question.spec
    problems = _problems(state, replace(spec, job_class=JobClass.BEST_EFFORT), now_s)
    curve = known_curve(state, spec)
    if problems or curve is None:
        why = (
            "; ".join(problems)
            or "its speed is not known yet: submit it, it is measured before it is decided"
        )
        return DeadlineQuoted(earliest_deadline_s=None, explanation=why, at_s=now_s)
    earliest_s = desk.earliest_deadline_s("quote", spec, curve)
    if earliest_s is None:
        why = f"no deadline would do on {state.num_gpus} GPUs"
        return DeadlineQuoted(earliest_deadline_s=None, explanation=why, at_s=now_s)
    job = newcomer(state, "quote", spec, curve, earliest_s)
    plan = desk.plan.admit(job)
    assert plan is not None, "a quoted deadline is accepted if taken at once"
    return DeadlineQuoted(
        earliest_deadline_s=earliest_s, gpu_seconds=gpu_seconds(plan.schedules["quote"]), at_s=now_s
    )


class _Desk:
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
        if known is not None:
            if known.spec != spec or known.tenant != wish.tenant:
                why = f"job_id: {wish.job_id} names another job already, of another spec or tenant"
                self._reject(wish.job_id, wish.tenant, spec, "duplicate", why, deadline_s=deadline_s)
            return
        problems = _problems(self.state, spec, self.now_s)
        if problems:
            why = "; ".join(problems)
            self._reject(wish.job_id, wish.tenant, spec, "invalid", why, deadline_s=deadline_s)
        elif not self._profile_known(spec):
            self._say(
                ProfileRequested(
                    job_id=wish.job_id,
                    tenant=wish.tenant,
                    spec=spec,
                    deadline_s=deadline_s,
                    at_s=self.now_s,
                )
            )
        else:
            self._admit_or_reject(wish.job_id, wish.tenant, spec, deadline_s)

    def cancel(self, wish: CancelJob) -> None:
        job = self.state.job(wish.job_id)
        if job is None or job.tenant != wish.tenant:
            why = f"tenant {wish.tenant} has no such job; `eflow jobs --all` lists them"
        elif not job.live:
            why = f"it has ended already: {job.phase.value}"
        else:
            self._say(JobCancelled(job_id=wish.job_id, reason=wish.reason, at_s=self.now_s))
            self._replan(None)
            return
        self._say(CancelRefused(job_id=wish.job_id, explanation=why, at_s=self.now_s))

    def decide_profiled(self, job_id: str, tenant: str, spec: JobSpec, deadline_s: float | None) -> None:
        """Decide on a job that waits for its profile, if it is known now or comes too late."""
        if self._profile_known(spec):
            problems = _size_problems(self.state, spec)
            if problems:
                self._reject(job_id, tenant, spec, "invalid", "; ".join(problems))
            else:
                self._admit_or_reject(job_id, tenant, spec, deadline_s)
        elif deadline_s is not None and deadline_s <= self.now_s:
            why = "its deadline passed before its speed could be measured"
            self._reject(job_id, tenant, spec, "deadline", why, deadline_s=deadline_s)

    def earliest_deadline_s(self, job_id: str, spec: JobSpec, curve: ScalingCurve) -> float | None:
        """The earliest deadline, in whole seconds, that would be promised now."""
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
        """A later deadline that would be promised if taken at once, in whole seconds.

        The first offers of a decision are the earliest ones that there are; when many wishes come at once the
        others are the earliest that move no other job, a little later at most times and much cheaper. A quote
        is always tight.
        """
        self._num_tight_offers += 1
        if self._num_tight_offers <= MAX_TIGHT_OFFERS:
            return self._deadline_s(self.plan.earliest_deadline_s(job))
        return self._deadline_s(self.plan.earliest_deadline_around_s(job))

    def _deadline_s(self, planned_s: float | None) -> float | None:
        """The deadline whose planned end is this."""
        return None if planned_s is None else float(math.ceil(planned_s + self.state.config.deadline_slack_s))

    def _profile_known(self, spec: JobSpec) -> bool:
        measured = self.state.curves.get(spec.profile_key)
        return measured is not None and measured.complete

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
        refusal = self._over_quota(tenant, cheapest)
        if refusal:
            self._reject(job_id, tenant, spec, "quota", refusal, deadline_s=deadline_s)
        else:
            self._admit(job_id, tenant, spec, deadline_s, cheapest)

    def _promise(
        self, job_id: str, tenant: str, spec: JobSpec, curve: ScalingCurve, deadline_s: float | None
    ) -> None:
        job = newcomer(self.state, job_id, spec, curve, deadline_s)
        plan = self._admitting(job)
        if plan is None:
            earliest_s = self._offer_s(job)
            why = _why_late(self.state, spec, curve, deadline_s, earliest_s, self.now_s)
            self._reject(
                job_id, tenant, spec, "deadline", why, deadline_s=deadline_s, earliest_deadline_s=earliest_s
            )
            return
        needed = gpu_seconds(plan.schedules[job_id])
        refusal = self._over_quota(tenant, needed)
        if refusal:
            self._reject(job_id, tenant, spec, "quota", refusal, deadline_s=deadline_s)
            return
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

    def _over_quota(self, tenant: str, needed_gpu_seconds: float) -> str | None:
        limits = self.state.config.quota(tenant)
        if limits.max_jobs_per_day is None and limits.max_gpu_hours_per_day is None:
            return None
        quota = Quota(
            max_jobs_per_day=limits.max_jobs_per_day, max_gpu_hours_per_day=limits.max_gpu_hours_per_day
        )
        usage = self.state.usage.get(tenant, ())
        used = TenantUsage(
            admitted_at_s=tuple(u.at_s for u in usage), gpu_seconds=tuple(u.gpu_seconds for u in usage)
        )
        return quota_refusal(quota, used, needed_gpu_seconds, self.now_s)

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


def _problems(state: PoolState, spec: JobSpec, now_s: float) -> list[str]:
    """What no schedule can mend, every field at once."""
    problems = _size_problems(state, spec)
    deadline_s = spec.resolved_deadline_s(now_s)
    if spec.deadline_s is not None and spec.deadline_in_s is not None:
        problems.append("deadline_s and deadline_in_s: give one of them")
    if spec.job_class is JobClass.SLO and deadline_s is None:
        problems.append("deadline_s: a job of class slo needs a deadline; without one choose best_effort")
    if deadline_s is not None and deadline_s <= now_s:
        when, late_s = datetime.fromtimestamp(deadline_s, UTC).isoformat(" ", "seconds"), now_s - deadline_s
        problems.append(f"deadline_s: {when} is {late_s:.0f} s in the past; choose a later one")
    return problems


def _size_problems(state: PoolState, spec: JobSpec) -> list[str]:
    measured = state.curves.get(spec.profile_key)
    if measured is None or measured.dataset_size is None or spec.global_batch_size <= measured.dataset_size:
        return []
    size = measured.dataset_size
    return [
        f"global_batch_size: {spec.global_batch_size} is more than the data set's {size} samples; lower it"
    ]


def _why_late(
    state: PoolState,
    spec: JobSpec,
    curve: ScalingCurve,
    deadline_s: float | None,
    earliest_s: float | None,
    now_s: float,
) -> str:
    """The rejection in a sentence with numbers."""
    window_s = (deadline_s or now_s) - now_s
    fastest = curve.throughput(curve.max_useful_gpus)
    alone_s = spec.max_iterations / fastest + resize_cost_s(state)
    offer = (
        "no deadline would be met"
        if earliest_s is None
        else f"one in {earliest_s - now_s:.0f} s would be met"
    )
    return (
        f"{spec.max_iterations} iterations in {window_s:.0f} s do not fit: alone on {curve.max_useful_gpus} GPUs "
        f"they take {alone_s:.0f} s ({fastest:.3g}/s), beside the promises already made {offer}"
    )


POLICY = planner("admission", decide, wake_at_s)

"""Operators' bounds: for a while a job is to hold at least, or at most, so many GPUs.

No promise is broken for one: a promised job is planned anew on the sizes that are left, beside all other promises, and
where that does not work the bound is refused. Where a promise is at risk later, bounds on promised jobs end.
Source: Amoeba, section 3, Table 1 (scale_in, scale_out), under promises.
"""

import math
from dataclasses import dataclass, replace

from services.admission.promises import Promises
from services.admission.refusals import no_such_job
from services.admission.replanning import Found, Replanning, own
from shared.messages.commands import ScaleJob
from shared.messages.events import BoundEnded, JobScaled, ScaleRefused
from shared.messages.fold_bounds import bounded, own_range
from shared.messages.fold_curves import with_range
from shared.messages.gpu_range import GpuBound, range_problem
from shared.messages.job_state import Job, Phase
from shared.messages.pool_state import PoolState
from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.outlook import known_curve
from shared.scheduling.planned_pool import flat, planned_pool
from shared.scheduling.profile import fewest_free
from shared.scheduling.quoting import earliest_deadline_around_s
from shared.scheduling.scaling_curve import ScalingCurve

AT_ONCE_S = 1.0  # a schedule that begins within so long begins now


def scale(
    state: PoolState, promises: Promises, wish: ScaleJob, now_s: float
) -> JobScaled | BoundEnded | ScaleRefused | None:
    """Bound a job, or end its bound; None if this very bound stands already."""
    job, standing = state.job(wish.job_id), state.bounds.get(wish.job_id)
    bound = GpuBound(min_gpus=wish.min_gpus, max_gpus=wish.max_gpus, until_s=wish.until_s)
    why = _obstacle(job, standing, wish, now_s)
    if why is not None or job is None:
        return ScaleRefused(job_id=wish.job_id, explanation=why or "", at_s=now_s)
    if _is_release(wish):
        return BoundEnded(job_id=wish.job_id, reason="its operator has released it", at_s=now_s)
    if bound == standing:
        return None
    scaling = _Scaling(state=state, promises=promises, job=job, now_s=now_s)
    answer = scaling.under(bound)
    return answer if isinstance(answer, JobScaled) else scaling.refused(bound, answer)


def ended_bounds(state: PoolState, now_s: float) -> list[BoundEnded]:
    """The bounds whose time is over."""
    return [
        BoundEnded(
            job_id=job_id,
            reason=f"the promise of {bound.yields_to} is at risk" if bound.yields_to else "its time is over",
            at_s=now_s,
        )
        for job_id, bound in sorted(state.bounds.items())
        if bound.until_s is not None and bound.until_s <= now_s
    ]


def _is_release(wish: ScaleJob) -> bool:
    return wish.min_gpus is None and wish.max_gpus is None


def _obstacle(job: Job | None, standing: GpuBound | None, wish: ScaleJob, now_s: float) -> str | None:
    """What stands against it before anything is planned."""
    if job is None or job.tenant != wish.tenant:
        return no_such_job(wish.tenant)
    if not job.live:
        return f"it has ended already: {job.phase.value}"
    if job.phase is Phase.PROFILING:
        return "its speed is being measured: scale it once it is admitted"
    if _is_release(wish):
        return None if standing is not None else "no bound stands on it"
    if wish.until_s is not None and wish.until_s <= now_s:
        return f"until_s: it is {now_s - wish.until_s:.0f} s in the past; choose a later one"
    wrong = range_problem(wish.min_gpus or 1, wish.max_gpus)
    return None if wrong is None else f"min_gpus: {wrong}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scaling:
    """A job that is to be bounded."""

    state: PoolState
    promises: Promises
    job: Job
    now_s: float

    def under(self, bound: GpuBound) -> JobScaled | str:
        """The job under a bound, or why not."""
        own_sizes = own_range(self.job)
        gpu_range = own_sizes.and_within(bound.gpu_range)
        if gpu_range.is_empty:
            return f"it runs on {own_sizes} GPUs only, as its user says"
        spec = bounded(self.job, gpu_range)
        curve = known_curve(with_range(self.state, spec), spec, self.job.speed)
        if curve is None:
            return (
                f"it was not measured to run on {gpu_range} GPUs here, where there are {self.state.num_gpus}"
            )
        if self.job.promised:
            return self._promised_anew(bound, curve)
        if bound.min_gpus is not None and curve.levels[0] > self._free_now():
            return f"promises leave {self._free_now()} GPUs now"
        return self._granted(bound)

    def refused(self, bound: GpuBound, why: str) -> ScaleRefused:
        """With the nearest number that is granted."""
        asked = bound.gpu_range
        could_be_had = None
        if bound.min_gpus is not None:
            fewer = (1 << bits for bits in reversed(range(asked.least.bit_length() - 1)))
            others = ((size, replace(bound, min_gpus=size)) for size in fewer)
        else:
            most = asked.most or 1
            more = (2 * most << bits for bits in range((self.state.num_gpus // most).bit_length() - 1))
            others = ((size, replace(bound, max_gpus=size)) for size in more)
        could_be_had = next(
            (size for size, other in others if isinstance(self.under(other), JobScaled)), None
        )
        offer = "no other number could be had" if could_be_had is None else f"{could_be_had} could be had"
        return ScaleRefused(
            job_id=self.job.job_id,
            explanation=f"{why}; {offer}",
            num_gpus=could_be_had,
            at_s=self.now_s,
        )

    def _promised_anew(self, bound: GpuBound, curve: ScalingCurve) -> JobScaled | str:
        anew = Replanning.of(self.state, self.promises, self.job, self.now_s)
        if anew is None:
            return "it runs nowhere here now"
        after = replace(anew.before, curve=curve)
        if bound.min_gpus is not None:
            after = replace(after, deadline_s=min(after.deadline_s, self._end_from_now_s(after)))
        found = anew.found(after)
        if found is None or (bound.min_gpus is not None and not self._begins_now(found)):
            return "its promise and those of others could not be kept"
        why = anew.objection(found)
        if why is not None:
            return why
        return replace(
            self._granted(bound),
            minimum_satisfactory_share=flat(own(found)),
            gpu_seconds=anew.added_gpu_seconds(found),
            replanned=anew.replanned(found),
        )

    def _end_from_now_s(self, job: SchedulableJob) -> float:
        """When it ends if from now on it holds the least that it may: who is to end by then has to begin now."""
        alone = AdmissionPlan.build([], job.curve.levels[0], self.now_s)
        ends_s = earliest_deadline_around_s(alone, job)
        return math.inf if ends_s is None else ends_s

    def _begins_now(self, found: Found) -> bool:
        schedule = own(found)
        return bool(schedule) and schedule[0].start_s <= self.now_s + AT_ONCE_S

    def _free_now(self) -> int:
        """GPUs that promises leave, beside other bounded jobs without one."""
        pool = planned_pool(self.state, self.now_s)
        free = int(fewest_free(pool.plan.profile, self.now_s, self.now_s + AT_ONCE_S)) + pool.num_lent
        return free - sum(
            pool.curves[row].levels[0]
            for row in pool.others
            if (bound := self.state.bounds.get(pool.listed[row].job_id)) is not None
            and bound.min_gpus is not None
            and pool.listed[row].job_id != self.job.job_id
        )

    def _granted(self, bound: GpuBound) -> JobScaled:
        """With nothing promised."""
        return JobScaled(
            job_id=self.job.job_id,
            min_gpus=bound.min_gpus,
            max_gpus=bound.max_gpus,
            until_s=bound.until_s,
            at_s=self.now_s,
        )

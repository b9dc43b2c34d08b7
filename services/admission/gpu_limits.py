"""Operators' GPU limits: for a while a job holds at least, or at most, so many GPUs.

No promise is broken for one: a promised job is replanned on the sizes that are left, beside all other promises, and
where that fails the limits are rejected. Where a promise is at risk later, limits on promised jobs end. The job stays
on its GPU type, because the same number is another speed on another type (docs/adr/0047).
Source: Amoeba, section 3, Table 1 (scale_in, scale_out), under promises.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace

from elasticflow.services.admission.rejection import RUNS_NOWHERE, no_such_job
from elasticflow.services.admission.replan import Found, Replanning, own
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.messages.commands import SetGpuLimits
from elasticflow.shared.messages.event_summary import counted, gpus_counted, gpus_in_words, in_the_past
from elasticflow.shared.messages.events import GpuLimitsCleared, GpuLimitsRejected, GpuLimitsSet
from elasticflow.shared.messages.gpus import (
    GpuId,
    GpuLimits,
    GpuRange,
    largest_size_up_to,
    range_problem,
    rounded_in_words,
)
from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.admission_search import earliest_deadline_around_s
from elasticflow.shared.scheduling.admission.planned_pool import flat, planned_pool
from elasticflow.shared.scheduling.availability.availability_profile import fewest_free
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.jobs.scheduler_view import known_curve
from elasticflow.shared.state.fold.admission import submitted_range, with_gpu_range
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.gpu_types import shown_type
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState, spec_of

AT_ONCE_S = 1.0  # a schedule that begins within so long begins now


def set_gpu_limits(session: AdmissionSession, command: SetGpuLimits) -> AdmissionSession:
    """Set the GPU limits of a job, or clear them. Setting the same limits again has no effect."""
    job, now_s = session.state.job(command.job_id), session.now_s
    known = session.state.gpu_limits.get(command.job_id)
    why = _limits_obstacle(session.pool, job, known, command, now_s)
    if job is None or why is not None:
        return session.with_event(_rejected(command, why or "", now_s))
    if _clears(command):
        cleared = GpuLimitsCleared(job_id=command.job_id, reason="its operator has released it", at_s=now_s)
        return session.with_event(cleared).replanned()
    limits = _limits(session.pool, job, known, command)
    if isinstance(limits, str):
        return session.with_event(_rejected(command, limits, now_s))
    if limits == known:
        return session
    request = _Request(session=session.with_plan() if job.promised else session, job=job)
    answer = request.under(limits)
    if isinstance(answer, GpuLimitsSet):
        return request.session.with_event(answer).replanned()
    return request.session.with_event(request.rejected(limits, answer))


def expired_gpu_limits(state: PoolState, now_s: float) -> list[GpuLimitsCleared]:
    """The GPU limits whose time is over."""
    return [
        GpuLimitsCleared(
            job_id=job_id,
            reason=f"the promise of {limits.yields_to} is at risk" if limits.yields_to else "they have expired",
            at_s=now_s,
        )
        for job_id, limits in sorted(state.gpu_limits.items())
        if limits.until_s is not None and limits.until_s <= now_s
    ]


def _rejected(command: SetGpuLimits, why: str, now_s: float) -> GpuLimitsRejected:
    return GpuLimitsRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s)


def _clears(command: SetGpuLimits) -> bool:
    named = command.without_gpus or command.without_nodes
    return command.min_gpus is None and command.max_gpus is None and not named


def _limits(pool: PoolState, job: Job, known: GpuLimits | None, command: SetGpuLimits) -> GpuLimits | str:
    """The limits that the command means, or why it means none. pool: of all types, which names may be of.

    Once a job has given up what is named, the same command means the limits that it has.
    """
    numbers = GpuLimits(min_gpus=command.min_gpus, max_gpus=command.max_gpus, until_s=command.until_s)
    if not command.without_gpus and not command.without_nodes:
        return numbers
    if command.min_gpus is not None:
        return "min_gpus: a job that gives up GPUs cannot ask for more with the same limits; name fewer, or no minimum"
    named = _named(pool, command)
    if known is not None and known.without_gpus == named and known.until_s == command.until_s:
        return known
    held = (*job.share_gpus, *job.added_gpus)
    elsewhere = [gpu for gpu in command.without_gpus if gpu not in held]
    without_job = [node_id for node_id in command.without_nodes if all(gpu.node_id != node_id for gpu in held)]
    if elsewhere or without_job:
        missing = [*([gpus_in_words(tuple(elsewhere))] if elsewhere else []), *without_job]
        holds = f"it holds {gpus_in_words(held)}" if held else "it holds none now"
        return f"it has no GPUs to give up on {', '.join(missing)}: {holds}"
    gang = spec_of(job).gpus_per_replica
    per_node = Counter(gpu.node_id for gpu in set(job.share_gpus).difference(named))
    remaining = sum(num_gpus // gang * gang for num_gpus in per_node.values())
    if not remaining:
        whole = f"no whole replica of {gang} GPUs on one node" if gang > 1 else "no GPU of its share"
        return f"it would hold {whole} any more; name fewer, or cancel it"
    most = largest_size_up_to(remaining)
    return replace(numbers, max_gpus=min(command.max_gpus or most, most), without_gpus=named)


def _named(pool: PoolState, command: SetGpuLimits) -> tuple[GpuId, ...]:
    """The GPUs that the command names, by itself or with their node, each once."""
    nodes = (pool.nodes[node_id] for node_id in command.without_nodes if node_id in pool.nodes)
    of_nodes = (GpuId(node.node_id, index) for node in nodes for index in range(node.num_gpus))
    return tuple(dict.fromkeys((*command.without_gpus, *of_nodes)))


def _limits_obstacle(
    pool: PoolState, job: Job | None, known: GpuLimits | None, command: SetGpuLimits, now_s: float
) -> str | None:
    """What speaks against it before anything is planned."""
    if job is None or job.tenant != command.tenant:
        return no_such_job(pool, command.tenant, command.job_id)
    if not job.live:
        return f"it has ended already: {job.phase.value}"
    if job.phase is Phase.PROFILING:
        return "its speed is being measured: scale it once it is admitted"
    if _clears(command):
        return None if known is not None else "it has no GPU limits"
    if command.until_s is not None and command.until_s <= now_s:
        return f"until: {in_the_past(command.until_s, now_s)}; choose a later one"
    wrong = range_problem(command.min_gpus or 1, command.max_gpus)
    return None if wrong is None else f"min_gpus: {wrong}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A job whose GPUs an operator limits."""

    session: AdmissionSession
    job: Job

    def under(self, limits: GpuLimits) -> GpuLimitsSet | str:
        """The job under these limits, or why not."""
        own_sizes = submitted_range(self.job)
        gpu_range = own_sizes.intersection(limits.gpu_range)
        if gpu_range.is_empty:
            return f"it runs on {own_sizes.in_words} only, as its user says"
        curve = self._curve_on(gpu_range)
        if curve is None:
            return f"{self._sizes_in_words(own_sizes, gpu_range)}; the pool has {self.session.state.num_gpus}"
        if self.job.promised:
            return self._replanned(limits, curve)
        if limits.min_gpus is not None and curve.levels[0] > self._free_now():
            return f"promises leave {gpus_counted(self._free_now())} now"
        return self._granted(limits)

    def _curve_on(self, sizes: GpuRange) -> ScalingCurve | None:
        """Its scaling curve on these numbers of GPUs; None if it runs on none of them here."""
        spec = with_gpu_range(self.job, sizes)
        return known_curve(with_profile(self.session.state, spec), spec, self.job.speed, self.session.cache.curves)

    def _sizes_in_words(self, own_sizes: GpuRange, wanted: GpuRange) -> str:
        """The numbers of GPUs on which the job runs here, none of them wanted, and why."""
        curve = self._curve_on(own_sizes)
        sizes = [str(size) for size in (() if curve is None else curve.levels)]
        if not sizes:
            return f"it was not measured to run on {wanted.in_words}"
        words = sizes[0] if len(sizes) == 1 else f"{', '.join(sizes[:-1])} or {sizes[-1]}"
        parts = self.job.num_virtual_nodes
        because = (
            f", because its batch is cut into {counted(parts, 'virtual node')}" if 0 < parts < wanted.least else ""
        )
        return f"it runs on {words} GPU{'' if words == '1' else 's'} here{because}"

    def rejected(self, limits: GpuLimits, why: str) -> GpuLimitsRejected:
        """The rejection, with the nearest number that would be granted."""
        asked = limits.gpu_range
        if rounded := rounded_in_words(limits.min_gpus, limits.max_gpus):
            why = f"{rounded}; {why}"
        if limits.min_gpus is not None:
            fewer = (1 << bits for bits in reversed(range(asked.least.bit_length() - 1)))
            others = ((size, replace(limits, min_gpus=size)) for size in fewer)
        else:
            most = asked.most or 1
            more = (2 * most << bits for bits in range((self.session.state.num_gpus // most).bit_length() - 1))
            others = ((size, replace(limits, max_gpus=size)) for size in more)
        possible = next((size for size, other in others if isinstance(self.under(other), GpuLimitsSet)), None)
        offer = "no other number is possible" if possible is None else f"{possible} would be possible"
        if limits.without_gpus and possible is not None:
            offer = f"it would be possible if {possible} remained: name fewer"
        return GpuLimitsRejected(
            job_id=self.job.job_id,
            tenant=self.job.tenant,
            explanation=f"{why}; {offer}{self._own_type_only()}",
            num_gpus=possible,
            at_s=self.session.now_s,
        )

    def _own_type_only(self) -> str:
        own = shown_type(self.session.pool, spec_of(self.job).gpu_type)
        return f"; only GPUs of its type {own} count, because GPU limits do not change the type" if own else ""

    def _replanned(self, limits: GpuLimits, curve: ScalingCurve) -> GpuLimitsSet | str:
        replanning = Replanning.of(self.session, self.job)
        if replanning is None:
            return RUNS_NOWHERE
        after = replace(replanning.before, curve=curve)
        if limits.min_gpus is not None:
            after = replace(after, deadline_s=min(after.deadline_s, self._end_from_now_s(after)))
        found = replanning.found(after)
        if found is None or (limits.min_gpus is not None and not self._begins_now(found)):
            return "its promise and those of others could not be kept"
        why = replanning.objection(found)
        if why is not None:
            return why
        return replace(
            self._granted(limits),
            minimum_satisfactory_share=flat(own(found)),
            gpu_seconds=replanning.added_gpu_seconds(found),
            replanned=replanning.replanned(found),
        )

    def _end_from_now_s(self, job: SchedulableJob) -> float:
        """When it ends if it holds the fewest GPUs allowed from now on: a job that has to end by then begins now."""
        alone = AdmissionPlan.build([], job.curve.levels[0], self.session.now_s)
        ends_s = earliest_deadline_around_s(alone, job)
        return math.inf if ends_s is None else ends_s

    def _begins_now(self, found: Found) -> bool:
        schedule = own(found)
        return bool(schedule) and schedule[0].start_s <= self.session.now_s + AT_ONCE_S

    def _free_now(self) -> int:
        """GPUs that promises leave, less those of other jobs with GPU limits and without a promise."""
        now_s = self.session.now_s
        pool = planned_pool(self.session.state, now_s, self.session.cache)
        free = int(fewest_free(pool.plan.availability, now_s, now_s + AT_ONCE_S)) + pool.num_lent
        return free - sum(
            pool.curves[row].levels[0]
            for row in pool.others
            if (limits := self.session.state.gpu_limits.get(pool.listed[row].job_id)) is not None
            and limits.min_gpus is not None
            and pool.listed[row].job_id != self.job.job_id
        )

    def _granted(self, limits: GpuLimits) -> GpuLimitsSet:
        """The limits, with no new schedule."""
        return GpuLimitsSet(
            job_id=self.job.job_id,
            min_gpus=limits.min_gpus,
            max_gpus=limits.max_gpus,
            until_s=limits.until_s,
            without_gpus=limits.without_gpus,
            at_s=self.session.now_s,
        )

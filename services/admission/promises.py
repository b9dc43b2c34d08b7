"""Judging wishes for a deadline, one after another, on the plan that the ones before left.

Two named policies (`PoolConfig.admission`): `first-come` refuses only what cannot be kept beside earlier promises,
`selective` also what would crowd out more than it is worth.
Source: ElasticFlow, section 4.1 and Algorithm 1 (shared/scheduling).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from services.admission.refusals import why_dear, why_late
from shared.messages.cluster import ShareSchedule
from shared.messages.events import RejectionReason
from shared.messages.job import JobSpec
from shared.messages.offer import Offer
from shared.messages.pool_state import HeldQuote, PoolState
from shared.messages.witness import NotProved, TooDear, Witness
from shared.scheduling.admission_plan import AdmissionPlan, Proposal
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.outlook import known_curve
from shared.scheduling.planned_pool import PlannedPool, flat, planned_pool
from shared.scheduling.quoting import (
    earliest_deadline_around_s,
    earliest_deadline_s,
    most_iterations_by,
)
from shared.scheduling.scaling_curve import ScalingCurve
from shared.scheduling.selection import IDLE_BESIDE, IDLE_UTILIZATION, Selection
from shared.scheduling.witness import find_witness

MAX_THOROUGH_REFUSALS = (
    1  # of one decision: a thorough one costs as much as ten wishes, which all wait for it
)
MAX_PROGRAM_VARIABLES = 600  # of the linear program that may prove a refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """No promise, and what could have been one."""

    reason: RejectionReason
    explanation: str
    witness: Witness
    offers: tuple[Offer, ...]
    earliest_deadline_s: float | None


class Promises:
    """The promises of a pool during one decision. coming: the specs with deadlines that are still to be judged."""

    def __init__(self, state: PoolState, now_s: float) -> None:
        self._now_s = now_s
        self._refused: list[SchedulableJob] = []  # beside this plan
        self._num_thorough = 0
        self._coming: list[float] = []
        self._pool: PlannedPool | None = None
        self._earliest: tuple[SchedulableJob, float | None] | None = None
        self._selection: Selection | None = None
        self.look_again(state)

    def look_again(self, state: PoolState) -> None:
        """Something other than a promise has changed the pool: plan anew."""
        self._state = state
        self._pool, self._refused, self._promised = None, [], False

    def expect(self, asked: Iterable[float]) -> None:
        """The GPU-seconds of the wishes at hand, which all count as demand from now on."""
        self._coming = list(asked)
        self._selection = None

    @property
    def plan(self) -> AdmissionPlan:
        return self._planned.plan

    @property
    def _planned(self) -> PlannedPool:
        if self._pool is None:
            self._pool = planned_pool(self._state, self._now_s)
        return self._pool

    def least_gpu_seconds(self, job: SchedulableJob) -> float:
        """To keep the deadline on an empty cluster, staying at one number of GPUs; inf if none is fast enough."""
        window_s, left, least = job.deadline_s - self._now_s, job.remaining_iterations, math.inf
        for level in job.curve.levels:
            rate = job.curve.rate_by_num_gpus[level]
            if left * level < least * rate and left / rate + job.resize_cost.seconds(level) <= window_s:
                least = left * level / rate
        return least

    def propose(self, job: SchedulableJob) -> Proposal | None:
        """A way to keep this promise too; None at once if less was refused already.

        Filling is greedy: where it finds no way for the deadline, it may for an earlier one, and that will do.
        """
        if any(asks_no_less(job, refused) for refused in self._refused):
            return None
        proposal = self.plan.propose(job)
        if proposal is None and self._num_thorough < MAX_THOROUGH_REFUSALS:
            self._earliest = job, earliest_deadline_s(self.plan, job)
            earliest_s = self._earliest[1]
            if earliest_s is not None and earliest_s <= job.deadline_s:
                proposal = self.plan.propose(replace(job, deadline_s=earliest_s))
        if proposal is None:
            self._refused.append(job)
        return proposal

    def accept(self, proposal: Proposal) -> dict[str, ShareSchedule]:
        """It was promised: the schedules of others that are not those of the ledger any more."""
        plan, replanned = self.plan, self.news()
        for row, schedule in list(proposal.schedules.items())[:-1]:
            replanned[plan.table.job_ids[row]] = flat(schedule)
        plan.accept(proposal)
        self._refused = []
        return replanned

    def news(self) -> dict[str, ShareSchedule]:
        """The schedules with which the plan began that are not those of the ledger; said once."""
        replanned = {} if self._promised else self._planned.changed_schedules()
        self._promised = True
        return replanned

    @property
    def held_quotes(self) -> tuple[HeldQuote, ...]:
        """Those that the plan keeps."""
        return self._planned.held

    def is_too_dear(self, job: SchedulableJob) -> bool:
        """Whether selective admission keeps the GPUs for others."""
        return self._state.config.admission == "selective" and not self._is_worth(job)

    def refuse(self, job: SchedulableJob, spec: JobSpec, *, dear: bool) -> Refusal:
        """Why not, and what instead."""
        thorough = self._num_thorough < MAX_THOROUGH_REFUSALS
        self._num_thorough += 1
        earliest_s = self._earliest_s(job, tight=thorough)
        offers = self._offers(job, spec, earliest_s, thorough=thorough)
        if dear:
            gpu_seconds, dearest = self.least_gpu_seconds(job), self._dearest(job)
            price = 1.0 / max(dearest, 1e-9)
            witness: Witness = TooDear(
                gpu_seconds=gpu_seconds, price=price, worth=1.0, accepted_price=min(1.0 / gpu_seconds, price)
            )
            why = why_dear(self._state, gpu_seconds, dearest, earliest_s, self._now_s)
            return Refusal(
                reason="price",
                explanation=why,
                witness=witness,
                offers=offers,
                earliest_deadline_s=earliest_s,
            )
        why = why_late(self._state, spec, job, earliest_s, self._now_s)
        witness = self._witness(job, earliest_s, thorough=thorough)
        return Refusal(
            reason="deadline", explanation=why, witness=witness, offers=offers, earliest_deadline_s=earliest_s
        )

    def earliest_deadline_s(self, job: SchedulableJob) -> float | None:
        """The earliest deadline that would be promised now, in whole seconds of planned time."""
        return self._earliest_s(job, tight=True)

    def _is_worth(self, job: SchedulableJob) -> bool:
        gpu_seconds, window_s = self.least_gpu_seconds(job), job.deadline_s - self._now_s
        if gpu_seconds <= self._dearest(job):
            return True
        beside = self.plan.utilization(job.deadline_s)
        own = gpu_seconds / (max(self.plan.num_gpus, 1) * window_s)
        return beside <= IDLE_BESIDE or beside + own <= IDLE_UTILIZATION

    def _dearest(self, job: SchedulableJob) -> float:
        if self._selection is None:
            self._selection = Selection(self._state.demand, self._coming, self._now_s, self.plan.num_gpus)
        return self._selection.dearest_gpu_seconds(job.deadline_s - self._now_s)

    def _earliest_s(self, job: SchedulableJob, *, tight: bool) -> float | None:
        """tight: one second less is refused. Otherwise the earliest that moves no other job: a little later at most
        times and much cheaper, for when many wishes come at once."""
        plan, known = self.plan, self._earliest
        if known is not None and known[0] is job:
            earliest_s = known[1]
        else:
            earliest_s = earliest_deadline_s(plan, job) if tight else earliest_deadline_around_s(plan, job)
        if earliest_s is None or self._state.config.admission == "first-come":
            return earliest_s
        return self.first_worth_s(job, earliest_s, 1.0 if tight else math.inf)

    def first_worth_s(self, job: SchedulableJob, from_s: float, within_s: float) -> float | None:
        """The first deadline from this one on at which the job is not too dear: its window doubles until it is not."""
        low_s, high_s = 0.0, 0.0
        while self.is_too_dear(replace(job, deadline_s=from_s + high_s)):
            low_s, high_s = high_s, 2 * high_s if high_s else max(from_s - self._now_s, 60.0)
            if high_s > 2.0**32:
                return None
        while high_s - low_s > within_s:
            middle_s = (low_s + high_s) / 2
            if self.is_too_dear(replace(job, deadline_s=from_s + middle_s)):
                low_s = middle_s
            else:
                high_s = middle_s
        return from_s + math.ceil(high_s)

    def _offers(
        self, job: SchedulableJob, spec: JobSpec, earliest_s: float | None, *, thorough: bool
    ) -> tuple[Offer, ...]:
        """A later deadline, fewer iterations, other batch sizes that are known: each would be promised if taken now."""
        slack_s = self._state.config.deadline_slack_s
        offers = list[Offer]()
        if earliest_s is not None:
            offers.append(_offer(spec, earliest_s + slack_s))
        fewer = self._most_iterations(job)
        if fewer >= 1:
            offers.append(_offer(spec, job.deadline_s + slack_s, max_iterations=fewer))
        for batch_size, curve in self._other_batch_sizes(spec):
            # as many samples in all
            iterations = max(round(spec.max_iterations * spec.global_batch_size / batch_size), 1)
            other = replace(job, curve=curve, remaining_iterations=float(iterations))
            deadline_s = self._earliest_s(other, tight=False)
            if deadline_s is not None:
                at_s = max(deadline_s, job.deadline_s)
                if not self.is_too_dear(replace(other, deadline_s=at_s)):
                    offers.append(_offer(spec, at_s + slack_s, iterations, batch_size))
        if len(offers) < 3 and earliest_s is not None:
            offers += self._between(job, spec, earliest_s, fewer, parts=(0.5, 0.75) if thorough else (0.5,))
        return tuple(offers)

    def _between(
        self, job: SchedulableJob, spec: JobSpec, earliest_s: float, fewer: int, parts: tuple[float, ...]
    ) -> list[Offer]:
        """Half the way to the later deadline, with as many iterations as fit by then."""
        found = list[Offer]()
        for part in parts:
            between_s = float(math.ceil(job.deadline_s + part * (earliest_s - job.deadline_s)))
            iterations = self._most_iterations(replace(job, deadline_s=between_s))
            if fewer < iterations < spec.max_iterations and between_s > job.deadline_s:
                slack_s = self._state.config.deadline_slack_s
                found.append(_offer(spec, between_s + slack_s, max_iterations=iterations))
        return found

    def _most_iterations(self, job: SchedulableJob) -> int:
        """As many iterations as are promised by the deadline without moving anybody; 0 if not one."""
        fitting = most_iterations_by(self.plan, job)
        affordable = replace(job, remaining_iterations=float(fitting))
        if fitting < 1 or not self.is_too_dear(affordable):
            return fitting
        # in the same window less work needs no more GPU-seconds for each iteration
        return int(fitting * self._dearest(job) / self.least_gpu_seconds(affordable))

    def _other_batch_sizes(self, spec: JobSpec) -> list[tuple[int, ScalingCurve]]:
        if not spec.model_name:
            return []
        prefix = f"{spec.model_name}/b"
        found = list[tuple[int, ScalingCurve]]()
        for key in self._state.curves:
            size = key.removeprefix(prefix)
            if key.startswith(prefix) and size.isdigit() and int(size) != spec.global_batch_size:
                curve = known_curve(self._state, replace(spec, global_batch_size=int(size)))
                if curve is not None:
                    found.append((int(size), curve))
        return sorted(found, key=lambda known: abs(math.log(known[0] / spec.global_batch_size)))[:2]

    def _witness(self, job: SchedulableJob, earliest_s: float | None, *, thorough: bool) -> Witness:
        if math.isinf(self.least_gpu_seconds(job)) or thorough:
            others = self._others() if thorough else []
            return find_witness(
                job,
                others,
                self.plan.num_gpus,
                self._now_s,
                job.resize_cost,
                earliest_deadline_s=earliest_s,
                max_variables=MAX_PROGRAM_VARIABLES,
            )
        return NotProved(earliest_deadline_s=earliest_s)

    def _others(self) -> list[SchedulableJob]:
        """The promised jobs, one by one."""
        plan, curves = self.plan, self._planned.curves
        jobs, found = plan.table.jobs, list[SchedulableJob]()
        for row in map(int, plan.promised):
            newly = plan.accepted.get(row)
            curve = newly.curve if newly else curves[row]
            found.append(
                SchedulableJob(
                    job_id=plan.table.job_ids[row],
                    curve=curve,
                    remaining_iterations=float(jobs.remaining_J[row]),
                    deadline_s=float(jobs.deadline_J[row]),
                    current_num_gpus=int(jobs.held_J[row]),
                    stalled_until_s=float(jobs.stalled_until_J[row]),
                )
            )
        return found


def _offer(
    spec: JobSpec, deadline_s: float, max_iterations: int | None = None, batch_size: int | None = None
) -> Offer:
    return Offer(
        deadline_s=deadline_s,
        max_iterations=max_iterations or spec.max_iterations,
        global_batch_size=batch_size or spec.global_batch_size,
    )


def asks_no_less(job: SchedulableJob, other: SchedulableJob) -> bool:
    """Whether `job` takes as long as `other` on any number of GPUs, and is due no later."""
    return job.deadline_s <= other.deadline_s and all(
        job.remaining_iterations * other.curve.throughput(level)
        >= other.remaining_iterations * job.curve.throughput(level)
        for level in job.curve.levels
    )

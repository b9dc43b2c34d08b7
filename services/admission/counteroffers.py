"""Certificates of rejections: that a deadline is infeasible beside the promises, or what the price was."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elasticflow.services.admission.rejection import (
    NO_OFFER_SOUGHT,
    no_deadline,
    offered_in_words,
    why_late,
    why_overpriced,
)
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.events import RejectionReason
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.rejection import InfeasibilityCertificate, Offer, Overpriced, Unproven
from elasticflow.shared.scheduling.admission.admission_pricing import least_gpu_seconds
from elasticflow.shared.scheduling.admission.admission_search import earliest_deadline_around_s, most_iterations_by
from elasticflow.shared.scheduling.admission.planned_pool import planned_pool
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    PlannedTime,
    known_curve,
    planned_deadline_s,
    promised_deadline_s,
    resize_cost_of,
)
from elasticflow.shared.scheduling.proofs.infeasibility import find_infeasibility_proof
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.nodes import drain_at_s, ending_nodes
from elasticflow.shared.state.pool import NodeState, PoolState, spec_of, with_nodes

MAX_PROGRAM_VARIABLES = 600  # of the linear program that may prove a rejection


def overpriced(gpu_seconds: float, most_gpu_seconds: float, crowded: tuple[float, float]) -> Overpriced:
    price, (from_s, until_s) = 1.0 / max(most_gpu_seconds, 1e-9), crowded
    return Overpriced(
        gpu_seconds=gpu_seconds,
        price=price,
        value=1.0,
        price_limit=min(1.0 / gpu_seconds, price),
        crowded_from_s=from_s,
        crowded_until_s=until_s,
    )


def infeasibility_certificate(
    session: AdmissionSession, job: SchedulableJob, earliest_s: PlannedTime | None, *, is_thorough: bool
) -> InfeasibilityCertificate:
    if not is_thorough and math.isfinite(least_gpu_seconds(job, session.now_s)):
        return Unproven(earliest_deadline_s=earliest_s)
    proof = find_infeasibility_proof(
        job,
        _promised_jobs(session) if is_thorough else [],
        session.promisable_gpus,
        session.now_s,
        max_variables=MAX_PROGRAM_VARIABLES,
    )
    return proof or Unproven(earliest_deadline_s=earliest_s)


def _promised_jobs(session: AdmissionSession) -> list[SchedulableJob]:
    plan, curves, listed = session.plan, session.planned_pool.curves, session.planned_pool.listed
    jobs, found = plan.table.jobs, list[SchedulableJob]()
    for row in map(int, plan.promised):
        newly = plan.accepted.get(row)
        found.append(
            SchedulableJob(
                job_id=plan.table.job_ids[row],
                curve=newly.curve if newly else curves[row],
                remaining_iterations=float(jobs.remaining_J[row]),
                deadline_s=float(jobs.deadline_J[row]),
                resize_cost=newly.resize_cost if newly else resize_cost_of(session.state, spec_of(listed[row])),
                current_num_gpus=int(jobs.held_J[row]),
                stalled_until_s=float(jobs.stalled_until_J[row]),
            )
        )
    return found


# --- The rejection of a deadline: why, and what would be promised instead now --------------------------

FEWEST_OFFERS = 3  # with each rejection, where any deadline is possible


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """What the user reads: why there is no promise, and what could be promised instead."""

    explanation: str
    infeasibility_certificate: InfeasibilityCertificate
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A job that is not promised on a GPU type, and the earliest deadline there.

    `rejection` takes longer, so it is made for one type only.

    decided: the session that counts the rejection. earliest_s: None also if no offers are made.
    least_gpu_seconds: as demand; 0 if the submission is none. makes_offers: its sender waits for them.
    """

    decided: AdmissionSession
    job: SchedulableJob
    spec: JobSpec
    reason: RejectionReason
    earliest_s: PlannedTime | None
    least_gpu_seconds: float
    is_thorough: bool
    makes_offers: bool

    @property
    def earliest_deadline_s(self) -> float | None:
        """The earliest deadline as it could be promised."""
        state = self.decided.state
        return None if self.earliest_s is None else promised_deadline_s(state, self.earliest_s)

    def earliest_in_words(self) -> str:
        """The earliest deadline in short, or why there is none."""
        earliest_s, now_s = self.earliest_deadline_s, self.decided.now_s
        if earliest_s is None:
            return _no_deadline(self.decided, self.job)
        return f"one in {earliest_s - now_s:.0f} s"

    def rejection(self) -> Rejection:
        """The explanation, the certificate and the counteroffers."""
        session = self.decided.priced_afterwards() if self.makes_offers else self.decided
        why, certificate = self._overpriced(session) if self.reason == "price" else self._late(session)
        offers = self._offers(session) if self.makes_offers else ()
        return Rejection(explanation=why, infeasibility_certificate=certificate, offers=offers)

    def _overpriced(self, session: AdmissionSession) -> tuple[str, InfeasibilityCertificate]:
        job, now_s = self.job, session.now_s
        least, most = least_gpu_seconds(job, now_s), self.decided.price_limit_gpu_seconds(job)
        crowded = self.decided.most_displaced_within_s(job)
        why = why_overpriced(least, most, crowded, self._offered_in_words(session), now_s)
        return why, overpriced(least, most, crowded)

    def _late(self, session: AdmissionSession) -> tuple[str, InfeasibilityCertificate]:
        job, offered = self.job, self._offered_in_words(session)
        is_offered = self.earliest_s is not None
        if is_offered and _has_promises(session):
            offered = f"beside the promises already made {offered}"
        # where no deadline is possible, the reason names the ends
        ending = _hindering_ends(session, job) if is_offered or not self.makes_offers else ()
        why = why_late(session.planned_state, job, session.promisable_gpus, offered, ending, session.now_s)
        return why, infeasibility_certificate(session, job, self.earliest_s, is_thorough=self.is_thorough)

    def _offered_in_words(self, session: AdmissionSession) -> str:
        if not self.makes_offers:
            return NO_OFFER_SOUGHT
        if self.earliest_s is None:
            return _no_deadline(session, self.job)
        return offered_in_words(session.planned_state, self.earliest_s, session.now_s)

    def _offers(self, session: AdmissionSession) -> tuple[Offer, ...]:
        job, fitting = self.job, most_iterations_by(session.plan, self.job)
        if self.is_thorough and self.reason == "deadline":
            fitting = max(fitting, session.admission_search.most_iterations(job))
        return _offers(session, job, self.spec, self.earliest_s, _affordable(session, job, fitting))


def _no_deadline(session: AdmissionSession, job: SchedulableJob) -> str:
    return no_deadline(session.planned_state, job, session.promisable_gpus, session.now_s)


def _has_promises(session: AdmissionSession) -> bool:
    return bool(len(session.plan.promised) or session.quote_reservations)


def _hindering_ends(session: AdmissionSession, job: SchedulableJob) -> Sequence[NodeState]:
    """The nodes that end before the deadline, the first to end first, if the job would fit without any ends."""
    state, now_s = session.state, session.now_s
    ending = [node for node in ending_nodes(state.nodes) if drain_at_s(node, state.config.leave_s) < job.deadline_s]
    if not ending:
        return ()
    without_ends = state.nodes.mutate()
    for node in ending:
        without_ends[node.node_id] = replace(node, until_s=None, draining=False)
    plan = planned_pool(with_nodes(state, without_ends.finish()), now_s).plan
    fits_s = earliest_deadline_around_s(plan, job)
    fits = fits_s is not None and fits_s <= job.deadline_s
    return sorted(ending, key=lambda node: (node.until_s, node.node_id)) if fits else ()


def refusal_of(
    session: AdmissionSession,
    job: SchedulableJob,
    spec: JobSpec,
    demand_gpu_seconds: float,
    *,
    is_overpriced: bool,
    makes_offers: bool,
) -> Refusal:
    """is_overpriced: it would displace more than it is worth, even if it fits. demand_gpu_seconds: of the submission
    when an offer is taken; 0: it does not count.
    """
    is_thorough = session.is_thorough and not is_overpriced and makes_offers
    session = fast_replace(session, num_rejections=session.num_rejections + 1)
    session = session.expecting_another().with_pricing()
    earliest_s: PlannedTime | None = None
    if makes_offers:
        session = session.with_search() if is_thorough else session
        session = session.with_pricing_afterwards((demand_gpu_seconds or math.inf, job.deadline_s - session.now_s))
        earliest_s = _earliest_s(session.priced_afterwards(), job, is_overpriced=is_overpriced, tight=is_thorough)
    return Refusal(
        decided=session,
        job=job,
        spec=spec,
        reason="price" if is_overpriced else "deadline",
        earliest_s=earliest_s,
        least_gpu_seconds=demand_gpu_seconds,
        is_thorough=is_thorough,
        makes_offers=makes_offers,
    )


def _earliest_s(
    session: AdmissionSession, job: SchedulableJob, *, is_overpriced: bool, tight: bool
) -> PlannedTime | None:
    """The earliest deadline that could be promised; for an overpriced job one that moves no other, and that pays."""
    if not is_overpriced:
        return session.earliest_deadline_s(job, tight=tight)
    fits_s = earliest_deadline_around_s(session.plan, job)
    asked_s = math.ceil(job.deadline_s)
    return None if fits_s is None else session.first_affordable_s(job, max(asked_s, fits_s), 1.0)


def _offers(
    session: AdmissionSession, job: SchedulableJob, spec: JobSpec, earliest_s: PlannedTime | None, fewer: int
) -> tuple[Offer, ...]:
    """A later deadline, fewer iterations, other batch sizes with a known curve: each would be promised if taken now.

    Where these are too few, also fewer iterations by a later deadline, then still later deadlines.
    """
    offers = list[Offer]()
    if earliest_s is not None:
        offers.append(_offer(session, spec, earliest_s))
    if fewer >= 1:
        offers.append(_offer(session, spec, PlannedTime(job.deadline_s), fewer))
    for batch_size, curve in _other_batch_sizes(session, spec):
        iterations = max(round(spec.own_iterations * spec.global_batch_size / batch_size), 1)  # as many samples
        other = replace(job, curve=curve, remaining_iterations=float(iterations))
        deadline_s = session.earliest_deadline_s(other, tight=False)
        if deadline_s is not None:
            at_s = PlannedTime(max(deadline_s, job.deadline_s))
            if not session.is_overpriced(replace(other, deadline_s=at_s)):
                offers.append(_offer(session, spec, at_s, iterations, batch_size))
    if earliest_s is not None:
        missing = FEWEST_OFFERS - len(offers)
        offers += _between(session, job, spec, earliest_s, fewer, missing)
    if earliest_s is not None and len(offers) < FEWEST_OFFERS:
        offers += _later(session, job, spec, earliest_s, FEWEST_OFFERS - len(offers))
    if session.has_gangs_beside(job):
        offers = [offer for offer in offers if _keeps_gangs(session, job, spec, offer)]
    return tuple(offers)


def _keeps_gangs(session: AdmissionSession, job: SchedulableJob, spec: JobSpec, offer: Offer) -> bool:
    """Whether the offer holds also where replicas of several GPUs need whole blocks: its search counted GPUs alone."""
    state, other = session.planned_state, replace(spec, global_batch_size=offer.global_batch_size)
    curve = known_curve(with_profile(state, other), other, curves=session.cache.curves)
    if curve is None:
        return False
    asked = replace(
        job,
        curve=curve,
        remaining_iterations=float(offer.max_iterations - spec.first_iteration),
        deadline_s=planned_deadline_s(state, offer.deadline_s),
    )
    return session.keeps_gangs(asked)


def _between(
    session: AdmissionSession,
    job: SchedulableJob,
    spec: JobSpec,
    earliest_s: PlannedTime,
    fewer: int,
    most: int,
) -> list[Offer]:
    """Parts of the iterations that do not fit by the deadline, each by a deadline that moves no other job.

    Fewer iterations have an earlier deadline.
    """
    found, sooner_than_s = list[Offer](), earliest_s
    for part in range(most, 0, -1):
        iterations = fewer + (spec.own_iterations - fewer) * part // (most + 1)
        if fewer < iterations < spec.own_iterations:
            shorter = replace(job, remaining_iterations=float(iterations))
            deadline_s = session.earliest_deadline_s(shorter, tight=False)
            if deadline_s is not None and job.deadline_s < deadline_s < sooner_than_s:
                found.insert(0, _offer(session, spec, deadline_s, iterations))
                sooner_than_s = deadline_s
    return found


def _later(
    session: AdmissionSession, job: SchedulableJob, spec: JobSpec, earliest_s: PlannedTime, most: int
) -> list[Offer]:
    """Deadlines beyond the earliest that move no other job, for jobs of which no part ends much sooner."""
    found = list[Offer]()
    around_s = earliest_deadline_around_s(session.plan, job)
    deadline_s = None if around_s is None else max(around_s, earliest_s)
    while len(found) < most and deadline_s is not None:
        window_s = math.ceil(deadline_s - session.now_s)
        deadline_s = session.first_affordable_s(job, deadline_s + window_s, 1.0)
        if deadline_s is not None:
            found.append(_offer(session, spec, deadline_s))
    return found


def _affordable(session: AdmissionSession, job: SchedulableJob, iterations: int) -> int:
    """How many of these iterations are not overpriced."""
    shorter = replace(job, remaining_iterations=float(iterations))
    if iterations < 1 or not session.is_overpriced(shorter):
        return iterations
    # In the same window, less work needs no more GPU-seconds for each iteration.
    return int(iterations * session.price_limit_gpu_seconds(shorter) / least_gpu_seconds(shorter, session.now_s))


def _other_batch_sizes(session: AdmissionSession, spec: JobSpec) -> list[tuple[int, ScalingCurve]]:
    if not spec.model_name or spec.continues is not None:
        return []
    state, found = session.planned_state, list[tuple[int, ScalingCurve]]()
    for size in _known_batch_sizes(state, spec) - {spec.global_batch_size}:
        other = replace(spec, global_batch_size=size)
        curve = known_curve(with_profile(state, other), other, curves=session.cache.curves)
        if curve is not None:
            found.append((size, curve))
    by_likeness = sorted(found, key=lambda known: (abs(math.log(known[0] / spec.global_batch_size)), known[0]))
    return by_likeness[:2]  # of two equally far the smaller, because the map has no order


def _known_batch_sizes(state: PoolState, spec: JobSpec) -> set[int]:
    """The batch sizes at which the model has curves, of the spec's owner or configured for all."""
    prefix, own = f"{spec.model_key}/b", f"{spec.profile_owner}/"
    keys = (key.removeprefix(own) for key in state.curves)
    sizes = (key.removeprefix(prefix) for key in keys if key.startswith(prefix))
    return {int(size) for size in sizes if size.isdigit()}


def _offer(
    session: AdmissionSession,
    spec: JobSpec,
    planned_s: PlannedTime,
    iterations: int | None = None,
    batch_size: int | None = None,
) -> Offer:
    """iterations: without those of the job that it continues."""
    return Offer(
        deadline_s=promised_deadline_s(session.planned_state, planned_s),
        max_iterations=spec.first_iteration + (iterations or spec.own_iterations),
        global_batch_size=batch_size or spec.global_batch_size,
    )

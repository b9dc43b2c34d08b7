"""What is answered instead of a promise: why not, a witness of it, and what would be promised if asked for now."""

import math
from dataclasses import dataclass, replace

from services.admission.promises import Promises
from services.admission.refusals import why_dear, why_late
from shared.messages.events import RejectionReason
from shared.messages.fold_curves import with_range
from shared.messages.job import JobSpec
from shared.messages.offer import Offer
from shared.messages.witness import NotProved, TooDear, Witness
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.outlook import known_curve
from shared.scheduling.quoting import earliest_deadline_around_s, most_iterations_alone_by, most_iterations_by
from shared.scheduling.scaling_curve import ScalingCurve
from shared.scheduling.witness import find_witness

MAX_PROGRAM_VARIABLES = 600  # of the linear program that may prove a refusal
FEWEST_OFFERS = 3  # with each refusal, where any deadline would do


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """No promise, and what could have been one."""

    reason: RejectionReason
    explanation: str
    witness: Witness
    offers: tuple[Offer, ...]
    earliest_deadline_s: float | None


def refuse(promises: Promises, job: SchedulableJob, spec: JobSpec, *, dear: bool) -> Refusal:
    """Why not, and what instead. dear: it would fit, but is not worth its price."""
    thorough = promises.thorough
    promises.num_refusals += 1
    promises.expect_another()
    if dear:
        earliest_s = promises.first_worth_s(job, math.ceil(job.deadline_s), 1.0)
        fitting = int(job.remaining_iterations)
        least, dearest = promises.least_gpu_seconds(job), promises.dearest_gpu_seconds(job)
        why = why_dear(promises.state, least, dearest, earliest_s, promises.now_s)
        witness: Witness = _too_dear(least, dearest)
    else:
        earliest_s = promises.earliest_deadline_s(job, tight=thorough)
        fitting = _most_iterations(promises, job, thorough=thorough)
        why = why_late(promises.state, spec, job, earliest_s, promises.now_s)
        witness = _witness(promises, job, earliest_s, thorough=thorough)
    return Refusal(
        reason="price" if dear else "deadline",
        explanation=why,
        witness=witness,
        offers=_offers(promises, job, spec, earliest_s, _affordable(promises, job, fitting)),
        earliest_deadline_s=earliest_s,
    )


def _too_dear(gpu_seconds: float, dearest: float) -> TooDear:
    price = 1.0 / max(dearest, 1e-9)
    return TooDear(
        gpu_seconds=gpu_seconds, price=price, worth=1.0, accepted_price=min(1.0 / gpu_seconds, price)
    )


def _witness(promises: Promises, job: SchedulableJob, earliest_s: float | None, *, thorough: bool) -> Witness:
    if not thorough and math.isfinite(promises.least_gpu_seconds(job)):
        return NotProved(earliest_deadline_s=earliest_s)
    return find_witness(
        job,
        promises.promised() if thorough else [],
        promises.plan.num_gpus,
        promises.now_s,
        job.resize_cost,
        earliest_deadline_s=earliest_s,
        max_variables=MAX_PROGRAM_VARIABLES,
    )


def _offers(
    promises: Promises, job: SchedulableJob, spec: JobSpec, earliest_s: float | None, fewer: int
) -> tuple[Offer, ...]:
    """A later deadline, fewer iterations, other batch sizes that are known: each would be promised if taken now. Where
    these are not enough, also fewer iterations by a later deadline, or still later ones."""
    slack_s = promises.state.config.deadline_slack_s
    offers = list[Offer]()
    if earliest_s is not None:
        offers.append(_offer(spec, earliest_s + slack_s))
    if fewer >= 1:
        offers.append(_offer(spec, job.deadline_s + slack_s, max_iterations=fewer))
    for batch_size, curve in _other_batch_sizes(promises, spec):
        # as many samples in all
        iterations = max(round(spec.max_iterations * spec.global_batch_size / batch_size), 1)
        other = replace(job, curve=curve, remaining_iterations=float(iterations))
        deadline_s = promises.earliest_deadline_s(other, tight=False)
        if deadline_s is not None:
            at_s = max(deadline_s, job.deadline_s)
            if not promises.is_too_dear(replace(other, deadline_s=at_s)):
                offers.append(_offer(spec, at_s + slack_s, iterations, batch_size))
    if earliest_s is not None:
        missing = FEWEST_OFFERS - len(offers)
        offers += _between(promises, job, spec, earliest_s, fewer, missing)
    if earliest_s is not None and len(offers) < FEWEST_OFFERS:
        offers += _later(promises, job, spec, earliest_s, FEWEST_OFFERS - len(offers))
    return tuple(offers)


def _between(
    promises: Promises,
    job: SchedulableJob,
    spec: JobSpec,
    earliest_s: float,
    fewer: int,
    most: int,
) -> list[Offer]:
    """Parts of the iterations that do not fit by the deadline, each as early as moves nobody, and sooner than more."""
    found, slack_s = list[Offer](), promises.state.config.deadline_slack_s
    sooner_than_s = earliest_s
    for part in range(most, 0, -1):
        iterations = fewer + (spec.max_iterations - fewer) * part // (most + 1)
        if fewer < iterations < spec.max_iterations:
            shorter = replace(job, remaining_iterations=float(iterations))
            deadline_s = promises.earliest_deadline_s(shorter, tight=False)
            if deadline_s is not None and job.deadline_s < deadline_s < sooner_than_s:
                found.insert(0, _offer(spec, deadline_s + slack_s, max_iterations=iterations))
                sooner_than_s = deadline_s
    return found


def _later(
    promises: Promises, job: SchedulableJob, spec: JobSpec, earliest_s: float, most: int
) -> list[Offer]:
    """Deadlines beyond the earliest that move nobody, for jobs of which no part ends much sooner."""
    found, slack_s = list[Offer](), promises.state.config.deadline_slack_s
    around_s = earliest_deadline_around_s(promises.plan, job)
    deadline_s = None if around_s is None else max(around_s, earliest_s)
    while len(found) < most and deadline_s is not None:
        window_s = math.ceil(deadline_s - promises.now_s)
        deadline_s = promises.first_worth_s(job, deadline_s + window_s, 1.0)
        if deadline_s is not None:
            found.append(_offer(spec, deadline_s + slack_s))
    return found


def _most_iterations(promises: Promises, job: SchedulableJob, *, thorough: bool) -> int:
    """As many iterations as can be kept by the deadline, to one in a hundred; 0 if not one.

    thorough: also where others must move; no more than the job could do alone.
    """
    fitting = most_iterations_by(promises.plan, job)
    if not thorough:
        return fitting
    alone = most_iterations_alone_by(promises.plan, job)
    refused = min(int(job.remaining_iterations), alone + _precision(alone))
    while refused - fitting > _precision(fitting):
        middle = (fitting + refused) // 2
        is_kept = promises.room.has_room_for(replace(job, remaining_iterations=float(middle)))
        fitting, refused = (middle, refused) if is_kept else (fitting, middle)
    return fitting


def _precision(iterations: int) -> int:
    """One in a hundred."""
    return max(1, iterations // 100)


def _affordable(promises: Promises, job: SchedulableJob, iterations: int) -> int:
    """So many of these as are not too dear."""
    shorter = replace(job, remaining_iterations=float(iterations))
    if iterations < 1 or not promises.is_too_dear(shorter):
        return iterations
    # in the same window less work needs no more GPU-seconds for each iteration
    return int(iterations * promises.dearest_gpu_seconds(job) / promises.least_gpu_seconds(shorter))


def _other_batch_sizes(promises: Promises, spec: JobSpec) -> list[tuple[int, ScalingCurve]]:
    if not spec.model_name:
        return []
    prefix, state = f"{spec.model_name}/b", promises.state
    found = list[tuple[int, ScalingCurve]]()
    for key in state.curves:
        size = key.removeprefix(prefix)
        if key.startswith(prefix) and size.isdigit() and int(size) != spec.global_batch_size:
            other = replace(spec, global_batch_size=int(size))
            curve = known_curve(with_range(state, other), other)
            if curve is not None:
                found.append((int(size), curve))
    by_likeness = sorted(
        found, key=lambda known: (abs(math.log(known[0] / spec.global_batch_size)), known[0])
    )
    return by_likeness[:2]  # of two equally far the smaller first: the order of the map is chance


def _offer(
    spec: JobSpec, deadline_s: float, max_iterations: int | None = None, batch_size: int | None = None
) -> Offer:
    return Offer(
        deadline_s=deadline_s,
        max_iterations=max_iterations or spec.max_iterations,
        global_batch_size=batch_size or spec.global_batch_size,
    )

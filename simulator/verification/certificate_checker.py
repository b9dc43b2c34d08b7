"""Checks certificates. It shares no code with the scheduler: its model of progress is written here only.

Admissions are checked in whole numbers, without tolerance: floats are whole numbers of some power of two.
Rejections are checked in floats, by a bound that must win by more than their rounding. The model: a job that changes
to n GPUs, from another number or from none, stops for the stop of n and holds the GPUs meanwhile; then it does rate(n)
iterations a second.
Promised numbers of GPUs are powers of two, and fit at once. So they fit as whole buddy blocks too, with migrations
between two instants: N GPUs have floor(N / 2^s) blocks of 2^s, and the largest jobs take theirs first (docs/adr/0107).
That the jobs which migrate can pay for it is shown by a packing over time (`check_packing`).
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from elasticflow.shared.messages import rejection
from elasticflow.simulator.verification.certificates import (
    CertifiedJob,
    CertifiedPromise,
    GpusFrom,
    Held,
    Level,
    Packed,
    PackedNodes,
    PackingCertificate,
    PromiseCertificate,
    RejectionCertificate,
)

_ROUNDING = 1e-9  # relative; the sums behind a rejection lose far less
_Prices = Sequence[rejection.PricedInterval]
_Hull = tuple[Level, list[Level], list[tuple[int, float]]]


class Checker:
    """Keeps every promise as last certified. Its methods return what is wrong, one sentence each."""

    def __init__(self) -> None:
        self._promises: dict[str, CertifiedPromise] = {}

    def check_promises(self, certificate: PromiseCertificate) -> list[str]:
        """Check that each new or changed schedule keeps its promise, and that all schedules fit together."""
        problems: list[str] = []
        for job_id in certificate.ended:
            self._promises.pop(job_id, None)
        for promise in certificate.promises:
            job = promise.job
            known = self._promises.get(job.job_id, promise).job
            problem = _amended(known, job) or _broken(promise, certificate.now_s)
            self._promises[job.job_id] = promise
            if problem is not None:
                problems.append(f"{job.job_id}: {problem}")
        return problems + list(self._overdraft(certificate.now_s, certificate.num_gpus, certificate.later))

    def check_rejection(self, certificate: RejectionCertificate) -> list[str]:
        """Check that the infeasibility certificate proves its claim, and that the jobs it counts are promised."""
        problems = [f"{certificate.arriving_job.job_id}: {problem}" for problem in _rejection_problems(certificate)]
        counted = {certificate.arriving_job.job_id}
        for job in certificate.promised:
            promise = self._promises.get(job.job_id)
            problem = "it is not promised" if promise is None else _amended(promise.job, job)
            if problem is not None or job.job_id in counted:
                problems.append(f"{job.job_id}: {problem or 'it is counted twice'}")
            counted.add(job.job_id)
        return problems

    def _overdraft(self, now_s: float, num_gpus: int, later: Sequence[GpusFrom]) -> Iterator[str]:
        """The instant from `now_s` on at which most GPUs are missing, if any are. GPUs that are gone count as held."""
        gone_later = [Held(from_s, math.inf, gone) for from_s, gone in _gone(num_gpus, later)]
        schedules = (*(promise.schedule for promise in self._promises.values()), gone_later)
        numbers = np.fromiter(chain.from_iterable(chain.from_iterable(schedules)), np.float64)
        if self._promises and len(numbers):
            start_s, end_s, gpus = numbers.reshape(-1, 3).T  # numbers of GPUs are exact as floats
            instants_s = np.maximum(np.concatenate((start_s, end_s)), now_s)
            order = np.argsort(instants_s)
            instants_s, held = instants_s[order], np.cumsum(np.concatenate((gpus, -gpus))[order])
            settled = np.append(instants_s[1:] != instants_s[:-1], True)  # the last change of its instant
            most = int(np.argmax(np.where(settled, held, 0)))
            if held[most] > num_gpus:
                at_s = float(instants_s[most])
                gone = sum(gone for from_s, gone in _gone(num_gpus, later) if from_s <= at_s)
                yield f"{held[most] - gone:.0f} GPUs are held at {at_s} s, of {num_gpus - gone}"


def _gone(num_gpus: int, later: Sequence[GpusFrom]) -> Iterator[tuple[float, int]]:
    """How many GPUs are gone from each instant on, beside those that are gone before."""
    for from_s, left in later:
        yield from_s, num_gpus - left
        num_gpus = left


def _earned(certificate: RejectionCertificate, start_s: float, end_s: float) -> float:
    """GPU-seconds of all GPUs that are there within an interval."""
    gone = _gone(certificate.num_gpus, certificate.later)
    missing = sum(num_gpus * max(end_s - max(start_s, from_s), 0.0) for from_s, num_gpus in gone)
    return certificate.num_gpus * (end_s - start_s) - missing


def _amended(promised: CertifiedJob, job: CertifiedJob) -> str | None:
    """A promise has one deadline; for another deadline it must end and be made anew."""
    return None if promised.deadline_s == job.deadline_s else f"it was promised for {promised.deadline_s} s"


def runs_from(promise: CertifiedPromise, now_s: float) -> list[Held]:
    """When a job holds one number of GPUs without a change, from `now_s` on."""
    found = list[Held]()
    for start_s, end_s, num_gpus in promise.schedule:
        if end_s <= now_s:
            continue
        if found and (found[-1].end_s, found[-1].num_gpus) == (start_s, num_gpus):
            found[-1] = Held(found[-1].start_s, end_s, num_gpus)
        else:
            found.append(Held(max(start_s, now_s), end_s, num_gpus))
    return found


def spare_iterations(promise: CertifiedPromise, now_s: float) -> Fraction | str:
    """What its schedule does beyond the work that is left, to the last bit; or why it is no schedule of its job."""
    job, free_s, (levels, per_iteration) = promise.job, -math.inf, _exactly(promise.job.levels)
    times_s = [now_s, job.deadline_s, job.stalled_until_s]
    for start_s, end_s, num_gpus in promise.schedule:
        if not (free_s <= start_s < end_s < math.inf and start_s > -math.inf):
            return f"its schedule is out of order at {start_s} s"
        if num_gpus not in levels:
            return f"it does not run on {num_gpus} GPUs"
        if num_gpus & (num_gpus - 1):
            return f"{num_gpus} GPUs are no buddy block"
        if num_gpus % promise.job.gpus_per_replica:
            return f"{num_gpus} GPUs are no whole replicas of {promise.job.gpus_per_replica}"
        times_s += (start_s, end_s, levels[num_gpus][1])
        free_s = end_s
    (now, deadline, ready, *steps), per_s = _whole(times_s)
    held, until, done, times = job.current_num_gpus, now, 0, iter(steps)
    for (_, _, num_gpus), begin, end, stop in zip(promise.schedule, times, times, times, strict=True):
        if end > now:
            start, (rate, _) = max(begin, now), levels[num_gpus]
            if num_gpus != held or start > until:
                ready = start + stop
            done += rate * max(min(end, deadline) - max(start, ready), 0)
            held, until = num_gpus, end
    return Fraction(done, per_s * per_iteration) - Fraction(job.remaining_iterations)


def _broken(promise: CertifiedPromise, now_s: float) -> str | None:
    """Why this is no schedule of its job, or leaves it late: all iterations end by the deadline."""
    spare = spare_iterations(promise, now_s)
    if isinstance(spare, str):
        return spare
    return f"its schedule does not end it by {promise.job.deadline_s} s" if spare < 0 else None


@lru_cache(maxsize=1 << 12)
def _exactly(levels: tuple[Level, ...]) -> tuple[dict[int, tuple[int, float]], int]:
    """Speed of each level in whole units beside its stop, and how many units make one iteration a second."""
    speeds, per_1 = _whole([level.iterations_per_s for level in levels])
    return {level.num_gpus: (speed, level.stop_s) for level, speed in zip(levels, speeds, strict=True)}, per_1


def _whole(values: Sequence[float]) -> tuple[list[int], int]:
    """Values in whole numbers of their largest common unit, a power of two, and how many units make 1."""
    ratios = [value.as_integer_ratio() for value in values]
    per_1 = max((denominator for _, denominator in ratios), default=1)
    return [numerator * (per_1 // denominator) for numerator, denominator in ratios], per_1


def _rejection_problems(certificate: RejectionCertificate) -> Iterator[str]:
    """Claims of the infeasibility certificate that do not hold."""
    job, now_s = certificate.arriving_job, certificate.now_s
    match certificate.infeasibility_certificate:
        case rejection.TooSlowAlone(earliest_end_s=claimed_s):
            # The fastest level that it uses costs a stop; using another level first is no shortcut.
            usable = [level for level in job.levels if level.num_gpus <= certificate.num_gpus]
            takes_s = [_wait_s(job, n, now_s) + job.remaining_iterations / n.iterations_per_s for n in usable]
            least_s = min(takes_s, default=math.inf)
            is_late = least_s > (job.deadline_s - now_s) * (1 + _ROUNDING)
            if not is_late or not math.isclose(now_s + least_s, math.inf if claimed_s is None else claimed_s):
                yield f"alone it ends at {now_s + least_s} s, not at {claimed_s} s"
        case rejection.OverloadedInterval(start_s=start_s, end_s=end_s, available_gpu_seconds=available) as claim:
            interval = rejection.PricedInterval(start_s=start_s, end_s=end_s, price=1.0)
            yield from _affordable(certificate, (interval,), claim.needed_gpu_seconds)
            if not math.isclose(available, _earned(certificate, start_s, end_s)):
                yield f"there are not {available} GPU-seconds within [{start_s}, {end_s}) s"
        case rejection.InfeasibleProgram(prices=prices):
            yield from _affordable(certificate, prices)
        case rejection.Overpriced(gpu_seconds=needed, price=price, value=value, price_limit=limit) as claim:
            window = rejection.PricedInterval(start_s=now_s, end_s=job.deadline_s, price=1.0)
            if needed < _least_payment(job, (window,), certificate) * (1 - _ROUNDING):
                yield f"it needs more than {needed} GPU-seconds"
            if not needed * price > value or not math.isclose(needed * limit, value):
                yield f"{needed} GPU-seconds of value {value} are not above the price limit {limit} at {price}"
            from_s, until_s = claim.crowded_from_s, claim.crowded_until_s
            if from_s is not None and until_s is not None and not now_s <= from_s < until_s:
                yield f"nothing is due between {from_s} s and {until_s} s"
        case rejection.Unproven(earliest_deadline_s=earliest_s):
            if earliest_s is not None and earliest_s <= job.deadline_s:
                yield f"{earliest_s} s is no later than the requested deadline"


def _affordable(certificate: RejectionCertificate, prices: _Prices, needed: float = 0) -> Iterator[str]:
    """Why these prices are no proof: by weak duality they are one if the jobs must pay more than all GPUs earn."""
    instants_s = [certificate.now_s, *(at_s for priced in prices for at_s in (priced.start_s, priced.end_s))]
    if sorted(instants_s) != instants_s or any(not 0 <= priced.price < math.inf for priced in prices):
        yield "prices must be in order and not negative"
        return
    income = sum(priced.price * _earned(certificate, priced.start_s, priced.end_s) for priced in prices)
    payment = sum(_least_payment(job, prices, certificate) for job in (certificate.arriving_job, *certificate.promised))
    if not payment > income * (1 + _ROUNDING):
        yield f"the jobs can pay as little as {payment}, of {income} that all GPUs earn"
    elif needed > payment * (1 + _ROUNDING):
        yield f"the jobs can pay as little as {payment}, not {needed}"


def _least_payment(job: CertifiedJob, prices: _Prices, certificate: RejectionCertificate) -> float:
    """The least that `job` pays for its GPU-seconds until its deadline; unpriced time is free.

    The fastest level that it uses costs a stop, unless the job holds it now. Work is bought where it is cheapest, along
    the lower convex hull of the levels up to that one, which no mix of levels can beat.
    """
    until_s, least = job.deadline_s - certificate.now_s, math.inf
    spans = [(p.price, p.start_s - certificate.now_s, min(p.end_s, job.deadline_s) - certificate.now_s) for p in prices]
    spans = [span for span in spans if span[1] < span[2]]
    no_free_time = sum(end_s - start_s for _, start_s, end_s in spans) >= until_s
    stop_price = min((price for price, _, _ in spans), default=0.0) if no_free_time else 0.0
    for fastest, levels, hull in _hulls(job.levels, certificate.num_gpus):
        ready_s = min(_wait_s(job, level, certificate.now_s) for level in levels)
        times = [(price, max(end_s - max(start_s, ready_s), 0.0)) for price, start_s, end_s in spans]
        times.append((0.0, max(until_s - ready_s - sum(time_s for _, time_s in times), 0.0)))
        stop_s = 0.0 if fastest.num_gpus == job.current_num_gpus else fastest.stop_s
        payment, left = stop_price * fastest.num_gpus * stop_s, job.remaining_iterations
        for price, most in sorted((price * n / v, time_s * v) for price, time_s in times for n, v in hull):
            payment, left = payment + price * min(left, most), max(left - most, 0.0)
        least = min(least, payment if left <= job.remaining_iterations * _ROUNDING else math.inf)
    return least


@lru_cache(maxsize=1 << 12)
def _hulls(levels: tuple[Level, ...], num_gpus: int) -> list[_Hull]:
    """Each level, all levels that are no faster, and the edges of their hull: added GPUs and iterations/s."""
    usable, hulls = sorted(level for level in levels if level.num_gpus <= num_gpus), list[_Hull]()
    for fastest in usable:
        slower = [level for level in usable if level.iterations_per_s <= fastest.iterations_per_s]
        edges, gpus, speed = list[tuple[int, float]](), 0, 0.0
        for n, rate, _ in slower:
            if rate > speed:
                edge, gpus, speed = (n - gpus, rate - speed), n, rate
                while edges and edges[-1][0] * edge[1] >= edge[0] * edges[-1][1]:
                    last = edges.pop()
                    edge = (last[0] + edge[0], last[1] + edge[1])
                edges.append(edge)
        hulls.append((fastest, slower, edges))
    return hulls


def _wait_s(job: CertifiedJob, level: Level, now_s: float) -> float:
    """Least time until the job makes progress on this level."""
    stalled_s = max(job.stalled_until_s - now_s, 0.0)
    return min(level.stop_s, stalled_s) if level.num_gpus == job.current_num_gpus else level.stop_s


# --- packings ------------------------------------------------------------------------------------------
# Checks a packing over time: whole blocks for all promised jobs at each instant, and migrations that are paid.
#
# All in whole numbers, without tolerance. A job that moves to other GPUs while their number stays stops as long as at
# a change to that number. It pays the iterations of that stop from what its own schedule does beyond the work that is
# left. So every job still ends in time. The search shares with this only how schedules are read.


class _Change(NamedTuple):
    """At one instant GPUs are left before others are taken."""

    at_s: float
    takes: bool
    packed: Packed


def check_packing(certificate: PackingCertificate) -> list[str]:
    """What is wrong, one sentence each."""
    problems, changes = list[str](), list[_Change]()
    by_job = defaultdict[str, list[Packed]](list)
    for packed in sorted(certificate.packing, key=lambda packed: packed.from_s):
        by_job[packed.job_id].append(packed)
    for promise in certificate.promises:
        try:
            changes += _changes(promise, by_job.pop(promise.job.job_id, []), certificate)
        except _WrongError as wrong:
            problems.append(f"{promise.job.job_id}: {wrong}")
    problems += [f"{job_id}: it is not promised" for job_id in by_job]
    return problems or list(_taken_twice(changes))


class _WrongError(Exception):
    """Why the packing does not hold for one job."""


def _changes(promise: CertifiedPromise, placed: list[Packed], certificate: PackingCertificate) -> list[_Change]:
    """When the job takes and leaves GPUs; it has blocks of the right size in each run, and pays for its moves."""
    changes, lost = list[_Change](), Fraction(0)
    left = list(placed)
    for run in runs_from(promise, certificate.now_s):
        here = [packed for packed in left if run.start_s <= packed.from_s < run.end_s]
        left = [packed for packed in left if packed not in here]
        if not here or here[0].from_s != run.start_s:
            raise _WrongError(f"it has no GPUs from {run.start_s} s on")
        for packed in here:
            _require_blocks(packed, run.num_gpus, promise.job.gpus_per_replica, certificate.nodes)
        moves = sum(_positions(one) != _positions(other) for one, other in pairwise(here))
        if run.start_s == certificate.now_s and run.num_gpus == promise.job.current_num_gpus:
            moves += _positions(here[0]) != set(certificate.positions.get(promise.job.job_id, ()))
        (level,) = (level for level in promise.job.levels if level.num_gpus == run.num_gpus)
        lost += moves * Fraction(level.iterations_per_s) * Fraction(level.stop_s)
        for packed, until_s in zip(here, [*(packed.from_s for packed in here[1:]), run.end_s], strict=True):
            changes += [_Change(packed.from_s, True, packed), _Change(until_s, False, packed)]
    if left:
        raise _WrongError(f"it has GPUs at {left[0].from_s} s, when its schedule holds none")
    spare = spare_iterations(promise, certificate.now_s)
    if isinstance(spare, str):
        raise _WrongError(spare)
    if lost and spare < lost:
        raise _WrongError(f"its moves take {float(lost)} iterations, and its schedule spares {float(spare)}")
    return changes


def _require_blocks(packed: Packed, num_gpus: int, gpus_per_replica: int, nodes: PackedNodes) -> None:
    """A job has one aligned block within a node if its promise counts on that, else several smaller ones."""
    size = nodes.unit(num_gpus, gpus_per_replica)
    is_enough = packed.size == size and len(_positions(packed)) == num_gpus
    if not is_enough or not all(_is_block(start, size, nodes.num_gpus) for start in packed.starts):
        raise _WrongError(f"its GPUs at {packed.from_s} s are no block of {num_gpus}")


def _is_block(start: int, size: int, num_gpus_by_node: tuple[int, ...]) -> bool:
    """Whether so many GPUs from there on are an aligned block within a node."""
    for num_gpus in num_gpus_by_node:
        if 0 <= start < num_gpus:
            return start % size == 0 and start + size <= num_gpus
        start -= num_gpus
    return False


def _positions(packed: Packed) -> set[int]:
    return {start + at for start in packed.starts for at in range(packed.size)}


def _taken_twice(changes: list[_Change]) -> Iterator[str]:
    owner = dict[int, str]()
    for at_s, takes, packed in sorted(changes):
        for position in sorted(_positions(packed)):
            if not takes:
                del owner[position]
            elif position in owner:
                yield f"{packed.job_id} and {owner[position]} have GPU {position} at {at_s} s"
                return
            else:
                owner[position] = packed.job_id

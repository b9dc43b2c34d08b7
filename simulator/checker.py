"""Judges certificates. It shares no code with the scheduler: what it believes is written here and nowhere else.

A yes is judged in whole numbers, without tolerance: every float is a whole number of units of 2^-1074. A no is
judged in floats, by a bound that must win by more than their rounding. What is believed of progress: a job that
changes to n GPUs, from another number or from none, stands still for the stop of n and holds them meanwhile;
then it does rate(n) iterations a second.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from shared.messages import witness
from simulator.certificates import JobFacts, Level, Promise, PromiseCertificate, RefusalCertificate

_UNIT_BITS = 1074
_ROUNDING = 1e-9  # relative; what the sums behind a refusal lose is far below
_Prices = Sequence[witness.PricedInterval]
_Hull = tuple[Level, list[Level], list[tuple[int, float]]]


class Checker:
    """Knows every promise as it was last told. Its methods say what is wrong, a sentence each."""

    def __init__(self) -> None:
        self._promises: dict[str, Promise] = {}

    def check_promises(self, yes: PromiseCertificate) -> list[str]:
        """Whether each new or changed schedule keeps its promise, and all of them fit together."""
        problems: list[str] = []
        for job_id in yes.ended:
            self._promises.pop(job_id, None)
        for promise in yes.promises:
            facts = promise.facts
            known = self._promises.get(facts.job_id, promise).facts
            problem = _moved(known, facts) or _broken(promise, yes.now_s)
            self._promises[facts.job_id] = promise
            if problem is not None:
                problems.append(f"{facts.job_id}: {problem}")
        return problems + list(self._overdraft(yes.now_s, yes.num_gpus))

    def check_refusal(self, no: RefusalCertificate) -> list[str]:
        """Whether the witness shows what it claims, of jobs that are indeed promised."""
        problems = [f"{no.newcomer.job_id}: {problem}" for problem in _lies(no)]
        counted = {no.newcomer.job_id}
        for facts in no.promised:
            promise = self._promises.get(facts.job_id)
            problem = "it is not promised" if promise is None else _moved(promise.facts, facts)
            if problem is not None or facts.job_id in counted:
                problems.append(f"{facts.job_id}: {problem or 'it is counted twice'}")
            counted.add(facts.job_id)
        return problems

    def _overdraft(self, now_s: float, num_gpus: int) -> Iterator[str]:
        """The instant from `now_s` on at which most GPUs are missing, if any are."""
        segments = [segment for promise in self._promises.values() for segment in promise.schedule]
        if segments:
            start_s, end_s, gpus = np.array(segments).T  # numbers of GPUs are exact as floats
            instants_s = np.maximum(np.concatenate((start_s, end_s)), now_s)
            order = np.argsort(instants_s)
            instants_s, held = instants_s[order], np.cumsum(np.concatenate((gpus, -gpus))[order])
            settled = np.append(instants_s[1:] != instants_s[:-1], True)  # the last change of its instant
            most = int(np.argmax(np.where(settled, held, 0)))
            if held[most] > num_gpus:
                yield f"{held[most]:.0f} GPUs are held at {instants_s[most]} s, of {num_gpus}"


def _moved(promised: JobFacts, facts: JobFacts) -> str | None:
    """A promise is of one deadline; for another one it must end and be given anew."""
    return None if promised.deadline_s == facts.deadline_s else f"it was promised for {promised.deadline_s} s"


def _broken(promise: Promise, now_s: float) -> str | None:
    """What makes this no schedule of its job, or leaves it late: all work by the deadline, to the last bit."""
    facts, now, deadline = promise.facts, _units(now_s), _units(promise.facts.deadline_s)
    levels, free_s = _exactly(facts.levels), -math.inf
    held, until, ready, done = facts.current_num_gpus, now, _units(facts.stalled_until_s), 0
    for start_s, end_s, num_gpus in promise.schedule:
        if not (free_s <= start_s < end_s < math.inf and start_s > -math.inf):
            return f"its schedule is out of order at {start_s} s"
        if num_gpus not in levels:
            return f"it does not run on {num_gpus} GPUs"
        start, end, (rate, stop), free_s = max(_units(start_s), now), _units(end_s), levels[num_gpus], end_s
        if end > now:
            if num_gpus != held or start > until:
                ready = start + stop
            done += rate * max(min(end, deadline) - max(start, ready), 0)
            held, until = num_gpus, end
    if done < _units(facts.remaining_iterations) << _UNIT_BITS:
        return f"its schedule does not end it by {facts.deadline_s} s"
    return None


@lru_cache(maxsize=1 << 12)
def _exactly(levels: tuple[Level, ...]) -> dict[int, tuple[int, int]]:
    """Speed and stop of each level, in units."""
    return {num_gpus: (_units(speed), _units(stop_s)) for num_gpus, speed, stop_s in levels}


@lru_cache(maxsize=1 << 14)
def _units(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator << (_UNIT_BITS + 1 - denominator.bit_length())


def _lies(no: RefusalCertificate) -> Iterator[str]:
    """What the witness claims in vain."""
    job, now_s = no.newcomer, no.now_s
    match no.witness:
        case witness.TooSlowAlone(earliest_end_s=claimed_s):
            # The fastest level that it uses costs a stop: going through another one first is no short cut.
            usable = [level for level in job.levels if level.num_gpus <= no.num_gpus]
            takes_s = [_wait_s(job, n, now_s) + job.remaining_iterations / n.iterations_per_s for n in usable]
            least_s = min(takes_s, default=math.inf)
            is_late = least_s > (job.deadline_s - now_s) * (1 + _ROUNDING)
            if not is_late or not math.isclose(now_s + least_s, math.inf if claimed_s is None else claimed_s):
                yield f"alone it ends at {now_s + least_s} s, not at {claimed_s} s"
        case (
            witness.OverloadedInterval(start_s=start_s, end_s=end_s, available_gpu_seconds=available) as claim
        ):
            interval = witness.PricedInterval(start_s=start_s, end_s=end_s, price=1.0)
            yield from _affordable(no, (interval,), claim.needed_gpu_seconds)
            if not math.isclose(available, no.num_gpus * (end_s - start_s)):
                yield f"there are not {available} GPU-seconds within [{start_s}, {end_s}) s"
        case witness.InfeasibleProgram(prices=prices):
            yield from _affordable(no, prices)
        case witness.TooDear(gpu_seconds=needed, price=price, worth=worth, accepted_price=accepted):
            window = witness.PricedInterval(start_s=now_s, end_s=job.deadline_s, price=1.0)
            if needed < _least_payment(job, (window,), no) * (1 - _ROUNDING):
                yield f"it cannot do with {needed} GPU-seconds"
            if not needed * price > worth or not math.isclose(needed * accepted, worth):
                yield f"{needed} GPU-seconds, worth {worth}, are not too dear at {price} and taken at {accepted}"
        case witness.NotProved(earliest_deadline_s=earliest_s):
            if earliest_s is not None and earliest_s <= job.deadline_s:
                yield f"{earliest_s} s is no later than what it asks for"


def _affordable(no: RefusalCertificate, prices: _Prices, needed: float = 0) -> Iterator[str]:
    """Why these prices prove nothing: they do if the jobs must pay more than all GPUs can earn (weak duality)."""
    instants_s = [no.now_s, *(at_s for priced in prices for at_s in (priced.start_s, priced.end_s))]
    if sorted(instants_s) != instants_s or any(not 0 <= priced.price < math.inf for priced in prices):
        yield "prices must be in order and not negative"
        return
    income = no.num_gpus * sum(priced.price * (priced.end_s - priced.start_s) for priced in prices)
    payment = sum(_least_payment(job, prices, no) for job in (no.newcomer, *no.promised))
    if not payment > income * (1 + _ROUNDING):
        yield f"the jobs can pay as little as {payment}, of {income} that all GPUs earn"
    elif needed > payment * (1 + _ROUNDING):
        yield f"the jobs can pay as little as {payment}, not {needed}"


def _least_payment(job: JobFacts, prices: _Prices, no: RefusalCertificate) -> float:
    """What `job` pays at least for its GPU-seconds until its deadline, where all other time is free.

    The fastest level that it uses costs a stop, unless it is held now. Work is bought where it is cheapest, along
    the lower convex hull of the levels up to that one, which no mix of them can beat.
    """
    until_s, least = job.deadline_s - no.now_s, math.inf
    spans = [(p.price, p.start_s - no.now_s, min(p.end_s, job.deadline_s) - no.now_s) for p in prices]
    spans = [span for span in spans if span[1] < span[2]]
    no_free_time = sum(end_s - start_s for _, start_s, end_s in spans) >= until_s
    stop_price = min((price for price, _, _ in spans), default=0.0) if no_free_time else 0.0
    for fastest, levels, hull in _hulls(job.levels, no.num_gpus):
        ready_s = min(_wait_s(job, level, no.now_s) for level in levels)
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
    """Each level, all that are no faster, and the edges of their hull: GPUs and iterations/s more than before."""
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


def _wait_s(job: JobFacts, level: Level, now_s: float) -> float:
    """How long it takes at least until it makes progress on this level."""
    stalled_s = max(job.stalled_until_s - now_s, 0.0)
    return min(level.stop_s, stalled_s) if level.num_gpus == job.current_num_gpus else level.stop_s

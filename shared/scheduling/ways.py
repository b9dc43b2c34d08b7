"""Ways to make room for one more job: which promised jobs keep their schedules, and in which order the others are
filled anew, before the newcomer and after it.

A way knows nothing of the deadline that the newcomer asks for: in each way it ends when it ends. Who is promised
whatever ends in time in one of them is never refused for being due later (docs/adr/0017).
Axis: K = promised jobs by earliest deadline.
"""

from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np

from shared.scheduling.compiled import Floats, Integers, compiled
from shared.scheduling.filling import Jobs, fill
from shared.scheduling.planning import fill_in_order, write
from shared.scheduling.profile import Profile, Schedules, copy_into, reserve, sweep
from shared.scheduling.workspace import Workspace

MAX_FILLINGS = 8_192  # of jobs in these: in a large pool there are fewer ways
FEWEST_WAYS = 4
NUM_PLACES, NUM_PLACES_ANEW = 16, 8  # among the jobs by deadline
NUM_ORDERS = 16  # others
PARTS_KEPT = (7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0.0)  # of each of these
SPREADS = (
    0.1,
    0.3,
    0.6,
    1.0,
)  # of the logarithms of times: how far orders by chance go from the latest starts
SHORTEST_S = 1.0


class Way(NamedTuple):
    """The first `num_kept` of these rows keep what they have; those up to `place` are filled anew before the newcomer,
    the rest after it."""

    order_K: Integers
    num_kept: int
    place: int


def ways(order_K: Integers, latest_start_s_K: Floats, num_ways: int) -> Iterator[Way]:
    """So many at most, the same whenever the same promises stand. latest_start_s_K: seconds from now."""
    most = min(num_ways, max(MAX_FILLINGS // max(len(order_K), 1), FEWEST_WAYS))
    return islice(_different(_all_ways(order_K, latest_start_s_K, min(NUM_PLACES, most))), most)


def _all_ways(order_K: Integers, latest_start_s_K: Floats, num_places: int) -> Iterator[Way]:
    """By deadline, as few anew as may do; then all of them; then in other orders, the newcomer before those who are
    filled anew, sometimes after them or half of them."""
    num_jobs = len(order_K)
    for place in reversed(_places(num_jobs, num_places)):
        yield Way(order_K, place, place)
    for place in _places(num_jobs, NUM_PLACES_ANEW):
        yield Way(order_K, 0, place)
    for position_K, is_by_chance in _other_orders(latest_start_s_K):
        for number, part in enumerate(PARTS_KEPT):
            num_kept = round(part * num_jobs)
            anew_K = np.sort(position_K[num_kept:]) if is_by_chance else position_K[num_kept:]
            order = order_K[np.append(position_K[:num_kept], anew_K)]
            yield Way(order, num_kept, num_kept)
            if number % 2 == 1:
                yield Way(order, num_kept, (num_kept + num_jobs + 1) // 2 if is_by_chance else num_jobs)


def _places(num_jobs: int, count: int) -> list[int]:
    return [num_jobs * number // count for number in range(count)]


def _other_orders(latest_start_s_K: Floats) -> Iterator[tuple[Integers, bool]]:
    """Positions by latest start or near it; and by chance (True), those that are anew then by deadline."""
    num_jobs = len(latest_start_s_K)
    chance = np.random.default_rng(num_jobs)  # the same again for whoever takes a quote
    urgency_K = np.maximum(latest_start_s_K, SHORTEST_S)
    for spread in (0.0, *islice(cycle(SPREADS), NUM_ORDERS // 2 - 1)):
        yield np.argsort(urgency_K * np.exp(chance.normal(0.0, spread, num_jobs)), kind="stable"), False
        yield chance.permutation(num_jobs), True


def _different(found: Iterable[Way]) -> Iterator[Way]:
    """Of those that come to the same only the first; none that moves nobody."""
    known = set[tuple[int, bytes]]()
    for way in found:
        anew_K = way.order_K[way.num_kept :]
        key = (way.place - way.num_kept, anew_K.tobytes())
        if len(anew_K) and key not in known:
            known.add(key)
            yield way


@compiled
def fill_in_way(
    profile: Profile,
    kept: Schedules,
    filled: Schedules,
    jobs: Jobs,
    settled: Integers,
    way: Way,
    job: int,
    by_s: float,
    now_s: float,
    num_gpus: int,
    work: Workspace,
) -> float:
    """Fill one more job and those that are anew: when it ends; inf if after by_s, or if one of the others does not fit.

    settled: jobs that keep what they have too. With each cap the newcomer is filled to end as early as it can, whatever
    by_s is; the lowest cap that does is taken. Then `filled` has it and those anew, `profile` is what all leave.
    """
    order_K, num_kept, place = way
    before = work.profile
    sweep(before, kept, np.concatenate((settled, order_K[:num_kept])), now_s, num_gpus)
    if fill_in_order(before, filled, jobs, order_K[:place], num_kept, -1, work) >= 0:
        return np.inf
    tried_s = np.inf
    for cap in range(jobs.num_levels_J[job]):
        count = fill(before, jobs, job, cap, np.inf, work.found, work.memory)
        if count < 0:
            continue
        ends_s = work.found.end_M[count - 1] if count > 0 else now_s
        if ends_s > by_s or ends_s == tried_s:
            continue
        tried_s = ends_s
        write(filled, job, work.found, count)
        copy_into(profile, before)
        reserve(profile, filled, job)
        if fill_in_order(profile, filled, jobs, order_K, place, -1, work) < 0:
            return float(ends_s)
    return np.inf

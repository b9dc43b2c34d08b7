"""Who is filled anew to make room: a few of the promised jobs, more and more of them, by deadline and in other orders.

All of it depends on the promises alone, so that whoever takes a quote is judged as the quote was.
Axis: K = promised jobs by earliest deadline.
"""

from collections.abc import Iterator

import numpy as np

from shared.scheduling.clearings import Anew
from shared.scheduling.compiled import Floats, Integers

PARTS_BY_DEADLINE = tuple(number / 16 for number in range(1, 16, 2))  # of all jobs: the last ones
PARTS_BY_OTHER_ORDERS = (1 / 4, 2 / 4, 3 / 4, 1.0)
_SHORTEST_S = 1e-9


def moving(order_K: Integers, window_s_K: Floats, least_s_K: Floats) -> Iterator[Anew]:
    """The fewest jobs first, and none twice in the same order.

    By deadline; by latest start; and by deadline those who have the most slack, or whom chance picks.
    window_s_K: from now until they are due. least_s_K: in which they could do it, at their fastest.
    """
    num_jobs, known = len(order_K), set[bytes]()
    by_deadline_K = np.arange(num_jobs)
    by_latest_start_K = np.argsort(window_s_K - least_s_K, kind="stable")
    by_slack_K = np.argsort(window_s_K / np.maximum(least_s_K, _SHORTEST_S), kind="stable")
    by_chance_K = np.random.default_rng(num_jobs).permutation(num_jobs)
    parts = [(part, by_deadline_K, True) for part in PARTS_BY_DEADLINE]
    for part in PARTS_BY_OTHER_ORDERS:
        parts += [(part, by_latest_start_K, False), (part, by_slack_K, True), (part, by_chance_K, True)]
    for part, position_K, is_filled_by_deadline in sorted(parts, key=lambda one: one[0]):
        num_kept = max(num_jobs - max(round(part * num_jobs), 1), 0)
        kept_K, anew_K = position_K[:num_kept], position_K[num_kept:]
        if is_filled_by_deadline:
            anew_K = np.sort(anew_K)
        if num_jobs and anew_K.tobytes() not in known:
            known.add(anew_K.tobytes())
            yield Anew(order_K[np.concatenate((kept_K, anew_K))], num_kept)

"""The length of a task of a padding load with the greatest useful share of idle windows.

Long tasks lose more to preemption, short ones more to the overhead that each task pays. `best_task_s` chooses for
windows that were observed, `best_task_s_by_quantiles` for a long history of them, `best_task_s_exponential` for windows
of exponential length of which the mean is known.

Axes: W = windows longer than the start and end of a runner; C = candidates.
Source: the cost model of PaddingTorch, section 3.2. The optimum is derived here, not in the paper.
"""

import math

import numpy as np

from elasticflow.shared.scheduling.padding.cost_model import (
    Floats,
    TaskCost,
    Windows,
    checked_windows,
    require_not_negative,
    require_positive,
)

_NUM_FIRST_CANDIDATES = 64
_MAX_QUANTILES = 64  # `best_task_s` values a candidate for each task of each window


def best_task_s(windows_s: Windows, overhead_s: float, start_stop_s: float) -> float:
    """The task length (e) with the greatest `useful_share` of these windows; of several such lengths, the longest.

    Raises ValueError if overhead_s is not positive (without overhead, shorter tasks are always better), or if no window
    is longer than start_stop_s and overhead_s together.

    With s = e + c and a = delta - phi, the useful time is (s - c) * sum floor(a / s). Between two points s = a / k it
    increases with s, so its maximum is at such a point. The points in descending order each add one whole task, so one
    sort values all of them. Useful time is at most (1 - c / s) * sum a. Let F be the best useful time of a few first
    candidates: no s below c / (1 - F / sum a) exceeds it. That bounds k, for windows of similar length to about
    sqrt(2 a / c). Time is O(C log C) and memory O(C), with C the sum of that: take a sample of a long history.
    """
    require_positive("overhead_s", overhead_s)
    require_not_negative("start_stop_s", start_stop_s)
    usable_s_W = checked_windows(windows_s) - start_stop_s
    usable_s_W = usable_s_W[usable_s_W > 0]
    longest_s = float(usable_s_W.max(initial=0.0))
    if longest_s <= overhead_s:
        raise ValueError(
            f"no window is longer than {start_stop_s + overhead_s} s, the start and end of a runner and the overhead "
            "of one task: a task of any length would never end"
        )
    shortest_s = _shortest_candidate_s(usable_s_W, overhead_s, longest_s)
    num_tasks_W = np.floor(usable_s_W / shortest_s).astype(np.int64)
    last_W = np.cumsum(num_tasks_W)
    rank_C = np.arange(1, int(last_W[-1]) + 1, dtype=np.int64)
    number_C = rank_C - np.repeat(last_W - num_tasks_W, num_tasks_W)  # 1, 2, ... in each window
    length_s_C: Floats = np.sort(np.repeat(usable_s_W, num_tasks_W) / number_C)[::-1]
    useful_s_C = (length_s_C - overhead_s) * rank_C  # as many whole tasks fit as there are points from here on up
    return float(length_s_C[np.argmax(useful_s_C)] - overhead_s)


def best_task_s_by_quantiles(windows_s: Windows, overhead_s: float, start_stop_s: float) -> float | None:
    """`best_task_s` of 64 quantiles of the windows; None without overhead, or if every window is too short for it.

    Raises ValueError without windows, or if a window is not positive and finite.
    """
    windows_s_W = checked_windows(windows_s)
    sample_s = np.quantile(windows_s_W, np.linspace(0.0, 1.0, min(windows_s_W.size, _MAX_QUANTILES)))
    if overhead_s <= 0.0 or sample_s.max() <= overhead_s + start_stop_s:
        return None
    return best_task_s(sample_s, overhead_s, start_stop_s)


def useful_share_exponential(mean_window_s: float, cost: TaskCost) -> float:
    """The useful share (theta) of many windows of exponential length: lambda e exp(-lambda phi) / (exp(lambda s) - 1).

    Useful time of a window = e * sum over k of P(delta >= phi + k s), with s = e + c and lambda = 1 / mean_window_s.
    Raises ValueError if the mean is not positive and finite.
    """
    require_positive("mean_window_s", mean_window_s)
    exponent = cost.with_overhead_s / mean_window_s
    started = math.exp(-cost.start_stop_s / mean_window_s)
    return started * cost.task_s / mean_window_s * math.exp(-exponent) / -math.expm1(-exponent)


def best_task_s_exponential(mean_window_s: float, overhead_s: float) -> float:
    """The task length (e) with the greatest `useful_share_exponential`; the start and end of a runner do not matter.

    Raises ValueError if a time is not positive and finite.

    Useful time = e * sum over k >= 1 of exp(-lambda (phi + k s)) = exp(-lambda phi) * e / (exp(lambda s) - 1).
    exp(-lambda phi) factors out; the derivative by e is 0 where 1 - exp(-lambda (e + c)) = lambda e.
    """
    require_positive("mean_window_s", mean_window_s)
    require_positive("overhead_s", overhead_s)
    # With y = lambda (e + c) the equation is excess(y) = lambda c: convex and increasing. Newton's method from a point
    # above the root decreases to it. y, unlike lambda e, loses no digits where the overhead is small.
    overhead = overhead_s / mean_window_s
    y = overhead + min(1.0, math.sqrt(2 * overhead))
    while (lower := y - (_excess(y) - overhead) / -math.expm1(-y)) < y:
        y = lower
    return mean_window_s * -math.expm1(-y)


def _shortest_candidate_s(usable_s_W: Floats, overhead_s: float, longest_s: float) -> float:
    """No task of less, its overhead included, has a greater useful share than the best of a few first candidates."""
    candidates_s = np.geomspace(overhead_s, longest_s, _NUM_FIRST_CANDIDATES)[1:]
    reached_s = max((float(s) - overhead_s) * float(np.floor(usable_s_W / s).sum()) for s in candidates_s)
    # The share lost is at least c / s, also after rounding. The factor keeps a candidate that is exactly at the bound.
    lost_share = max(1 - reached_s / float(usable_s_W.sum()), overhead_s / longest_s)
    return overhead_s / lost_share * (1 - 1e-9)


def _excess(y: float) -> float:
    """y - (1 - exp(-y)), without cancellation for small y."""
    if y > 1e-3:
        return y + math.expm1(-y)
    return y * y / 2 * (1 - y / 3 * (1 - y / 4 * (1 - y / 5)))

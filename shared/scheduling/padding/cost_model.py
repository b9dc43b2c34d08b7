"""The cost model of padding loads: the useful part of idle windows, and its price beside ordinary GPU time.

A padding load is many small tasks on GPUs that are idle for a window. A runner starts in a window, executes whole
tasks, and is preempted without notice at the end. The task under way at that instant is lost and executed again later.
Tasks are atomic and idempotent, so nothing else is lost. `task_length` chooses the length of a task.

Axes: W = windows. Source: PaddingTorch, sections 3.1, 3.2 and 5.2; its symbols are in parentheses below.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Windows = Sequence[float] | Floats

DEFAULT_PRICE_RATIO = 0.1  # padding GPU time costs at most a tenth of ordinary GPU time: section 3.2, after eq. 10
# Relative. A window that holds exactly k tasks must hold k tasks after rounding: (7 + 3 * 13.7 - 7) / 13.7 < 3.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCost:
    """Seconds of each task of a padding load on one GPU.

    task_s: useful computation (e); overhead_s: the rest of each task, such as communication (c);
    start_stop_s: start and end of a runner, once in each window (phi).
    Raises ValueError if task_s is not positive, or if a time is negative or not finite.
    Source: PaddingTorch, section 3.1, eq. 5.
    """

    task_s: float
    overhead_s: float
    start_stop_s: float

    def __post_init__(self) -> None:
        require_positive("task_s", self.task_s)
        require_not_negative("overhead_s", self.overhead_s)
        require_not_negative("start_stop_s", self.start_stop_s)

    @property
    def with_overhead_s(self) -> float:
        """Seconds from the start of one task to the start of the next one (e + c)."""
        return self.task_s + self.overhead_s

    @property
    def least_window_s(self) -> float:
        """Seconds of a window that holds one task (phi + e + c)."""
        return self.start_stop_s + self.with_overhead_s


def whole_tasks(window_s: float, cost: TaskCost) -> int:
    """The tasks that end within a window of `window_s` seconds (r): the greatest r with phi + r (e + c) <= delta.

    The paper demands delta > phi + e + c for one task; here a task that ends with its window counts.
    Raises ValueError if the window is not positive and finite.
    Source: PaddingTorch, section 3.2, eq. 5 and 6; Table 3 lists r and r + 1.
    """
    require_positive("window_s", window_s)
    return int(_whole_tasks(np.array([window_s]), cost)[0])


def useful_share(windows_s: Windows, cost: TaskCost) -> float:
    """The useful part of all windows together (theta, weighted by the length of the windows), 0 to 1.

    windows_s: seconds, shape (W,), from the past or predicted.
    Raises ValueError without windows, or if one is not positive and finite.
    Source: PaddingTorch, section 3.2, eq. 7 and the weighted mean after eq. 10.
    """
    windows_s_W = checked_windows(windows_s)
    return float(cost.task_s * _whole_tasks(windows_s_W, cost).sum() / windows_s_W.sum())


def useful_share_of_window(window_s: float, cost: TaskCost) -> float:
    """The useful part of one window (theta), 0 to 1. Raises ValueError if the window is not positive and finite."""
    return whole_tasks(window_s, cost) * cost.task_s / window_s


def useful_share_of_tasks(num_tasks: int, lost_s: float, cost: TaskCost) -> float:
    """The useful part of a window in which `num_tasks` tasks ended and a preempted one lost `lost_s` seconds (epsilon).

    Raises ValueError if the number is negative, or unless 0 <= lost_s < task_s + overhead_s.
    Source: PaddingTorch, section 3.2, eq. 6 and 7.
    """
    if num_tasks < 0:
        raise ValueError(f"the number of ended tasks must not be negative: {num_tasks}")
    if not 0 <= lost_s < cost.with_overhead_s:
        raise ValueError(f"a preempted task loses 0 to {cost.with_overhead_s} s, its own length, not {lost_s}")
    used_s = num_tasks * cost.with_overhead_s + lost_s + cost.start_stop_s
    return num_tasks * cost.task_s / used_s if num_tasks else 0.0


def lowest_useful_share(cost: TaskCost) -> float:
    """The bound of theta from below for windows of one task or more: one task ended, the second one almost.

    Source: PaddingTorch, section 3.3 (31.7 % and 0.3 %).
    """
    return cost.task_s / (2 * cost.with_overhead_s + cost.start_stop_s)


def highest_useful_share(cost: TaskCost) -> float:
    """The limit of theta in long windows: every task pays its overhead.

    Source: PaddingTorch, section 5.2, eq. 11.
    """
    return cost.task_s / cost.with_overhead_s


def cost_ratio(windows_s: Windows, cost: TaskCost, price_ratio: float = DEFAULT_PRICE_RATIO) -> float:
    """What useful GPU time costs in these windows, relative to ordinary GPU time (rho); inf if no task ends in any.

    price_ratio: the price of padding GPU time over that of ordinary GPU time (alpha).
    Raises ValueError as `useful_share` does, or if the price ratio is not positive and finite.
    Source: PaddingTorch, section 3.2, eq. 10.
    """
    require_positive("price_ratio", price_ratio)
    share = useful_share(windows_s, cost)
    return price_ratio / share if share > 0 else math.inf


def is_suitable(windows_s: Windows, cost: TaskCost, price_ratio: float = DEFAULT_PRICE_RATIO) -> bool:
    """Whether useful GPU time is cheaper in these windows than ordinary GPU time: theta above alpha.

    Source: PaddingTorch, section 3.2, after eq. 10.
    """
    require_positive("price_ratio", price_ratio)
    return useful_share(windows_s, cost) > price_ratio


def cost_ratio_of_totals(
    *,
    padding_gpu_s: float,
    exclusive_gpu_s: float,
    price_ratio: float = DEFAULT_PRICE_RATIO,
    manager_s: float = 0.0,
    manager_price_ratio: float = 0.0,
) -> float:
    """The cost of a measured run in idle windows over that of the same work on exclusive GPUs.

    manager_s: how long the task manager ran, on a machine that is never preempted;
    manager_price_ratio: the price of its machine over that of one ordinary GPU.
    Raises ValueError if a total or the price ratio is not positive, or if a value of the manager is negative.
    Source: PaddingTorch, section 3.2, eq. 9; section 5.2 adds the manager.
    """
    require_positive("padding_gpu_s", padding_gpu_s)
    require_positive("exclusive_gpu_s", exclusive_gpu_s)
    require_positive("price_ratio", price_ratio)
    require_not_negative("manager_s", manager_s)
    require_not_negative("manager_price_ratio", manager_price_ratio)
    return (price_ratio * padding_gpu_s + manager_price_ratio * manager_s) / exclusive_gpu_s


def added_utilization(*, padding_gpu_s: float, num_starts: int, start_stop_s: float, pool_gpu_s: float) -> float:
    """The share of a pool's GPU time that a padding load uses beyond the starts and ends of its runners.

    pool_gpu_s: all GPU-seconds of the pool during the run, idle or not.
    Raises ValueError if a total is not positive, a count or time is negative, or the starts take longer than the run.
    Source: PaddingTorch, section 5.2 (25.8 %).
    """
    require_positive("padding_gpu_s", padding_gpu_s)
    require_positive("pool_gpu_s", pool_gpu_s)
    require_not_negative("num_starts", num_starts)
    require_not_negative("start_stop_s", start_stop_s)
    if num_starts * start_stop_s > padding_gpu_s:
        raise ValueError(f"{num_starts} starts of {start_stop_s} s exceed the {padding_gpu_s} GPU-seconds of the load")
    return (padding_gpu_s - num_starts * start_stop_s) / pool_gpu_s


def _whole_tasks(windows_s_W: Floats, cost: TaskCost) -> Floats:
    """The whole tasks of each window, shape (W,), as floats so that their sum cannot overflow."""
    fitting_W = (windows_s_W - cost.start_stop_s) / cost.with_overhead_s
    return np.maximum(np.floor(fitting_W * (1 + _ROUNDING)), 0.0)


def checked_windows(windows_s: Windows) -> Floats:
    """The windows as an array, shape (W,). Raises ValueError without windows, or if one is not positive and finite."""
    windows_s_W = np.asarray(windows_s, dtype=np.float64)
    if windows_s_W.ndim != 1 or not windows_s_W.size:
        raise ValueError(f"windows_s must be a list of one window or more, not of shape {windows_s_W.shape}")
    wrong = np.flatnonzero(~(np.isfinite(windows_s_W) & (windows_s_W > 0)))
    if wrong.size:
        raise ValueError(f"windows_s[{wrong[0]}] must be positive and finite: {windows_s_W[wrong[0]]}")
    return windows_s_W


def require_positive(name: str, value: float) -> None:
    """Raises ValueError unless the value is positive and finite."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite: {value}")


def require_not_negative(name: str, value: float) -> None:
    """Raises ValueError unless the value is 0 or positive, and finite."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and not negative: {value}")

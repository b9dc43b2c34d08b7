"""The cost model of padding loads, over odd windows and tasks."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elasticflow.shared.scheduling.padding.cost_model import (
    TaskCost,
    cost_ratio,
    highest_useful_share,
    is_suitable,
    lowest_useful_share,
    useful_share,
    useful_share_of_tasks,
    useful_share_of_window,
    whole_tasks,
)
from elasticflow.shared.scheduling.padding.task_length import (
    best_task_s,
    best_task_s_exponential,
    useful_share_exponential,
)

TIMES_S = st.floats(0.01, 1000.0)
COSTS = st.builds(TaskCost, task_s=TIMES_S, overhead_s=TIMES_S | st.just(0.0), start_stop_s=TIMES_S | st.just(0.0))
WINDOWS_S = st.lists(st.floats(0.1, 5000.0), min_size=1, max_size=8)
CLOSE = 1e-8


@given(st.floats(0.1, 1e5), COSTS)
def test_the_whole_tasks_fit_and_one_more_does_not(window_s: float, cost: TaskCost) -> None:
    num_tasks = whole_tasks(window_s, cost)
    usable_s = window_s - cost.start_stop_s
    assert num_tasks * cost.with_overhead_s <= max(usable_s, 0.0) * (1 + CLOSE)
    assert (num_tasks + 1) * cost.with_overhead_s > usable_s * (1 - CLOSE)


@given(WINDOWS_S, COSTS)
def test_the_useful_share_lies_within_its_bounds(windows_s: list[float], cost: TaskCost) -> None:
    assert 0 <= useful_share(windows_s, cost) <= highest_useful_share(cost) * (1 + CLOSE)
    if all(whole_tasks(window_s, cost) for window_s in windows_s):
        assert useful_share(windows_s, cost) >= lowest_useful_share(cost) * (1 - CLOSE)


@given(st.integers(0, 1000), st.floats(0.0, 0.999), COSTS)
def test_tasks_and_windows_have_the_same_useful_share(num_tasks: int, lost: float, cost: TaskCost) -> None:
    lost_s = lost * cost.with_overhead_s
    window_s = num_tasks * cost.with_overhead_s + lost_s + cost.start_stop_s
    assume(window_s > 0)
    assert useful_share_of_tasks(num_tasks, lost_s, cost) == pytest.approx(useful_share_of_window(window_s, cost))


@given(WINDOWS_S, COSTS, st.floats(0.01, 1.0))
def test_a_load_is_suitable_where_it_costs_less_than_ordinary_gpus(
    windows_s: list[float], cost: TaskCost, price_ratio: float
) -> None:
    ratio = cost_ratio(windows_s, cost, price_ratio)
    assume(abs(ratio - 1) > CLOSE)
    assert is_suitable(windows_s, cost, price_ratio) == (ratio < 1)
    assert ratio == math.inf or ratio * useful_share(windows_s, cost) == pytest.approx(price_ratio)


@given(WINDOWS_S, TIMES_S, TIMES_S | st.just(0.0), st.lists(st.floats(0.0, 1.0), max_size=20))
def test_no_task_length_is_better_than_the_best(
    windows_s: list[float], overhead_s: float, start_stop_s: float, others: list[float]
) -> None:
    usable_s = [window_s - start_stop_s for window_s in windows_s]
    assume(max(usable_s) > overhead_s + 1e-3)
    best = TaskCost(
        task_s=best_task_s(windows_s, overhead_s, start_stop_s), overhead_s=overhead_s, start_stop_s=start_stop_s
    )
    share = useful_share(windows_s, best)
    assert share > 0
    fitting_s = [each_s / number - overhead_s for each_s in usable_s for number in range(1, 50)]
    for task_s in (*fitting_s, *(other * max(windows_s) for other in others)):
        if task_s > 1e-6:
            assert useful_share(windows_s, replace(best, task_s=task_s)) <= share * (1 + CLOSE)


@given(WINDOWS_S, TIMES_S, TIMES_S, st.floats(0.1, 10.0))
def test_the_best_task_does_not_depend_on_the_unit_of_time(
    windows_s: list[float], overhead_s: float, start_stop_s: float, unit: float
) -> None:
    assume(max(windows_s) > start_stop_s + overhead_s + 1e-3)

    def best_share(scale: float) -> float:
        scaled = [scale * window_s for window_s in windows_s]
        task_s = best_task_s(scaled, scale * overhead_s, scale * start_stop_s)
        cost = TaskCost(task_s=task_s, overhead_s=scale * overhead_s, start_stop_s=scale * start_stop_s)
        return useful_share(scaled, cost)

    assert best_share(unit) == pytest.approx(best_share(1.0), rel=1e-6)


@given(st.floats(1e-3, 1e6), st.floats(1e-9, 1e3), st.floats(0.0, 10.0), st.floats(1e-3, 1e3))
def test_the_best_task_of_exponential_windows_solves_its_equation_and_is_the_best(
    mean_s: float, overhead: float, start_stop: float, factor: float
) -> None:
    overhead_s = overhead * mean_s
    task_s = best_task_s_exponential(mean_s, overhead_s)
    assert -math.expm1(-(task_s + overhead_s) / mean_s) == pytest.approx(task_s / mean_s, rel=1e-9, abs=0.0)

    cost = TaskCost(task_s=task_s, overhead_s=overhead_s, start_stop_s=start_stop * mean_s)
    other = replace(cost, task_s=factor * task_s)
    assert useful_share_exponential(mean_s, other) <= useful_share_exponential(mean_s, cost) * (1 + 1e-12)


@given(st.floats(0.05, 20.0), st.floats(0.05, 20.0), st.floats(0.0, 3.0))
def test_the_expected_share_is_the_mean_of_windows_at_equal_quantiles(
    task: float, overhead: float, start_stop: float
) -> None:
    cost = TaskCost(task_s=task, overhead_s=overhead, start_stop_s=start_stop)
    quantiles = (np.arange(100_000) + 0.5) / 100_000
    windows = -50.0 * np.log1p(-quantiles)
    assert useful_share(windows, cost) == pytest.approx(useful_share_exponential(50.0, cost), rel=2e-3)

"""The cost model of padding loads, beside the numbers of the PaddingTorch paper, and where these disagree with it."""

import math

import numpy as np
import pytest

from elasticflow.shared.scheduling.padding.cost_model import (
    DEFAULT_PRICE_RATIO,
    TaskCost,
    added_utilization,
    cost_ratio,
    cost_ratio_of_totals,
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

PROTEIN = TaskCost(task_s=10.9, overhead_s=2.8, start_stop_s=7.0)  # Table 2
IMAGES = TaskCost(task_s=0.025, overhead_s=0.9, start_stop_s=7.0)  # Table 5
NUM_TASKS = {30.0: 1, 43.0: 2, 60.0: 3, 120.0: 8, 240.0: 17, 480.0: 34}  # Table 3, lower ends
RESTART_S = 15.0  # section 5.1: a preempted worker starts again after so long; three others are never preempted
# Section 5.2: four GPUs
PADDING_GPU_S, EXCLUSIVE_GPU_S, PADDING_S, NUM_STARTS = 8147.0, 10980.0, 7693.0, 28
CPU_PRICE_RATIO = 0.5 / 4.0  # US$ an hour of the manager's machine, and of a GPU


@pytest.mark.parametrize(("window_s", "num_tasks"), NUM_TASKS.items())
def test_whole_tasks_are_those_of_table_3(window_s: float, num_tasks: int) -> None:
    assert whole_tasks(window_s, PROTEIN) == num_tasks


@pytest.mark.parametrize("num_tasks", [1, 2, 3, 7, 10, 97, 1000, 123_457])
@pytest.mark.parametrize("cost", [PROTEIN, IMAGES, TaskCost(task_s=0.1, overhead_s=0.2, start_stop_s=0.3)])
def test_a_task_that_ends_with_its_window_counts_despite_rounding(num_tasks: int, cost: TaskCost) -> None:
    exact_s = cost.start_stop_s + num_tasks * (cost.task_s + cost.overhead_s)
    assert whole_tasks(exact_s, cost) == num_tasks
    assert whole_tasks(exact_s - 0.1 * cost.task_s, cost) == num_tasks - 1


def test_a_window_that_is_too_short_for_one_task_is_useless() -> None:
    assert whole_tasks(1.0, PROTEIN) == whole_tasks(7.0, PROTEIN) == whole_tasks(20.6, PROTEIN) == 0
    assert useful_share([1.0, 20.6], PROTEIN) == 0.0
    assert cost_ratio([1.0, 20.6], PROTEIN) == math.inf
    assert not is_suitable([1.0, 20.6], PROTEIN)


def test_the_useful_share_of_windows_is_weighted_by_their_length() -> None:
    assert useful_share([30.0, 10.0, 480.0], PROTEIN) == pytest.approx(35 * 10.9 / 520.0)
    assert useful_share(np.array([30.0]), PROTEIN) == useful_share_of_window(30.0, PROTEIN) == 10.9 / 30.0


def test_both_forms_of_the_useful_share_agree() -> None:
    lost_s = 60.0 - 7.0 - 3 * 13.7
    assert useful_share_of_tasks(3, lost_s, PROTEIN) == pytest.approx(useful_share_of_window(60.0, PROTEIN))
    assert useful_share_of_tasks(0, 0.0, TaskCost(task_s=1.0, overhead_s=0.0, start_stop_s=0.0)) == 0.0


@pytest.mark.parametrize(("cost", "lowest", "highest"), [(PROTEIN, 0.317, 0.796), (IMAGES, 0.003, 0.027)])
def test_bounds_are_those_of_section_3_3(cost: TaskCost, lowest: float, highest: float) -> None:
    assert lowest_useful_share(cost) == pytest.approx(lowest, abs=5e-4)
    assert highest_useful_share(cost) == pytest.approx(highest, abs=5e-4)


def test_the_protein_task_costs_an_eighth_to_a_third_of_exclusive_gpus() -> None:
    assert DEFAULT_PRICE_RATIO / highest_useful_share(PROTEIN) == pytest.approx(0.1257, abs=5e-5)  # paper: 12.5 %
    assert DEFAULT_PRICE_RATIO / lowest_useful_share(PROTEIN) == pytest.approx(0.3156, abs=5e-5)  # paper: 31.5 %
    assert all(is_suitable([window_s], PROTEIN) for window_s in NUM_TASKS)
    assert not is_suitable([3600.0], IMAGES)
    # The paper divides by rounded shares, so it has 33.3 instead of 35.4.
    assert DEFAULT_PRICE_RATIO / lowest_useful_share(IMAGES) == pytest.approx(35.4)
    assert DEFAULT_PRICE_RATIO / highest_useful_share(IMAGES) == pytest.approx(3.7)


def test_long_windows_approach_the_highest_share() -> None:
    assert useful_share_of_window(1800.0, PROTEIN) == pytest.approx(0.787, abs=5e-4)  # section 5.2: close to 0.8


def test_the_cost_ratio_is_the_price_ratio_over_the_useful_share() -> None:
    assert cost_ratio([60.0, 30.0], PROTEIN, 0.2) == pytest.approx(0.2 * 90.0 / (4 * 10.9))


@pytest.mark.parametrize(
    ("window_s", "lowest", "highest"),
    [
        (30.0, 0.36, 0.72),
        (43.0, 0.50, 0.76),
        (60.0, 0.54, 0.72),
        (120.0, 0.72, 0.81),
        (240.0, 0.77, 0.81),
        (480.0, 0.77, 0.79),
    ],
)
def test_table_3_counts_up_to_one_task_more_than_fits(window_s: float, lowest: float, highest: float) -> None:
    share, one_task = useful_share_of_window(window_s, PROTEIN), PROTEIN.task_s / window_s
    assert math.floor(100 * share) / 100 == lowest, "the paper cuts off after two digits"
    assert math.floor(100 * (share + one_task)) / 100 == highest
    assert share < highest_useful_share(PROTEIN)


@pytest.mark.parametrize(
    ("window_s", "lowest", "highest"),
    [
        (30.0, 1.05, 1.13),
        (43.0, 1.04, 1.10),
        (60.0, 1.06, 1.10),
        (120.0, 1.04, 1.07),
        (240.0, 1.05, 1.06),
        (480.0, 1.05, 1.06),
    ],
)
def test_table_3_counts_three_of_four_workers_as_fully_useful(window_s: float, lowest: float, highest: float) -> None:
    others_s, share = 3 * (window_s + RESTART_S), useful_share_of_window(window_s, PROTEIN)

    def cost_of_four_workers(others: float, preempted: float) -> float:
        return (others_s + window_s) / (others_s * others + window_s * preempted)

    assert cost_of_four_workers(1.0, share) == pytest.approx(highest, abs=0.01)
    assert cost_of_four_workers(1.0, share + PROTEIN.task_s / window_s) == pytest.approx(lowest, abs=0.01)
    # By eq. 7 the three others have a useful share of 0.796: they pay the overhead of each task, too.
    assert cost_of_four_workers(highest_useful_share(PROTEIN), share) > 1.26


def test_the_cluster_run_costs_16_percent_with_its_manager() -> None:
    gpus_only = cost_ratio_of_totals(padding_gpu_s=PADDING_GPU_S, exclusive_gpu_s=EXCLUSIVE_GPU_S)
    with_manager = cost_ratio_of_totals(
        padding_gpu_s=PADDING_GPU_S,
        exclusive_gpu_s=EXCLUSIVE_GPU_S,
        manager_s=PADDING_S,
        manager_price_ratio=CPU_PRICE_RATIO,
    )
    assert gpus_only == pytest.approx(0.074, abs=5e-4)
    assert with_manager == pytest.approx(0.162, abs=5e-4)  # paper: 16 %


def test_the_cluster_run_adds_25_8_percent_of_utilization() -> None:
    added = added_utilization(
        padding_gpu_s=PADDING_GPU_S, num_starts=NUM_STARTS, start_stop_s=7.0, pool_gpu_s=4 * PADDING_S
    )
    assert added == pytest.approx(0.258, abs=5e-4)


def test_fewer_gpu_seconds_than_on_exclusive_gpus_do_not_follow_from_the_model() -> None:
    """By eq. 9 the exclusive total is useful time alone; then theta would exceed 1, not only its limit."""
    assert pytest.approx(1.348, abs=5e-4) == EXCLUSIVE_GPU_S / PADDING_GPU_S
    most_useful_s = (PADDING_GPU_S - NUM_STARTS * 7.0) * highest_useful_share(PROTEIN)
    assert most_useful_s == pytest.approx(6326, abs=0.5)
    assert most_useful_s / EXCLUSIVE_GPU_S == pytest.approx(0.576, abs=5e-4)
    least = cost_ratio_of_totals(
        padding_gpu_s=PADDING_GPU_S,
        exclusive_gpu_s=most_useful_s,
        manager_s=PADDING_S,
        manager_price_ratio=CPU_PRICE_RATIO,
    )
    assert least == pytest.approx(0.281, abs=5e-4)


def test_the_best_task_of_one_window_fills_it() -> None:
    assert best_task_s([60.0], 2.8, 7.0) == pytest.approx(60.0 - 7.0 - 2.8)


def test_the_best_task_of_two_windows_fits_whole_into_both() -> None:
    """107 s hold 1, 2, 3 or 4 tasks of 97.2, 47.2, 30.5 or 22.2 s; 57 s hold none, 1, 1 or 2."""
    assert best_task_s([107.0, 57.0], 2.8, 7.0) == pytest.approx(50.0 - 2.8)
    assert best_task_s([57.0, 107.0, 3.0], 2.8, 7.0) == pytest.approx(50.0 - 2.8)


@pytest.mark.parametrize("overhead_s", [1e-12, 1e-3, 2.8, 1e3])
def test_exponential_windows_of_a_large_sample_have_the_predicted_best_task(overhead_s: float) -> None:
    mean_s = 291.0  # section 5.2: 8147 GPU-seconds in 28 windows
    best_s = best_task_s_exponential(mean_s, overhead_s)
    assert 0 < best_s < mean_s
    if overhead_s < 1e-3:
        assert best_s == pytest.approx(math.sqrt(2 * mean_s * overhead_s)), "the limit of a small overhead"
        return
    windows_s = np.random.default_rng(7).exponential(mean_s, 20_000)
    sampled_s = best_task_s(windows_s, overhead_s, 7.0)

    def expected_share(task_s: float) -> float:
        cost = TaskCost(task_s=task_s, overhead_s=overhead_s, start_stop_s=7.0)
        return useful_share_exponential(mean_s, cost)

    best = TaskCost(task_s=best_s, overhead_s=overhead_s, start_stop_s=7.0)
    assert useful_share(windows_s, best) == pytest.approx(expected_share(best_s), rel=0.1)
    assert 0.97 * expected_share(best_s) <= expected_share(sampled_s) <= expected_share(best_s)
    assert sampled_s == pytest.approx(best_s, rel=0.25)


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({"task_s": 0.0}, "task_s must be positive and finite: 0.0"),
        ({"task_s": -1.0}, "task_s must be positive"),
        ({"task_s": math.inf}, "task_s must be positive"),
        ({"overhead_s": -1.0}, "overhead_s must be finite and not negative: -1.0"),
        ({"start_stop_s": math.nan}, "start_stop_s must be finite and not negative: nan"),
    ],
)
def test_a_task_cost_names_the_wrong_time(times: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        TaskCost(**{"task_s": 1.0, "overhead_s": 1.0, "start_stop_s": 1.0, **times})


@pytest.mark.parametrize("windows_s", [[], [10.0, 0.0], [10.0, -1.0], [math.nan], [math.inf], np.ones((2, 2))])
def test_windows_are_a_list_of_positive_times(windows_s: list[float]) -> None:
    for refused in (
        lambda: useful_share(windows_s, PROTEIN),
        lambda: cost_ratio(windows_s, PROTEIN),
        lambda: is_suitable(windows_s, PROTEIN),
        lambda: best_task_s(windows_s, 2.8, 7.0),
    ):
        with pytest.raises(ValueError, match="windows_s"):
            refused()


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="window_s must be positive"):
        whole_tasks(0.0, PROTEIN)
    with pytest.raises(ValueError, match="window_s must be positive"):
        useful_share_of_window(-1.0, PROTEIN)
    with pytest.raises(ValueError, match="number of ended tasks must not be negative: -1"):
        useful_share_of_tasks(-1, 0.0, PROTEIN)
    with pytest.raises(ValueError, match=r"a preempted task loses 0 to 13\.7"):
        useful_share_of_tasks(1, 13.8, PROTEIN)
    with pytest.raises(ValueError, match="price_ratio must be positive"):
        cost_ratio([60.0], PROTEIN, 0.0)
    with pytest.raises(ValueError, match="price_ratio must be positive"):
        is_suitable([60.0], PROTEIN, -0.1)
    with pytest.raises(ValueError, match="exclusive_gpu_s must be positive"):
        cost_ratio_of_totals(padding_gpu_s=1.0, exclusive_gpu_s=0.0)
    with pytest.raises(ValueError, match="manager_s must be finite and not negative"):
        cost_ratio_of_totals(padding_gpu_s=1.0, exclusive_gpu_s=1.0, manager_s=-1.0)
    with pytest.raises(ValueError, match="28 starts of 7 s exceed"):
        added_utilization(padding_gpu_s=100.0, num_starts=28, start_stop_s=7, pool_gpu_s=400.0)


def test_no_task_length_is_best_without_overhead_or_without_a_window_for_it() -> None:
    with pytest.raises(ValueError, match="overhead_s must be positive"):
        best_task_s([60.0], 0.0, 7.0)
    with pytest.raises(ValueError, match="overhead_s must be positive"):
        best_task_s_exponential(60.0, 0.0)
    with pytest.raises(ValueError, match="mean_window_s must be positive"):
        best_task_s_exponential(0.0, 2.8)
    with pytest.raises(ValueError, match=r"no window is longer than 9\.8 s"):
        best_task_s([9.0, 3.0], 2.8, 7.0)

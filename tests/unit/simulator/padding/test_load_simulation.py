"""Padding loads on idle windows: what is done, lost and useful."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.scheduling.padding.cost_model import TaskCost, whole_tasks
from elasticflow.simulator.padding.load_simulation import LoadSimulation, simulate_loads
from elasticflow.simulator.padding.windows_and_loads import IdleWindow, PaddingLoad
from tests.support.example_specs import examples

PROTEIN = TaskCost(task_s=10.9, overhead_s=2.8, start_stop_s=7.0)  # PaddingTorch, Table 2
SECOND = TaskCost(task_s=1.0, overhead_s=0.02, start_stop_s=1.0)


def load(load_id: str = "a", tenant: str = "", num_tasks: int = 100, cost: TaskCost = PROTEIN) -> PaddingLoad:
    return PaddingLoad(load_id=load_id, tenant=tenant or load_id, num_tasks=num_tasks, cost=cost)


def windows(*lengths_s: float) -> list[IdleWindow]:
    """One window on each of several GPUs."""
    return [IdleWindow(f"gpu-{number}", 0.0, length_s) for number, length_s in enumerate(lengths_s)]


@pytest.mark.parametrize(("window_s", "tasks"), [(30, 1), (43, 2), (60, 3), (120, 8), (240, 17), (480, 34)])
def test_protein_tasks_per_window_are_those_of_the_paper(window_s: float, tasks: int) -> None:
    result = simulate_loads(windows(window_s), [load()])
    (outcome,) = result.outcomes
    assert (outcome.tasks_done, outcome.tasks_lost, outcome.finished_at_s) == (tasks, 1, None)
    assert outcome.useful_share == pytest.approx(tasks * 10.9 / window_s)
    assert outcome.useful_share == pytest.approx(result.predicted_useful_share(outcome.load))
    assert result.numbers()["useful_share_of_whole_tasks"] == pytest.approx(1.0)


def test_short_tasks_use_four_fifths_of_all_idle_time() -> None:
    result = simulate_loads(windows(30.0, 45.5, 61.0, 300.0, 7.0e3), [load(num_tasks=10**5, cost=SECOND)])
    share = result.numbers()["useful_share_of_idle"]
    assert isinstance(share, float)
    assert share >= 0.8
    for length_s in (30.0, 31.9):
        assert simulate_loads(windows(length_s), [load(cost=SECOND)]).useful_s >= 0.8 * length_s


def test_a_late_clock_loses_no_task_to_rounding() -> None:
    tenths = TaskCost(task_s=0.1, overhead_s=0.0, start_stop_s=0.0)
    late = [IdleWindow("gpu-0", 1e7 + 0.3, 1e7 + 30.3)]
    assert simulate_loads(late, [load(num_tasks=1000, cost=tenths)]).outcomes[0].tasks_done == 300


def test_a_window_shorter_than_the_start_loses_no_task() -> None:
    (outcome,) = simulate_loads(windows(5.0), [load()]).outcomes
    assert (outcome.tasks_done, outcome.tasks_lost, outcome.given_s) == (0, 0, 5.0)


def test_lost_tasks_run_again_in_the_next_window() -> None:
    one_gpu = [IdleWindow("gpu-0", 0.0, 30.0), IdleWindow("gpu-0", 30.0, 60.0), IdleWindow("gpu-0", 100.0, 200.0)]
    (outcome,) = simulate_loads(one_gpu, [load(num_tasks=3)]).outcomes
    assert (outcome.tasks_done, outcome.tasks_lost) == (3, 2)
    assert outcome.finished_at_s == pytest.approx(100 + 7 + 13.7)


def test_a_runner_starts_anew_when_the_load_changes() -> None:
    both = [load("a", "lab", 2, SECOND), load("b", "lab", 1, SECOND)]
    result = simulate_loads(windows(60.0), both)
    assert result.outcomes[0].finished_at_s == pytest.approx(1 + 2 * 1.02)
    assert result.outcomes[1].finished_at_s == pytest.approx(2 * 1 + 3 * 1.02)


def test_a_load_waits_until_it_is_opened_and_for_its_type_of_gpu() -> None:
    late = replace(load("late", num_tasks=1, cost=SECOND), opened_at_s=10.0)
    typed = replace(load("typed", num_tasks=1, cost=SECOND), gpu_type="A100")
    result = simulate_loads([*windows(60.0), IdleWindow("gpu-9", 20.0, 30.0, "A100")], [late, typed])
    assert [outcome.finished_at_s for outcome in result.outcomes] == pytest.approx([12.02, 22.02])
    assert result.given_s == pytest.approx(2 * 2.02)


def test_tenants_share_each_minute_while_all_have_tasks() -> None:
    cost = TaskCost(task_s=0.2, overhead_s=0.01, start_stop_s=0.1)
    loads = [load(name, num_tasks=10**4, cost=cost) for name in ("x", "y", "z")]
    result = simulate_loads(windows(600.0, 600.0), loads)
    assert sorted(result.jain_by_minute) == list(range(10))
    assert min(result.jain_by_minute.values()) >= 0.95
    finite = [*loads[:2], replace(loads[2], num_tasks=300)]  # z is done in the second minute
    assert min(simulate_loads(windows(600.0, 600.0), finite).jain_by_minute.values()) >= 0.95


def test_the_same_seed_gives_the_same_result_and_another_seed_another() -> None:
    spread = [replace(load(num_tasks=1000, cost=SECOND), spread=0.5), replace(load("b", num_tasks=500), spread=0.2)]
    first, second, other = (simulate_loads(windows(600.0, 900.0), spread, seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert first.outcomes != other.outcomes


TIMES = st.lists(st.integers(0, 5000), min_size=2, max_size=12, unique=True).map(sorted)
COSTS = st.builds(
    TaskCost,
    task_s=st.sampled_from((0.1, 0.3, 1.0, 10.9)),
    overhead_s=st.sampled_from((0.0, 0.1, 2.8)),
    start_stop_s=st.sampled_from((0.0, 0.7, 7.0)),
)


@st.composite
def gpu_windows(draw: st.DrawFn, gpu: str) -> list[IdleWindow]:
    """Disjoint windows of one GPU, some of them adjacent."""
    times_s = [time / 10 for time in draw(TIMES)]
    return [IdleWindow(gpu, start_s, end_s) for start_s, end_s in pairwise(times_s) if draw(st.booleans())]


LOADS = st.lists(
    st.builds(
        PaddingLoad,
        load_id=st.sampled_from("abcd"),
        tenant=st.sampled_from(("x", "y")),
        num_tasks=st.integers(1, 60),
        cost=COSTS,
        opened_at_s=st.integers(0, 400).map(float),
        spread=st.sampled_from((0.0, 0.3)),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda load: load.load_id,
)


@examples(85)
@given(gpu_windows("g0"), gpu_windows("g1"), LOADS)
def test_every_task_is_done_exactly_once(
    first: list[IdleWindow], second: list[IdleWindow], loads: list[PaddingLoad]
) -> None:
    simulation = LoadSimulation([*first, *second, IdleWindow("g0", 500.0, 1e5)], loads)
    result = simulation.run()
    for outcome in result.outcomes:
        progress = simulation.progress[outcome.load.load_id]
        assert set(progress.times_done) == {1}
        assert outcome.tasks_done == outcome.load.num_tasks
        assert outcome.finished_at_s is not None
    assert result.useful_s - 1e-6 <= result.given_s <= result.idle_gpu_s + 1e-6


@examples(85)
@given(gpu_windows("g0"), gpu_windows("g1"), COSTS, st.integers(1, 5000))
def test_one_load_does_what_whole_tasks_allow(
    first: list[IdleWindow], second: list[IdleWindow], cost: TaskCost, num_tasks: int
) -> None:
    all_windows = [*first, *second]
    allowed = sum(whole_tasks(window.length_s, cost) for window in all_windows)
    (outcome,) = simulate_loads(all_windows, [load(num_tasks=num_tasks, cost=cost)]).outcomes
    # Only the last tasks may be in progress elsewhere while a window has nothing left to do.
    assert outcome.tasks_done == allowed or min(num_tasks, allowed) - 8 <= outcome.tasks_done <= min(num_tasks, allowed)

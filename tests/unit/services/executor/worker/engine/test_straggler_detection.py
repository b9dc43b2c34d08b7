"""A persistently slow worker is detected, and none on a machine that is merely busy."""

import numpy as np
import pytest

from elasticflow.services.executor.worker.engine.straggler_detection import (
    MIN_DURATION_S,
    REPORT_INTERVAL_S,
    STEPS,
    Straggler,
    StragglerDetector,
)

STEP_S = 0.2


def all_detected(
    steps: list[list[float]], step_s: float = STEP_S, gpu_types_by_rank: tuple[str, ...] = ()
) -> list[Straggler]:
    detector = StragglerDetector(gpu_types_by_rank)
    found = (detector.detect(compute_s, number * step_s) for number, compute_s in enumerate(steps))
    return [each for each in found if each is not None]


@pytest.mark.parametrize("num_workers", [2, 3, 8])
def test_a_persistent_straggler_is_reported_at_intervals(num_workers: int) -> None:
    compute_s = [0.1] * num_workers
    compute_s[1] = 0.2
    steps = int(MIN_DURATION_S / STEP_S) + 1
    assert all_detected([compute_s] * (steps - 1)) == []
    assert all_detected([compute_s] * steps) == [Straggler(1, pytest.approx(2.0))]
    assert len(all_detected([compute_s] * (steps + int(2 * REPORT_INTERVAL_S / STEP_S)))) == 3


def test_workers_are_compared_with_those_on_gpus_of_their_type() -> None:
    """Four times as slow by its type is no straggler; twice as slow as the others of its type is one."""
    types = ("fast", "slow", "fast", "slow", "alone", "slow")
    assert all_detected([[0.1, 0.4, 0.1, 0.4, 1.0, 0.4]] * 200, gpu_types_by_rank=types) == []
    detected = all_detected([[0.1, 0.4, 0.1, 0.4, 1.0, 0.8]] * 60, gpu_types_by_rank=types)
    assert detected == [Straggler(5, pytest.approx(2.0))]


def test_long_steps_need_as_many() -> None:
    compute_s = [20.0, 10.0, 10.0]
    assert all_detected([compute_s] * (STEPS - 1), step_s=25.0) == []
    assert [each.rank for each in all_detected([compute_s] * STEPS, step_s=25.0)] == [0]


def test_a_slowdown_of_all_or_of_changing_workers_is_ignored() -> None:
    slow = [[1.0] * 4] * 200
    alternating = [[0.1 + 0.4 * (rank == (number // 7) % 4) for rank in range(4)] for number in range(2000)]
    alone = [[1.0]] * 200
    assert all_detected(slow) + all_detected(alternating) + all_detected(alone) == []


def test_an_occasionally_slow_worker_is_ignored() -> None:
    compute_s = [[0.1, 0.1 if number % 40 == 0 else 0.3, 0.1] for number in range(4000)]
    assert all_detected(compute_s) == []


@pytest.mark.parametrize("num_workers", [2, 4, 16])
def test_a_noisy_machine_raises_no_alarm(num_workers: int) -> None:
    """Times with a heavy tail, and bursts of other work that slow some workers for seconds."""
    rng = np.random.default_rng(num_workers)
    compute_s = 0.1 * (1 + rng.pareto(1.5, (20_000, num_workers)))
    for begin in range(0, 20_000, 500):
        hit = rng.random(num_workers) < 0.5
        compute_s[begin : begin + 40, hit] *= 3  # eight seconds
    assert all_detected(compute_s.tolist()) == []


def test_a_straggler_is_detected_despite_noise() -> None:
    rng = np.random.default_rng(1)
    compute_s = 0.1 * (1 + 0.2 * rng.random((2000, 4)))
    compute_s[:, 2] *= 2.0
    assert {each.rank for each in all_detected(compute_s.tolist())} == {2}

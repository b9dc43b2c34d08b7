"""Who is slower than the others in step after step is found, and nobody is on a machine that is merely busy."""

import numpy as np
import pytest

from services.executor.worker.stragglers import LASTING_S, STEPS, TELL_EVERY_S, Straggler, Stragglers

STEP_S = 0.2


def all_found(steps: list[list[float]], step_s: float = STEP_S) -> list[Straggler]:
    stragglers = Stragglers()
    found = (stragglers.found(own_s, number * step_s) for number, own_s in enumerate(steps))
    return [each for each in found if each is not None]


@pytest.mark.parametrize("num_workers", [2, 3, 8])
def test_one_that_is_slower_all_the_time_is_told_once_in_a_while(num_workers: int) -> None:
    own_s = [0.1] * num_workers
    own_s[1] = 0.2
    steps = int(LASTING_S / STEP_S) + 1
    assert all_found([own_s] * (steps - 1)) == []
    assert all_found([own_s] * steps) == [Straggler(1, pytest.approx(2.0))]
    assert len(all_found([own_s] * (steps + int(2 * TELL_EVERY_S / STEP_S)))) == 3


def test_long_steps_need_as_many() -> None:
    own_s = [20.0, 10.0, 10.0]
    assert all_found([own_s] * (STEPS - 1), step_s=25.0) == []
    assert [each.rank for each in all_found([own_s] * STEPS, step_s=25.0)] == [0]


def test_what_makes_all_slow_or_one_in_turn_says_nothing() -> None:
    slow = [[1.0] * 4] * 200
    in_turn = [[0.1 + 0.4 * (rank == (number // 7) % 4) for rank in range(4)] for number in range(2000)]
    alone = [[1.0]] * 200
    assert all_found(slow) + all_found(in_turn) + all_found(alone) == []


def test_a_worker_that_is_slower_now_and_then_is_none() -> None:
    own_s = [[0.1, 0.1 if number % 40 == 0 else 0.3, 0.1] for number in range(4000)]
    assert all_found(own_s) == []


@pytest.mark.parametrize("num_workers", [2, 4, 16])
def test_a_noisy_machine_raises_no_alarm(num_workers: int) -> None:
    """Times with a heavy tail, and bursts of other work that hit some of the workers for seconds."""
    rng = np.random.default_rng(num_workers)
    own_s = 0.1 * (1 + rng.pareto(1.5, (20_000, num_workers)))
    for begin in range(0, 20_000, 500):
        hit = rng.random(num_workers) < 0.5
        own_s[begin : begin + 40, hit] *= 3  # eight seconds
    assert all_found(own_s.tolist()) == []


def test_one_that_is_slower_beside_noise_is_found_all_the_same() -> None:
    rng = np.random.default_rng(1)
    own_s = 0.1 * (1 + 0.2 * rng.random((2000, 4)))
    own_s[:, 2] *= 2.0
    assert {each.rank for each in all_found(own_s.tolist())} == {2}

"""A leak grows in each half of the steps; a large batch, a cache filled at once, or an optimizer's state does not."""

from collections.abc import Callable

import pytest
import torch

from elasticflow.services.executor.worker.engine.memory_growth import MemoryGrowth, memory_growth_on
from elasticflow.services.executor.worker.engine.user_code_checks import memory_exceeded, refuse_leak
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.device import DeviceMemoryExceeded

MB = 10**6


def grown(megabytes_after: Callable[[int], float], num_steps: int) -> MemoryGrowth:
    iteration = 0
    growth = MemoryGrowth(lambda: int(megabytes_after(iteration) * MB))
    for iteration in range(1, num_steps + 1):
        growth.step_ended(iteration)
    return growth


@pytest.mark.parametrize("num_steps", [3, 4, 5, 6, 7, 12, 60, 3000])
def test_a_leak_is_described_by_its_growth(num_steps: int) -> None:
    words = grown(lambda iteration: 500 + 200 * iteration, num_steps).in_words()
    assert words.startswith(f"the memory grew step by step, from {700 if num_steps < 7 else 1_100:,} MB")
    assert words.endswith("200.0 MB a step")


@pytest.mark.parametrize(
    "megabytes_after",
    [
        lambda iteration: 500,
        lambda iteration: 500 + 0.1 * iteration,  # far from what is used
        lambda iteration: 500 + 3000 * (iteration > 2),  # an optimizer's state
        lambda iteration: 500 + 3000 * (iteration > 40),  # a cache, filled at once
    ],
)
@pytest.mark.parametrize("num_steps", [3, 4, 5, 6, 7, 60])
def test_other_memory_is_no_leak(megabytes_after: Callable[[int], float], num_steps: int) -> None:
    assert not grown(megabytes_after, num_steps).in_words()


def test_two_steps_say_nothing_of_a_leak_but_the_error_of_a_single_sample_names_them() -> None:
    growth = grown(lambda iteration: 500 + 500 * iteration, 2)
    assert not growth.in_words()
    error = str(memory_exceeded(1, "no memory", 2, growth.num_steps))
    assert error.startswith("the memory is exceeded in iteration 2 by a single sample, although 2 steps before it did")
    assert str(memory_exceeded(1, "no memory", 0, 0)).startswith("a single sample exceeds the memory in iteration 0")


def test_a_leak_fails_the_job_and_other_errors_go_on_to_smaller_micro_batches() -> None:
    error = DeviceMemoryExceeded(8, "CUDA out of memory")
    with pytest.raises(
        TrainingFailed, match=r"grew, and was exceeded in iteration 7: .*CUDA out of memory; this is a l"
    ):
        refuse_leak(error, "it grew", 7)
    refuse_leak(error, "", 7)


def test_the_memory_of_this_process_is_what_is_measured() -> None:
    growth, kept = memory_growth_on(torch.device("cpu")), list[torch.Tensor]()
    for iteration in range(1, 40):
        kept.append(torch.ones(5 * MB))
        growth.step_ended(iteration)
    assert growth.in_words().startswith("the memory grew step by step")

"""The live part of `python -m benchmarks.papers`, at the smallest size."""

import pytest

from benchmarks.papers.live import accuracy


@pytest.mark.nightly("a benchmark; test_bitwise.py has the promise")
def test_virtual_nodes_train_the_same_bits_on_two_workers_and_the_naive_batch_does_not() -> None:
    numbers = accuracy(seed=1, workers=[1, 2], batch_size=512, epochs=2, learning_rate=0.2, wrong_labels=0.4)
    assert numbers["different-states"] == 0
    assert numbers["virtualflow-1"] == numbers["virtualflow-2"]
    assert numbers["naive-1"] != numbers["naive-2"]

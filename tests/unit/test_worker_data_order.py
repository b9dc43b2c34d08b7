"""Which samples a step takes: the same at every number of workers, each once an epoch."""

from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.executor.worker.data_order import DataOrder, local_slice


@given(
    seed=st.integers(0, 2**63 - 1),
    dataset_size=st.integers(1, 60),
    global_batch_size=st.integers(1, 60),
    world_sizes=st.lists(st.integers(1, 8), min_size=1, max_size=5),
)
def test_each_sample_once_an_epoch_through_any_resizes(seed, dataset_size, global_batch_size, world_sizes):
    order = DataOrder(seed=seed, dataset_size=dataset_size, global_batch_size=global_batch_size)
    seen: list[int] = []
    for iteration in range(3 * dataset_size):
        world_size = world_sizes[iteration % len(world_sizes)]
        for rank in range(world_size):
            local = local_slice(global_batch_size, rank=rank, world_size=world_size)
            seen += next(order.local_batches(local, iteration=iteration))
    for epoch in range(len(seen) // dataset_size):
        once = seen[epoch * dataset_size : (epoch + 1) * dataset_size]
        assert sorted(once) == list(range(dataset_size))


@given(global_batch_size=st.integers(1, 1000), world_size=st.integers(1, 64))
def test_parts_of_a_batch_differ_by_at_most_one(global_batch_size, world_size):
    parts = [local_slice(global_batch_size, rank=r, world_size=world_size) for r in range(world_size)]
    sizes = [part.stop - part.start for part in parts]
    assert sum(sizes) == global_batch_size
    assert max(sizes) - min(sizes) <= 1


def test_order_differs_between_seeds_and_epochs():
    def epoch_of(seed: int, epoch: int) -> list[int]:
        order = DataOrder(seed=seed, dataset_size=100, global_batch_size=100)
        return order.global_batch(epoch).tolist()

    assert len({tuple(epoch_of(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert epoch_of(0, 1) == epoch_of(0, 1)


def test_batches_from_any_iteration_continue_the_same_line():
    order = DataOrder(seed=5, dataset_size=17, global_batch_size=6)
    from_start = list(islice(order.local_batches(slice(0, 6), iteration=0), 9))
    from_fourth = list(islice(order.local_batches(slice(0, 6), iteration=4), 5))
    assert from_start[4:] == from_fourth
    assert np.concatenate(from_start).shape == (54,)

"""Which samples a step takes: the same at every number of workers, each once an epoch."""

from hypothesis import given
from hypothesis import strategies as st

from services.executor.worker.data_order import DataOrder
from services.executor.worker.virtual_nodes import VirtualNodes


def order_of(
    *,
    seed: int = 0,
    dataset_size: int = 100,
    global_batch_size: int = 100,
    count: int = 1,
    micro_batch_size: int = 0,
) -> DataOrder:
    virtual_nodes = VirtualNodes(
        count=count, global_batch_size=global_batch_size, micro_batch_size=micro_batch_size
    )
    return DataOrder(seed=seed, dataset_size=dataset_size, virtual_nodes=virtual_nodes)


@given(
    seed=st.integers(0, 2**63 - 1),
    dataset_size=st.integers(1, 60),
    global_batch_size=st.integers(1, 60),
    world_sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    micro_batch_size=st.integers(0, 60),
    data=st.data(),
)
def test_each_sample_once_an_epoch_through_any_resizes(
    seed, dataset_size, global_batch_size, world_sizes, micro_batch_size, data
):
    order = order_of(
        seed=seed,
        dataset_size=dataset_size,
        global_batch_size=global_batch_size,
        count=data.draw(st.integers(1, global_batch_size)),
        micro_batch_size=micro_batch_size,
    )
    seen: list[int] = []
    for iteration in range(2 * dataset_size):
        world_size = world_sizes[iteration % len(world_sizes)]
        for rank in range(world_size):
            block = order.virtual_nodes.block(rank, world_size)
            micro_batches = [each for v in block for each in order.virtual_nodes.micro_batches(v)]
            for part in order.parts(micro_batches, iteration):
                assert part.iteration == iteration
                seen += part.samples
    for epoch in range(len(seen) // dataset_size):
        once = seen[epoch * dataset_size : (epoch + 1) * dataset_size]
        assert sorted(once) == list(range(dataset_size))


def test_order_differs_between_seeds_and_epochs():
    def epoch_of(seed: int, epoch: int) -> list[int]:
        return order_of(seed=seed).global_batch(epoch).tolist()

    assert len({tuple(epoch_of(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert epoch_of(0, 1) == epoch_of(0, 1)


def test_parts_are_slices_of_the_batch():
    order = order_of(seed=5, dataset_size=17, global_batch_size=6, count=3)
    parts = order.parts([each for v in (1, 2) for each in order.virtual_nodes.micro_batches(v)], 4)
    assert [part.virtual_node for part in parts] == [1, 2]
    assert [sample for part in parts for sample in part.samples] == order.global_batch(4)[2:].tolist()

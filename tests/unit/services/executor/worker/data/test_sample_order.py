"""Which samples a step takes: the same at every number of workers, each once an epoch."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.executor.worker.data.sample_order import Partitions, SampleOrder
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes

SEEDS = st.integers(0, 2**63 - 1)


@st.composite
def lines(draw) -> SampleOrder:
    """A batch may be longer than the data set here, although no job's is."""
    global_batch_size = draw(st.integers(1, 40))
    return SampleOrder(
        seed=draw(SEEDS),
        partitions=Partitions(draw(st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(sum))),
        global_batch_size=global_batch_size,
        num_lanes=draw(st.integers(1, global_batch_size)),
        window_size=draw(st.integers(1, 20)),
        is_shuffled=draw(st.booleans()),
    )


def line_of(*sizes: int, seed: int = 0, batch: int = 100, lanes: int = 1, window: int = 100) -> SampleOrder:
    return SampleOrder(
        seed=seed,
        partitions=Partitions(sizes),
        global_batch_size=batch,
        num_lanes=lanes,
        window_size=window,
    )


@given(
    line=lines(),
    world_sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    micro_batch_size=st.integers(0, 60),
    is_fast=st.booleans(),
    data=st.data(),
)
def test_each_sample_once_an_epoch_through_any_resizes(line, world_sizes, micro_batch_size, is_fast, data):
    """Workers have any numbers of virtual nodes. The fast mode cuts the batch for each generation."""
    count = data.draw(st.integers(1, line.global_batch_size))
    seen: list[int] = []
    for iteration in range(2 * line.partitions.num_samples // line.global_batch_size + 1):
        world_size = world_sizes[iteration % len(world_sizes)]
        cuts = sorted(data.draw(st.lists(st.integers(0, count), min_size=world_size - 1, max_size=world_size - 1)))
        nodes = VirtualNodes(
            count=count,
            global_batch_size=line.global_batch_size,
            micro_batch_size=micro_batch_size,
            counts_by_rank=tuple(stop - start for start, stop in pairwise([0, *cuts, count])),
        )
        nodes = nodes.merged_by_worker() if is_fast else nodes
        for rank in range(world_size):
            micro_batches = [each for v in nodes.block(rank, world_size) for each in nodes.micro_batches(v)]
            for part in line.parts(micro_batches, iteration):
                assert part.iteration == iteration
                assert list(part.samples) == _samples(line, part.position, len(part.samples))
                seen += part.samples
    size = line.partitions.num_samples
    for epoch in range(len(seen) // size):
        assert sorted(seen[epoch * size : (epoch + 1) * size]) == list(range(size))


def _samples(line: SampleOrder, position: int, count: int) -> list[int]:
    return line.samples(position, position + count).tolist()


@given(line=lines(), position=st.integers(0, 500), count=st.integers(1, 60))
def test_windows_hold_what_their_extents_describe(line, position, count):
    """Reading a window's extents in order, then picking by index, gives the samples."""
    picked: list[int] = []
    for window, indices in line.windows(position, position + count):
        held = [
            int(line.partitions.starts_P[extent.partition]) + extent.offset + i
            for extent in line.extents(window)
            for i in range(extent.size)
        ]
        assert len(held) == window.size
        picked += [held[index] for index in indices]
    assert picked == _samples(line, position, count)


@given(line=lines())
def test_a_lane_reads_sequentially(line):
    """Its windows are adjacent in an epoch, from one batch to the next."""
    last = {}
    for start in range(0, line.partitions.num_samples, line.global_batch_size):
        for window, _ in line.windows(start, start + line.global_batch_size):
            before = last.get((window.epoch, window.lane), window)
            assert window in (
                before,
                replace(window, index=before.index + 1, start=before.start + before.size),
            )
            last[window.epoch, window.lane] = window


def test_order_differs_between_seeds_and_epochs():
    def epoch_of(seed: int, epoch: int, *sizes: int, lanes: int) -> tuple[int, ...]:
        return tuple(_samples(line_of(*sizes, seed=seed, lanes=lanes, window=20), epoch * 100, 100))

    for sizes, lanes in [((100,), 1), ((30, 30, 40), 3)]:
        epochs = {epoch_of(seed, epoch, *sizes, lanes=lanes) for seed in (0, 1) for epoch in (0, 1)}
        assert len(epochs) == 4


def test_one_window_as_large_as_the_data_is_a_permutation_of_all():
    expected = np.random.default_rng((3, 1)).permutation(50)
    assert _samples(line_of(50, seed=3, batch=16, window=50), 50, 50) == expected.tolist()


def test_without_shuffling_samples_keep_their_order():
    line = replace(line_of(7, 0, 5, batch=4, window=4), is_shuffled=False)
    assert _samples(line, 0, 24) == [*range(12), *range(12)]


def test_a_batch_touches_few_partitions_and_each_lane_one_or_two():
    """1000 files of 100 samples: shuffled as a whole, a batch of 64 would open some 60."""
    line = line_of(*[100] * 1000, batch=64, lanes=8, window=16)
    for iteration in range(50):
        files = {sample // 100 for sample in _samples(line, iteration * 64, 64)}
        assert len(files) <= 16
        lane = {sample // 100 for sample in _samples(line, iteration * 64, 8)}
        assert len(lane) <= 2


def test_parts_are_slices_of_the_batch():
    nodes = VirtualNodes(count=3, global_batch_size=6)
    line = line_of(17, seed=5, batch=6, window=17)
    parts = line.parts([each for v in (1, 2) for each in nodes.micro_batches(v)], 4)
    assert [(part.virtual_node, part.position) for part in parts] == [(1, 26), (2, 28)]
    assert [sample for part in parts for sample in part.samples] == _samples(line, 26, 4)

"""How a global batch is cut into virtual nodes, and which workers compute them."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.executor.worker.data.random_seeds import SeedPhase, seed_of
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes, default_count


@st.composite
def cuts(draw: st.DrawFn) -> VirtualNodes:
    global_batch_size = draw(st.integers(1, 200))
    count = draw(st.integers(1, min(global_batch_size, 40)))
    return VirtualNodes(count=count, global_batch_size=global_batch_size)


@pytest.mark.parametrize(("batch", "count"), [(1, 1), (2, 2), (3, 2), (7, 4), (8, 8), (1000, 8)])
def test_the_default_is_a_power_of_two_up_to_eight(batch, count):
    assert default_count(batch) == count


@pytest.mark.parametrize(("batch", "gang", "count"), [(1, 2, 1), (8, 2, 4), (16, 2, 8), (21, 2, 8), (21, 4, 4)])
def test_each_worker_of_a_gang_has_a_sample_of_each_virtual_node_by_default(batch, gang, count):
    assert default_count(batch, gang) == count


@given(cuts(), st.sampled_from([1, 2, 4]))
def test_the_workers_of_a_gang_divide_each_micro_batch(virtual_nodes, size):
    for whole in virtual_nodes.computed_by(0, 1):
        parts = [virtual_nodes.divided(whole, position, size) for position in range(size)]
        bounds = [part.samples.start for part in parts] + [parts[-1].samples.stop]
        assert (bounds[0], bounds[-1]) == (whole.samples.start, whole.samples.stop)
        sizes = [part.samples.stop - part.samples.start for part in parts]
        assert sizes == [after - before for before, after in pairwise(bounds)]
        assert max(sizes) - min(sizes) <= 1
        assert sum(part.weight for part in parts) == pytest.approx(whole.weight)
        assert len({part.number for part in parts}) == size, "each has random numbers of its own"
        assert {(part.virtual_node, part.is_last, part.is_whole) for part in parts} == {
            (whole.virtual_node, whole.is_last, whole.is_whole)
        }, "their sum is that of the micro-batch"


@given(cuts(), st.integers(1, 50))
def test_blocks_are_contiguous_and_hold_each_virtual_node_once(virtual_nodes, world_size):
    blocks = [virtual_nodes.block(rank, world_size) for rank in range(world_size)]
    assert [v for block in blocks for v in block] == list(range(virtual_nodes.count))
    working = [len(block) for block in blocks if block]
    assert len(working) == min(world_size, virtual_nodes.count)
    assert max(working) - min(working) <= 1


@given(cuts(), st.integers(1, 50))
def test_every_worker_computes_an_existing_part(virtual_nodes, world_size):
    for rank in range(world_size):
        computed = {part.virtual_node for part in virtual_nodes.computed_by(rank, world_size)}
        assert computed
        assert computed <= set(range(virtual_nodes.count))
        assert computed == set(virtual_nodes.block(rank, world_size)) or rank >= virtual_nodes.count


@st.composite
def uneven_cuts(draw: st.DrawFn) -> VirtualNodes:
    counts = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)))
    return VirtualNodes(
        count=sum(counts),
        global_batch_size=sum(counts) + draw(st.integers(0, 100)),
        micro_batch_size=draw(st.integers(0, 20)),
        counts_by_rank=counts,
    )


@given(uneven_cuts())
def test_uneven_blocks_have_the_given_counts_and_cut_the_batch_as_even_ones_do(virtual_nodes):
    world_size = len(virtual_nodes.counts_by_rank)
    blocks = [virtual_nodes.block(rank, world_size) for rank in range(world_size)]
    assert tuple(map(len, blocks)) == virtual_nodes.counts_by_rank
    even = replace(virtual_nodes, counts_by_rank=())
    expected = even.computed_by(0, 1)
    assert tuple(part for block in blocks for v in block for part in virtual_nodes.micro_batches(v)) == expected


@given(uneven_cuts())
def test_a_worker_without_virtual_nodes_repeats_one(virtual_nodes):
    for rank, count in enumerate(virtual_nodes.counts_by_rank):
        computed = {part.virtual_node for part in virtual_nodes.computed_by(rank, len(virtual_nodes.counts_by_rank))}
        assert len(computed) == max(count, 1)


@given(uneven_cuts())
def test_merged_by_worker_each_worker_has_its_samples_in_one_virtual_node(virtual_nodes):
    merged, world_size = virtual_nodes.merged_by_worker(), len(virtual_nodes.counts_by_rank)
    for rank in range(world_size):
        before = [virtual_nodes.samples(v) for v in virtual_nodes.block(rank, world_size)]
        after = [merged.samples(v) for v in merged.block(rank, world_size)]
        assert after == ([slice(before[0].start, before[-1].stop)] if before else [])
        assert len({part.virtual_node for part in merged.computed_by(rank, world_size)}) == 1
    assert sum(merged.weight(v) for v in range(merged.count)) == pytest.approx(1.0)


@given(cuts(), st.integers(1, 100))
def test_micro_batches_are_small_enough_and_cover_their_virtual_node(virtual_nodes, micro_batch_size):
    virtual_nodes = replace(virtual_nodes, micro_batch_size=micro_batch_size)
    sizes = []
    for virtual_node in range(virtual_nodes.count):
        parts = virtual_nodes.micro_batches(virtual_node)
        samples = [sample for part in parts for sample in range(200)[part.samples]]
        assert samples == list(range(200)[virtual_nodes.samples(virtual_node)])
        assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
        assert sum(part.weight for part in parts) == pytest.approx(virtual_nodes.weight(virtual_node))
        sizes += [part.samples.stop - part.samples.start for part in parts]
    assert 0 < max(sizes) == virtual_nodes.largest_micro_batch <= micro_batch_size
    assert min(sizes) > 0
    assert virtual_nodes.are_cut == (len(sizes) > virtual_nodes.count)


def test_without_a_limit_a_virtual_node_is_one_micro_batch():
    whole = VirtualNodes(count=3, global_batch_size=10)
    assert [part.virtual_node for part in whole.computed_by(0, 1)] == [0, 1, 2]
    assert not whole.are_cut
    assert whole.largest_micro_batch == 4


@given(cuts())
def test_parts_differ_by_at_most_one_sample_and_are_weighted_by_samples(virtual_nodes):
    parts = [virtual_nodes.samples(v) for v in range(virtual_nodes.count)]
    sizes = [part.stop - part.start for part in parts]
    assert sum(sizes) == virtual_nodes.global_batch_size
    assert max(sizes) - min(sizes) <= 1
    weights = [virtual_nodes.weight(v) for v in range(virtual_nodes.count)]
    assert sum(weights) == pytest.approx(1.0)
    assert all(w * virtual_nodes.global_batch_size == pytest.approx(n) for w, n in zip(weights, sizes, strict=True))


def test_seeds_differ_between_jobs_phases_steps_and_virtual_nodes():
    seeds = {
        seed_of(job, phase, iteration=iteration, virtual_node=virtual_node, micro_batch=micro_batch)
        for job, phase, iteration, virtual_node, micro_batch in product(
            (0, 1, 2**32, 2**63 - 1),
            (*SeedPhase, SeedPhase.AFTER_SYNCHRONIZATION + 1),
            (0, 1, 2**32),
            (-1, 0, 1),
            (0, 1),
        )
    }
    assert len(seeds) == 4 * 7 * 3 * 3 * 2

"""Placement on clusters of any shape: shares that fit by count are placed, and only movable jobs migrate."""

import math
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.scheduling.placement.buddy_blocks import Blocks, FreeBlocks, LastPositions
from elasticflow.shared.scheduling.placement.placement import (
    MigrationBenefit,
    MigrationRules,
    PlacementCurves,
    any_spread,
    place,
)
from elasticflow.shared.state.topology import Node, Topology
from tests.support.placement_strategies import gpu_counts, topologies

JOB_IDS = tuple(f"job-{number}" for number in range(8))
GpusByJob = Mapping[str, tuple[GpuId, ...]]


def assert_legal(topology: Topology, wanted: dict[str, int], gpus_by_job: GpusByJob) -> None:
    assert {job_id: len(gpus) for job_id, gpus in gpus_by_job.items()} == {
        job_id: num_gpus for job_id, num_gpus in wanted.items() if num_gpus
    }
    used = [gpu for gpus in gpus_by_job.values() for gpu in gpus]
    assert len(set(used)) == len(used)
    assert set(used) <= set(topology.gpus)


@st.composite
def mobilities(draw: st.DrawFn, wanted: dict[str, int]) -> MigrationRules:
    """Some jobs that may move, with stakes from nothing to anything."""
    stakes = {
        job_id: MigrationBenefit(
            curves=PlacementCurves(None, {}),
            num_gpus=num_gpus,
            stay_s=draw(st.sampled_from([0.0, 100.0, 1e6])),
            stop_s=draw(st.sampled_from([0.0, 10.0, 1e5])),
        )
        for job_id, num_gpus in wanted.items()
    }
    return MigrationRules(movable=draw(st.sets(st.sampled_from(JOB_IDS))), migration_benefit=stakes.__getitem__)


@given(st.data(), topologies())
def test_shares_that_fit_by_count_are_placed_and_only_movable_jobs_move(
    data: st.DataObject, topology: Topology
) -> None:
    current: GpusByJob = {}
    for _ in range(5):
        wanted = data.draw(gpu_counts(topology.num_gpus, JOB_IDS))
        migration_rules = data.draw(mobilities(wanted))
        placement = place(topology, current, wanted, migration_rules)
        assert_legal(topology, wanted, placement.gpus_by_job)
        kept = {job_id for job_id in current if len(current[job_id]) == wanted[job_id]}
        moved = {job_id for job_id in kept if placement.gpus_by_job[job_id] != current[job_id]}
        assert set(placement.migrated) == moved <= migration_rules.movable
        current = placement.gpus_by_job


@given(st.data(), topologies())
def test_a_placement_depends_on_nothing_but_its_arguments(data: st.DataObject, topology: Topology) -> None:
    """Not on what was placed before, nor on the order of a mapping, nor on which of equal tuples it is given."""
    current: GpusByJob = {}
    last = LastPositions(topology)
    for _ in range(4):
        wanted = data.draw(gpu_counts(topology.num_gpus, JOB_IDS))
        migration_rules = data.draw(mobilities(wanted))
        remembering = place(topology, current, wanted, migration_rules, last=last)
        reordered = {job_id: tuple(GpuId(*gpu) for gpu in current[job_id]) for job_id in reversed(current)}
        again = place(topology, reordered, dict(reversed(wanted.items())), migration_rules, last=last)
        from_scratch = place(topology, current, wanted, migration_rules)
        assert remembering == again == from_scratch
        current = remembering.gpus_by_job


@given(st.data(), topologies())
def test_a_job_migrates_only_to_better_gpus_or_for_another_job(data: st.DataObject, topology: Topology) -> None:
    first = data.draw(gpu_counts(topology.num_gpus, JOB_IDS))
    second = data.draw(gpu_counts(topology.num_gpus, JOB_IDS))
    current = place(topology, place(topology, {}, first).gpus_by_job, second).gpus_by_job
    migration_rules = data.draw(mobilities(second))
    placement = place(topology, current, second, migration_rules)
    level = Levels(topology)
    for job_id in placement.migrated:
        assert level[placement.gpus_by_job[job_id]] < level[current[job_id]]
    if not any_spread(
        LastPositions(topology),
        {job_id: current[job_id] for job_id in current if job_id in migration_rules.movable},
    ):
        assert placement.migrated == ()
    third = data.draw(gpu_counts(topology.num_gpus, JOB_IDS))
    placement = place(topology, current, third, data.draw(mobilities(third)))
    for job_id in placement.migrated:
        assert level[placement.gpus_by_job[job_id]] <= level[current[job_id]]


class Levels:
    """What connects some GPUs."""

    def __init__(self, topology: Topology) -> None:
        self._blocks = Blocks(topology)

    def __getitem__(self, gpus: tuple[GpuId, ...]) -> int:
        return self._blocks.level(self._blocks.positions(gpus))


@given(st.data(), topologies())
def test_a_lost_node_only_moves_its_own_jobs(data: st.DataObject, topology: Topology) -> None:
    wanted = data.draw(gpu_counts(topology.num_gpus, JOB_IDS))
    current = place(topology, {}, wanted).gpus_by_job
    lost = data.draw(st.sampled_from(topology.nodes))
    left = Topology(tuple(node for node in topology.nodes if node != lost))
    hit = {job_id for job_id, gpus in current.items() if any(gpu.node_id == lost.node_id for gpu in gpus)}
    num_free = left.num_gpus
    still = dict[str, int]()
    for job_id in sorted(current, key=lambda job_id: job_id in hit):
        if len(current[job_id]) <= num_free:
            still[job_id] = len(current[job_id])
            num_free -= len(current[job_id])
    placement = place(left, current, still)
    assert_legal(left, still, placement.gpus_by_job)
    assert placement.migrated == ()
    for job_id in still.keys() - hit:
        assert placement.gpus_by_job[job_id] == current[job_id]


@given(st.data(), st.integers(0, 3), st.integers(0, 3))
def test_blocks_are_aligned_on_regular_clusters(data: st.DataObject, log_nodes: int, log_gpus: int) -> None:
    topology = Topology(tuple(Node(f"node-{n}", 2**log_gpus) for n in range(2**log_nodes)))
    wanted = data.draw(gpu_counts(topology.num_gpus, JOB_IDS))
    number = {gpu: position for position, gpu in enumerate(topology.gpus)}
    for gpus in place(topology, {}, wanted).gpus_by_job.values():
        first = number[gpus[0]]
        assert first % len(gpus) == 0
        assert [number[gpu] for gpu in gpus] == list(range(first, first + len(gpus)))


@given(topologies())
def test_every_range_of_positions_that_could_be_a_block_is_one(topology: Topology) -> None:
    blocks = Blocks(topology)
    assert sorted(blocks.gpus_P) == sorted(topology.gpus)
    for size in range(topology.num_gpus.bit_length()):
        expected = {
            start: blocks.level(((1 << (1 << size)) - 1) << start)
            for start in range(0, topology.num_gpus - (1 << size) + 1, 1 << size)
        }
        listed = {
            start: level for level, of_level in blocks.blocks_by_level(size) for start in blocks.members(of_level)
        }
        assert listed == expected


@given(st.data(), topologies())
def test_best_fit_is_the_fastest_free_block_in_the_smallest_free_block_around_it(
    data: st.DataObject, topology: Topology
) -> None:
    """Against a search that looks at every block and at everything around it."""
    blocks = Blocks(topology)
    taken = data.draw(st.sets(st.integers(0, topology.num_gpus - 1)))
    free = FreeBlocks(blocks, blocks.every_position & ~sum(1 << position for position in taken))

    def is_free(size: int, start: int) -> bool:
        return start + (1 << size) <= topology.num_gpus and taken.isdisjoint(range(start, start + (1 << size)))

    def largest_free_around(size: int, start: int) -> int:
        while is_free(size + 1, start >> (size + 1) << (size + 1)):
            size, start = size + 1, start >> (size + 1) << (size + 1)
        return size

    for size in range(topology.num_gpus.bit_length()):
        candidates = [start for start in range(0, topology.num_gpus, 1 << size) if is_free(size, start)]

        def order(start: int, size: int = size) -> tuple[int, int, int]:
            return blocks.level_of_block(size, start), largest_free_around(size, start), start

        assert free.best_fit(size) == min(candidates, key=order, default=None)


@given(st.data(), topologies())
def test_taking_block_by_block_is_taking_them_all(data: st.DataObject, topology: Topology) -> None:
    blocks = Blocks(topology)
    free = FreeBlocks(blocks, blocks.every_position)
    for _ in range(6):
        size = data.draw(st.integers(0, topology.num_gpus.bit_length() - 1))
        start = free.best_fit(size)
        if start is not None:
            free.take_block(size, start)
        fresh = FreeBlocks(blocks, free.positions)
        for other in range(topology.num_gpus.bit_length()):
            assert free.best_fit(other) == fresh.best_fit(other)


@given(st.data(), topologies())
def test_pieces_are_as_close_together_as_free_gpus_can_be(data: st.DataObject, topology: Topology) -> None:
    blocks = Blocks(topology)
    taken = data.draw(st.sets(st.integers(0, topology.num_gpus - 1), max_size=topology.num_gpus - 1))
    free = FreeBlocks(blocks, blocks.every_position & ~sum(1 << position for position in taken))
    size = data.draw(st.integers(0, int(math.log2(free.positions.bit_count()))))
    if free.best_fit(size) is not None:
        return
    fragments = free.fragments(1 << size)
    assert fragments.bit_count() == 1 << size
    assert fragments & ~free.positions == 0
    level = blocks.level(fragments)
    for gpu in map(blocks.gpus_P.__getitem__, blocks.members(free.positions)):
        near = [
            other
            for other in map(blocks.gpus_P.__getitem__, blocks.members(free.positions))
            if blocks.level(blocks.positions({gpu, other})) < level
        ]
        assert len({gpu, *near}) < 1 << size  # no part of the tree below that level has enough


@given(st.data(), topologies())
def test_avoided_gpus_are_taken_only_where_no_block_of_the_same_level_is_free_of_them(
    data: st.DataObject, topology: Topology
) -> None:
    """And they cost no job a better level."""
    blocks = Blocks(topology)
    taken = data.draw(st.sets(st.sampled_from(topology.gpus)))
    avoided = data.draw(st.sets(st.sampled_from(topology.gpus)))
    s = data.draw(st.integers(0, topology.num_gpus.bit_length() - 1))
    free = blocks.every_position ^ blocks.positions(taken)
    start = FreeBlocks(blocks, free, blocks.positions(avoided)).best_fit(s)
    anyway = FreeBlocks(blocks, free).best_fit(s)
    assert (start is None) == (anyway is None)
    if start is None or anyway is None:
        return
    level = blocks.level_of_block(s, start)
    assert level == blocks.level_of_block(s, anyway)
    if avoided & set(blocks.gpus_of_block(s, start)):
        equal = blocks.members(dict(blocks.blocks_by_level(s))[level] & blocks.inside(free, s))
        assert all(avoided & set(blocks.gpus_of_block(s, other)) for other in equal)


@given(st.data(), topologies())
def test_pieces_take_avoided_gpus_only_where_no_part_of_the_same_level_has_enough_others(
    data: st.DataObject, topology: Topology
) -> None:
    """And they cost no job a better level, nor more fragments in the same part."""
    blocks = Blocks(topology)
    taken = data.draw(st.sets(st.sampled_from(topology.gpus), max_size=topology.num_gpus - 1))
    avoided = blocks.positions(data.draw(st.sets(st.sampled_from(topology.gpus))))
    free = blocks.every_position ^ blocks.positions(taken)
    size = data.draw(st.integers(0, int(math.log2(free.bit_count()))))
    if FreeBlocks(blocks, free).best_fit(size) is not None:
        return
    fragments = FreeBlocks(blocks, free, avoided).fragments(1 << size)
    level = blocks.level(FreeBlocks(blocks, free).fragments(1 << size))
    assert (fragments.bit_count(), fragments & ~free, blocks.level(fragments)) == (1 << size, 0, level)
    others = free & ~avoided
    if fragments & avoided and others.bit_count() >= 1 << size:
        assert blocks.level(blocks.closest(others, 1 << size)) != level

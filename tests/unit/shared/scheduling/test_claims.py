"""Promised jobs have whole blocks: jobs make room for each other, and what may not move stays."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.scheduling.jobs.scaling_curve import PlacementCurves
from elasticflow.shared.scheduling.placement.buddy_blocks import Blocks
from elasticflow.shared.scheduling.placement.placement import MigrationBenefit, MigrationRules, Placement, place
from elasticflow.shared.state.topology import CLUSTER, NODE, RACK, SOCKET, Node, Topology
from testbed.histories import gpus

NO_BENEFIT = MigrationBenefit(curves=PlacementCurves(None, {}), num_gpus=1, stay_s=0.0, stop_s=1.0)
TWO_NODES = Topology((Node("a", 4), Node("b", 4)))


def placed(
    topology: Topology,
    current: Mapping[str, tuple[GpuId, ...]],
    wanted: Mapping[str, int],
    costs: Mapping[str, float],
    claims: frozenset[str] | None = None,
) -> Placement:
    """All jobs have claims unless said otherwise; a job without a cost must not migrate."""
    rules = MigrationRules(
        movable=frozenset(),
        migration_benefit=lambda job_id: NO_BENEFIT,
        claims=frozenset(wanted) if claims is None else claims,
        displacement_cost=lambda job_id: costs.get(job_id, inf),
    )
    return place(topology, current, wanted, rules)


def test_the_cheapest_job_makes_room_for_a_block() -> None:
    current = {"cheap": gpus("a:0"), "dear": gpus("b:0")}
    placement = placed(TWO_NODES, current, {"cheap": 1, "dear": 1, "big": 4}, {"cheap": 1.0, "dear": 2.0})
    assert placement.gpus_by_job["big"] == gpus("a:0", "a:1", "a:2", "a:3")
    assert placement.gpus_by_job["dear"] == gpus("b:0")
    assert placement.gpus_by_job["cheap"] in {gpus("b:1"), gpus("b:2"), gpus("b:3")}
    assert placement.migrated == ("cheap",)


def test_a_job_that_makes_room_displaces_a_smaller_one() -> None:
    """The free pair is split over both nodes: the pair that leaves node a needs the place of the single job."""
    current = {"pair": gpus("a:0", "a:1"), "held": gpus("b:0", "b:1"), "single": gpus("b:2")}
    placement = placed(TWO_NODES, current, {"pair": 2, "held": 2, "single": 1, "big": 2}, dict.fromkeys(current, 1.0))
    assert not placement.migrated, "a pair is free on node a"
    wanted = {"pair": 2, "held": 2, "single": 1, "big": 4}
    with pytest.raises(AssertionError, match="more GPUs wanted"):
        placed(TWO_NODES, current, wanted, {})
    current = {"pair": gpus("a:0", "a:1"), "single": gpus("b:2"), "other": gpus("b:0")}
    placement = placed(TWO_NODES, current, {"pair": 2, "single": 1, "other": 1, "big": 4}, dict.fromkeys(current, 1.0))
    blocks = Blocks(TWO_NODES)
    assert blocks.level(blocks.positions(placement.gpus_by_job["big"])) < CLUSTER
    assert blocks.level(blocks.positions(placement.gpus_by_job["pair"])) < CLUSTER


def test_a_job_without_a_block_around_jobs_that_stay_gets_fragments() -> None:
    current = {"one": gpus("a:0"), "two": gpus("b:0")}
    placement = placed(TWO_NODES, current, {"one": 1, "two": 1, "big": 4}, {})
    assert {gpu.node_id for gpu in placement.gpus_by_job["big"]} == {"a", "b"}
    assert not placement.migrated


def test_a_job_without_a_claim_displaces_none() -> None:
    current = {"one": gpus("a:0"), "two": gpus("b:0")}
    wanted = {"one": 1, "two": 1, "big": 4}
    placement = placed(TWO_NODES, current, wanted, {"one": 1.0, "two": 1.0}, claims=frozenset({"one", "two"}))
    assert not placement.migrated


def test_a_job_that_is_apart_is_brought_together_once_a_block_can_be_free() -> None:
    apart = {"big": gpus("a:0", "a:1", "b:0", "b:1"), "one": gpus("a:2")}
    placement = placed(TWO_NODES, apart, {"big": 4, "one": 1}, {"big": 4.0, "one": 1.0})
    assert placement.gpus_by_job["big"] == gpus("b:0", "b:1", "b:2", "b:3")
    assert placement.migrated == ("big",)
    assert not placed(TWO_NODES, apart, {"big": 4, "one": 1}, {"one": 1.0}).migrated, "it has no room itself"


@st.composite
def pools_in_use(draw: st.DrawFn) -> tuple[Topology, dict[str, tuple[GpuId, ...]], dict[str, int]]:
    """Nodes of any size, jobs anywhere on their GPUs, and numbers of GPUs that fit together."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    topology = Topology(tuple(Node(f"node-{number}", size) for number, size in enumerate(sizes)))
    free = draw(st.permutations(topology.gpus))
    current, wanted, num_left = dict[str, tuple[GpuId, ...]](), dict[str, int](), topology.num_gpus
    for number in range(draw(st.integers(1, 12))):
        size = 1 << draw(st.integers(0, 4))
        if size > num_left:
            continue
        num_left -= size
        wanted[f"job-{number}"] = size
        held = draw(st.sampled_from([0, size, 1]))
        if held and held <= len(free):
            current[f"job-{number}"], free = tuple(free[:held]), free[held:]
    return topology, current, wanted


@given(pools_in_use())
def test_every_promised_job_gets_a_block_if_all_may_move(
    pool: tuple[Topology, dict[str, tuple[GpuId, ...]], dict[str, int]],
) -> None:
    topology, current, wanted = pool
    placement = placed(topology, current, wanted, dict.fromkeys(wanted, 1.0))
    blocks = Blocks(topology)
    assert placement.gpus_by_job.keys() == wanted.keys()
    taken = [gpu for held in placement.gpus_by_job.values() for gpu in held]
    assert len(taken) == len(set(taken)) == sum(wanted.values())
    for job_id, num_gpus in wanted.items():
        level = blocks.level(blocks.positions(placement.gpus_by_job[job_id]))
        assert level <= topology.block_level(num_gpus), job_id
    stayed = {job_id for job_id in current if len(current[job_id]) == wanted[job_id]}
    assert set(placement.migrated) <= stayed
    for job_id in stayed.difference(placement.migrated):
        assert set(placement.gpus_by_job[job_id]) == set(current[job_id]), "only a migration changes its GPUs"


@given(pools_in_use())
def test_the_levels_of_blocks_are_those_of_the_pairs(
    pool: tuple[Topology, dict[str, tuple[GpuId, ...]], dict[str, int]],
) -> None:
    topology, _, _ = pool
    blocks = Blocks(topology)
    sizes = range(topology.num_gpus.bit_length())
    assert topology.block_levels == tuple(blocks.blocks_by_level(size)[-1][0] for size in sizes)
    for gpus_held in (topology.gpus[:2], topology.gpus[1:3], topology.gpus[::2]):
        if gpus_held:
            assert topology.level_of(gpus_held) == blocks.level(blocks.positions(gpus_held))


UNEQUAL_NODES = Topology((Node("a", 4), Node("b", 2), Node("c", 2)))
MEASURES = MigrationRules(
    movable=frozenset(),
    migration_benefit=lambda job_id: NO_BENEFIT,
    measured_level=lambda job_id: CLUSTER if job_id == "measured" else None,
)
WITHIN_A_NODE = replace(MEASURES, measured_level=lambda job_id: NODE if job_id == "measured" else None)


@pytest.mark.parametrize("held", [(), gpus("a:0"), gpus("a:0", "a:1")])
def test_a_measured_job_gets_the_worst_block_that_a_promise_may_get(held: tuple[GpuId, ...]) -> None:
    """Four GPUs are node a, or nodes b and c together: a promise of four GPUs counts on the latter."""
    placement = place(UNEQUAL_NODES, {"measured": held}, {"measured": 4, "other": 4}, MEASURES)
    assert placement.gpus_by_job["measured"] == gpus("b:0", "b:1", "c:0", "c:1")
    assert placement.gpus_by_job["other"] == gpus("a:0", "a:1", "a:2", "a:3")


@pytest.mark.parametrize(
    ("others", "avoided", "expected"),
    [
        pytest.param({"other": gpus("c:0")}, (), gpus("a:0", "a:1", "b:0", "b:1"), id="one is taken"),
        pytest.param({}, gpus("b:0"), gpus("a:0", "a:1", "c:0", "c:1"), id="one is slow, or leaves soon"),
    ],
)
def test_a_measured_job_is_apart_as_the_worst_block_is_where_that_is_not_free(
    others: dict[str, tuple[GpuId, ...]], avoided: tuple[GpuId, ...], expected: tuple[GpuId, ...]
) -> None:
    """Half of its GPUs are on each of two nodes: on node a alone, its speed would say nothing about the promise."""
    placement = place(UNEQUAL_NODES, others, {"measured": 4, **dict.fromkeys(others, 1)}, MEASURES, avoided=avoided)
    assert placement.gpus_by_job["measured"] == expected


@pytest.mark.parametrize("rules", [MEASURES, WITHIN_A_NODE], ids=["no other GPUs are free", "a promise needs no more"])
def test_a_measured_job_gets_a_better_block_where_none_is_free_that_is_as_far_apart(rules: MigrationRules) -> None:
    others = {"b": gpus("b:0", "b:1"), "c": gpus("c:0", "c:1")} if rules is MEASURES else {"c": gpus("c:0")}
    wanted = {"measured": 4, **{job_id: len(held) for job_id, held in others.items()}}
    placement = place(UNEQUAL_NODES, others, wanted, rules)
    assert placement.gpus_by_job["measured"] == gpus("a:0", "a:1", "a:2", "a:3")


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param(WITHIN_A_NODE, gpus("d:0", "d:1", "d:2", "d:3"), id="a node is as bad"),
        pytest.param(MEASURES, gpus("b:0", "b:1", "d:0", "d:1"), id="a promise counts on several nodes"),
    ],
)
def test_a_measured_job_grows_where_it_is_unless_a_promise_counts_on_worse(
    rules: MigrationRules, expected: tuple[GpuId, ...]
) -> None:
    topology = Topology((*UNEQUAL_NODES.nodes, Node("d", 4)))
    current = {"other": gpus("c:0"), "held": gpus("a:0", "a:1", "a:2", "a:3"), "measured": gpus("d:0")}
    placement = place(topology, current, {"measured": 4, "other": 1, "held": 4}, rules)
    assert placement.gpus_by_job["measured"] == expected


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    taken=st.sets(st.integers(0, 29)),
    size=st.integers(1, 3),
    level=st.sampled_from([SOCKET, NODE, RACK, CLUSTER]),
)
def test_gpus_that_are_apart_are_connected_by_that_level_alone(
    sizes: list[int], taken: set[int], size: int, level: int
) -> None:
    nodes = tuple(Node(f"n{at}", num, sockets=1 + num % 2, rack=f"r{at % 2}") for at, num in enumerate(sizes))
    blocks = Blocks(Topology(nodes))
    free = blocks.every_position & ~sum(1 << at for at in taken if at < sum(sizes))
    found = blocks.apart(free, 1 << size, level)
    if found is None:
        pairs = combinations(blocks.members(free), 2) if size == 1 else ()
        assert all(blocks.level(1 << one | 1 << other) != level for one, other in pairs)
        return
    assert found & ~free == 0
    assert found.bit_count() == 1 << size
    assert blocks.level(found) == level


@pytest.mark.parametrize("seed", range(20))
def test_names_do_not_change_the_sum_that_chooses_a_block(seed: int) -> None:
    """0.1 + 0.2 + 0.3 is more than 0.6, and 0.3 + 0.2 + 0.1 is not: sums go by position, in every process."""
    one, two, three = (f"job-{seed}-{number}" for number in range(3))
    current = {one: gpus("a:0"), two: gpus("a:1"), three: gpus("a:2"), "alone": gpus("b:0")}
    costs = {one: 0.1, two: 0.2, three: 0.3, "alone": 0.6}
    placement = placed(TWO_NODES, current, {**dict.fromkeys(current, 1), "big": 4}, costs)
    assert placement.migrated == ("alone",)

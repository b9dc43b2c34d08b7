"""Jobs with several GPUs for each replica: their replicas lie on one node each, whatever else is there."""

from collections.abc import Mapping
from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elasticflow.shared.messages.gpus import GpuId, are_whole_gangs, largest_size_up_to
from elasticflow.shared.scheduling.jobs.scaling_curve import PlacementCurves
from elasticflow.shared.scheduling.placement.placement import MigrationBenefit, MigrationRules, Placement, place
from elasticflow.shared.state.topology import Node, Topology
from testbed.histories import gpus

NO_BENEFIT = MigrationBenefit(curves=PlacementCurves(None, {}), num_gpus=1, stay_s=0.0, stop_s=1.0)
TWO_NODES = Topology((Node("a", 2), Node("b", 2)))
Held = Mapping[str, tuple[GpuId, ...]]


def placed(
    topology: Topology,
    current: Held,
    wanted: Mapping[str, int],
    gangs: Mapping[str, int],
    claims: frozenset[str] = frozenset(),
    costs: Mapping[str, float] | None = None,
) -> Placement:
    """costs: of jobs that may migrate."""
    rules = MigrationRules(
        movable=frozenset(),
        migration_benefit=lambda job_id: NO_BENEFIT,
        claims=claims,
        displacement_cost=lambda job_id: (costs or {}).get(job_id, inf),
        gangs=gangs,
    )
    return place(topology, current, wanted, rules)


def test_a_replica_is_on_one_node_although_gpus_are_free_on_two() -> None:
    current = {"one": gpus("a:0"), "two": gpus("b:0")}
    wanted = {"one": 1, "two": 1, "gang": 2}
    moved = placed(TWO_NODES, current, wanted, {"gang": 2}, costs={"two": 1.0})
    assert moved.gpus_by_job["gang"] == gpus("b:0", "b:1")
    assert moved.gpus_by_job["two"] == gpus("a:1")
    assert moved.migrated == ("two",)
    stuck = placed(TWO_NODES, current, wanted, {"gang": 2})
    assert "gang" not in stuck.gpus_by_job, "both jobs must stay: it waits"
    assert placed(TWO_NODES, current, wanted, {}).gpus_by_job["gang"] == gpus("a:1", "b:1"), "other jobs get these"


def test_a_job_without_a_promise_makes_no_promised_job_move() -> None:
    current = {"one": gpus("a:0"), "two": gpus("b:0")}
    wanted, costs = {"one": 1, "two": 1, "gang": 2}, {"one": 1.0, "two": 1.0}
    promised = frozenset({"one", "two"})
    assert "gang" not in placed(TWO_NODES, current, wanted, {"gang": 2}, promised, costs).gpus_by_job
    with_claim = placed(TWO_NODES, current, wanted, {"gang": 2}, promised | {"gang"}, costs)
    assert are_whole_gangs([gpu.node_id for gpu in with_claim.gpus_by_job["gang"]], 2)
    assert with_claim.meets_claims


def test_a_smaller_replica_makes_room_for_a_larger_one_if_it_finds_another_place() -> None:
    """Else four GPUs stay idle on two nodes for as long as both small jobs run."""
    topology, costs = Topology((Node("a", 4), Node("b", 4))), {"one": 1.0, "two": 1.0}
    current, wanted = {"one": gpus("a:0", "a:1"), "two": gpus("b:0", "b:1")}, {"one": 2, "two": 2, "gang": 4}
    moved = placed(topology, current, wanted, {"one": 2, "two": 2, "gang": 4}, costs=costs)
    assert {job_id: len(held) for job_id, held in moved.gpus_by_job.items()} == wanted
    assert len(moved.migrated) == 1
    alike = placed(topology, current, {**wanted, "gang": 2}, {"one": 2, "two": 2, "gang": 2}, costs=costs)
    assert not alike.migrated
    no_other_place = Topology((Node("a", 4), Node("b", 3), Node("c", 1)))
    current["two"] = gpus("b:0", "b:1")
    stays = placed(no_other_place, current, wanted, {"one": 2, "two": 2, "gang": 4}, costs=costs)
    assert stays.gpus_by_job == current


def test_a_job_that_finds_no_further_replica_keeps_those_that_it_has() -> None:
    current = {"gang": gpus("a:0", "a:1"), "one": gpus("b:0"), "two": gpus("c:0")}
    topology = Topology((Node("a", 2), Node("b", 2), Node("c", 2)))
    placement = placed(topology, current, {"gang": 4, "one": 1, "two": 1}, {"gang": 2}, frozenset({"gang"}))
    assert placement.gpus_by_job["gang"] == gpus("a:0", "a:1")
    assert not placement.meets_claims, "another plan is asked for"
    free = placed(topology, {"gang": current["gang"], "one": current["one"]}, {"gang": 4, "one": 1}, {"gang": 2})
    assert free.gpus_by_job["gang"] == gpus("a:0", "a:1", "c:0", "c:1"), "two replicas on nodes apart"


def test_a_promised_replica_comes_before_the_block_of_another_promised_job() -> None:
    """The pair could have a whole node beside the single jobs; then the gang would wait for ever."""
    topology = Topology((Node("a", 2), Node("b", 2), Node("c", 2)))
    current = {"one": gpus("a:0"), "two": gpus("b:0"), "pair": gpus("c:0", "c:1")}
    wanted = {"one": 1, "two": 1, "pair": 2, "gang": 2}
    placement = placed(topology, current, wanted, {"gang": 2}, frozenset({"pair", "gang"}), {"pair": 1.0})
    assert placement.gpus_by_job["gang"] == gpus("c:0", "c:1")
    assert placement.gpus_by_job["pair"] == gpus("a:1", "b:1")


def test_a_job_that_gets_more_replicas_does_not_get_those_back_that_it_has_given_up() -> None:
    topology = Topology(tuple(Node(name, 2) for name in "abcd"))
    rules = MigrationRules(
        movable=frozenset(),
        migration_benefit=lambda job_id: NO_BENEFIT,
        given_up={"gang": gpus("a:0")},
        gangs={"gang": 2},
    )
    grown = place(topology, {"gang": gpus("b:0", "b:1")}, {"gang": 4}, rules)
    assert not {"a"} & {gpu.node_id for gpu in grown.gpus_by_job["gang"]}
    current = {"gang": gpus("b:0", "b:1"), "other": gpus("c:0", "c:1", "d:0", "d:1")}
    alone = place(topology, current, {"gang": 4, "other": 4}, rules)
    assert alone.gpus_by_job["gang"] == gpus("a:0", "a:1", "b:0", "b:1"), "rather these than none"


def test_a_job_that_has_lost_one_replica_of_four_holds_two_until_there_is_another_one() -> None:
    """Three replicas would divide no batch, and no curve has their speed."""
    topology = Topology(tuple(Node(name, 2) for name in "abcde"))
    current = {"gang": gpus("a:0", "a:1", "b:0", "b:1", "c:0", "c:1"), "one": gpus("d:0"), "two": gpus("e:0")}
    placement = placed(topology, current, {"gang": 8, "one": 1, "two": 1}, {"gang": 2}, frozenset({"gang"}))
    assert placement.gpus_by_job["gang"] == gpus("a:0", "a:1", "b:0", "b:1")
    assert not placement.meets_claims


def test_a_job_shrinks_to_whole_replicas() -> None:
    topology = Topology(tuple(Node(name, 2) for name in "abcd"))
    current = {"gang": gpus("a:0", "a:1", "b:0", "b:1", "c:0", "c:1", "d:0", "d:1")}
    placement = placed(topology, current, {"gang": 4}, {"gang": 2})
    assert are_whole_gangs([gpu.node_id for gpu in placement.gpus_by_job["gang"]], 2)
    assert set(placement.gpus_by_job["gang"]) <= set(current["gang"])


def test_a_pair_of_two_nodes_is_no_replica() -> None:
    """The GPUs that are left on nodes of three pair up to a block of two nodes."""
    topology = Topology((Node("a", 3), Node("b", 3)))
    wanted = {"first": 2, "second": 2, "third": 2}
    placement = placed(topology, {}, wanted, dict.fromkeys(wanted, 2), frozenset(wanted))
    assert len(placement.gpus_by_job) == 2
    assert not placement.meets_claims
    for held in placement.gpus_by_job.values():
        assert are_whole_gangs([gpu.node_id for gpu in held], 2)


@st.composite
def pools_in_use(draw: st.DrawFn) -> tuple[Topology, dict[str, tuple[GpuId, ...]], dict[str, int], dict[str, int]]:
    """Nodes of any size, jobs on some of their GPUs, gangs in whole replicas, and numbers that fit together."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    topology = Topology(tuple(Node(f"node-{number}", size) for number, size in enumerate(sizes)))
    free = {node.node_id: [GpuId(node.node_id, index) for index in range(node.num_gpus)] for node in topology.nodes}
    current, wanted, gangs = dict[str, tuple[GpuId, ...]](), dict[str, int](), dict[str, int]()
    num_left = topology.num_gpus
    for number in range(draw(st.integers(1, 10))):
        job_id, gang = f"job-{number}", draw(st.sampled_from([1, 1, 2, 4]))
        size = gang << draw(st.integers(0, 2))
        if size > num_left:
            continue
        num_left -= size
        wanted[job_id] = size
        if gang > 1:
            gangs[job_id] = gang
        held = list[GpuId]()
        for _ in range(draw(st.sampled_from([0, size // gang, 1]))):
            node_id = next((each for each in draw(st.permutations(sorted(free))) if len(free[each]) >= gang), None)
            if node_id is None:
                break
            held += free[node_id][:gang]
            free[node_id] = free[node_id][gang:]
        if held:
            current[job_id] = tuple(sorted(held))
    assume(bool(wanted))
    return topology, current, wanted, gangs


@given(pools_in_use(), st.data())
def test_replicas_are_whole_in_any_pool(
    pool: tuple[Topology, dict[str, tuple[GpuId, ...]], dict[str, int], dict[str, int]], data: st.DataObject
) -> None:
    topology, current, wanted, gangs = pool
    names = st.sampled_from(sorted(wanted))
    claims = frozenset(data.draw(st.lists(names, unique=True)))
    costs = {job_id: 1.0 for job_id in data.draw(st.lists(names, unique=True)) if not claims & gangs.keys() & {job_id}}
    placement = placed(topology, current, wanted, gangs, claims, costs)
    taken = [gpu for held in placement.gpus_by_job.values() for gpu in held]
    assert len(taken) == len(set(taken))
    for job_id, num_gpus in wanted.items():
        held = placement.gpus_by_job.get(job_id, ())
        assert are_whole_gangs([gpu.node_id for gpu in held], gangs.get(job_id, 1))
        assert len(held) == num_gpus or (job_id in gangs and len(held) < num_gpus)
        assert not len(held) & (len(held) - 1), "jobs hold powers of two"
        if current.get(job_id) and job_id in claims & gangs.keys():
            kept = largest_size_up_to(len(current[job_id]))
            assert len(held) >= min(kept, num_gpus), "it gives up no replica that it has, but for a power of two"


@given(pools_in_use())
def test_all_replicas_are_placed_if_nodes_hold_whole_ones_and_all_other_jobs_may_move(
    pool: tuple[Topology, dict[str, tuple[GpuId, ...]], dict[str, int], dict[str, int]],
) -> None:
    """Jobs with gangs stay where they are, as scripts do; replicas of one size fit by their number."""
    topology, current, wanted, gangs = pool
    gangs = dict.fromkeys(gangs, 2)
    wanted = {job_id: num_gpus for job_id, num_gpus in wanted.items() if job_id not in gangs or num_gpus > 1}
    most = sum(node.num_gpus // 2 * 2 for node in topology.nodes)
    counted = sum(max(num_gpus, 2) for num_gpus in wanted.values() if num_gpus > 1)
    current = {job_id: held for job_id, held in current.items() if job_id not in gangs}
    placement = placed(topology, current, wanted, gangs, frozenset(wanted), dict.fromkeys(wanted, 1.0))
    if counted <= most:
        assert {job_id: len(held) for job_id, held in placement.gpus_by_job.items()} == wanted


@pytest.mark.parametrize("gang", [2, 4])
def test_a_node_of_a_socket_each_holds_replicas(gang: int) -> None:
    topology = Topology((Node("a", 4, sockets=2), Node("b", 3, sockets=2)))
    placement = placed(topology, {}, {"gang": 4}, {"gang": gang})
    assert {gpu.node_id for gpu in placement.gpus_by_job["gang"]} == {"a"}

"""Buddy blocks on the topology tree, fragments where there is none, and moves where they pay."""

import pytest

from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.scheduling.jobs.scaling_curve import UNMEASURED_SAVING, PlacementCurves
from elasticflow.shared.scheduling.placement.buddy_blocks import Blocks
from elasticflow.shared.scheduling.placement.placement import (
    MigrationBenefit,
    MigrationRules,
    place,
)
from elasticflow.shared.state.topology import CLUSTER, NODE, RACK, SOCKET, Node, Topology


def gpus(node_id: str, *indices: int) -> tuple[GpuId, ...]:
    return tuple(GpuId(node_id, index) for index in indices)


UNUSED = MigrationBenefit(curves=PlacementCurves(None, {}), num_gpus=1, stay_s=0.0, stop_s=0.0)
TWO_OF_FOUR = Topology((Node("a", 4), Node("b", 4)))


def test_the_tree_is_the_same_for_nodes_in_any_order() -> None:
    nodes = (Node("b", 4, sockets=2, rack="r1"), Node("a", 2, rack="r2"), Node("c", 1, rack="r1"))
    topology = Topology(nodes)
    assert topology == Topology(nodes[::-1])
    assert topology.gpus == gpus("b", 0, 1, 2, 3) + gpus("c", 0) + gpus("a", 0, 1)
    assert topology.tree.level == CLUSTER
    assert len(topology.tree.children) == 2
    with pytest.raises(ValueError, match="same id"):
        Topology((Node("a", 1), Node("a", 2)))


def test_the_smallest_free_block_is_taken() -> None:
    placement = place(TWO_OF_FOUR, {"one": gpus("b", 0)}, {"one": 1, "two": 2, "other": 1})
    assert placement.gpus_by_job == {"one": gpus("b", 0), "two": gpus("b", 2, 3), "other": gpus("b", 1)}
    assert placement.migrated == ()


def test_growing_takes_the_buddy_and_shrinking_stays_inside() -> None:
    grown = place(TWO_OF_FOUR, {"g": gpus("a", 2, 3), "s": gpus("b", 0, 1, 2, 3)}, {"g": 4, "s": 1})
    assert grown.gpus_by_job["g"] == gpus("a", 0, 1, 2, 3)
    assert grown.gpus_by_job["s"] == gpus("b", 0)
    assert grown.migrated == ()


def test_growing_goes_elsewhere_rather_than_push_a_neighbour_away() -> None:
    placement = place(TWO_OF_FOUR, {"g": gpus("a", 2, 3), "n": gpus("a", 0)}, {"g": 4, "n": 1})
    assert placement.gpus_by_job == {"g": gpus("b", 0, 1, 2, 3), "n": gpus("a", 0)}


def migration_rules(num_gpus_by_job: dict[str, int], *movable: str, stay_s: float, stop_s: float) -> MigrationRules:
    """Jobs that were not profiled by level."""
    unmeasured = PlacementCurves(None, {})

    def migration_benefit(job_id: str) -> MigrationBenefit:
        return MigrationBenefit(curves=unmeasured, num_gpus=num_gpus_by_job[job_id], stay_s=stay_s, stop_s=stop_s)

    return MigrationRules(movable=set(movable), migration_benefit=migration_benefit)


FRAGMENTED = {"one": gpus("a", 0), "two": gpus("b", 0, 1)}
CROWDED = {"one": 1, "two": 2, "new": 4}


def test_where_nobody_may_move_a_job_gets_pieces_the_largest_first() -> None:
    placement = place(TWO_OF_FOUR, FRAGMENTED, CROWDED)
    assert placement.migrated == ()
    assert placement.gpus_by_job == FRAGMENTED | {"new": gpus("a", 2, 3) + gpus("b", 2, 3)}


def test_pieces_lie_as_close_together_as_they_can_and_leave_the_most_room_elsewhere() -> None:
    topology = Topology(
        tuple(Node(name, 8, rack=rack) for name, rack in [("a", "x"), ("b", "x"), ("c", "y"), ("d", "y")])
    )
    current = {
        "a": gpus("a", 0, 1, 2, 3) + gpus("a", 4),  # 2 + 1 left
        "b": gpus("b", 0) + gpus("b", 4),  # 2 + 1 and 2 + 1 left
        "c": gpus("c", 0) + gpus("c", 4),
        "d": gpus("d", 0, 4, 6),  # 2 + 1 and 1 + 1 left
    }
    occupied = {f"{job_id}{index}": (gpu,) for job_id, held in current.items() for index, gpu in enumerate(held)}
    wanted = dict.fromkeys(occupied, 1) | {"new": 4}
    placed = place(topology, occupied, wanted).gpus_by_job["new"]
    assert placed == gpus("d", 1, 2, 3, 5)  # the fullest node that has four, its pair first


@pytest.mark.parametrize(("stop_s", "moves"), [(39.0, True), (41.0, False)])
def test_a_job_moves_to_make_room_only_if_it_may_and_if_that_pays(stop_s: float, moves: bool) -> None:
    stay_s = 10.0 / UNMEASURED_SAVING  # a block saves the arriving_job 10 s on 4 GPUs
    placement = place(TWO_OF_FOUR, FRAGMENTED, CROWDED, migration_rules(CROWDED, "one", stay_s=stay_s, stop_s=stop_s))
    if moves:
        assert placement.migrated == ("one",)
        assert placement.gpus_by_job == {
            "one": gpus("b", 2),
            "two": gpus("b", 0, 1),
            "new": gpus("a", 0, 1, 2, 3),
        }
    else:
        assert placement.migrated == ()


def test_of_several_that_may_move_the_fewest_gpus_do() -> None:
    placement = place(TWO_OF_FOUR, FRAGMENTED, CROWDED, migration_rules(CROWDED, "one", "two", stay_s=1e6, stop_s=1.0))
    assert placement.migrated == ("one",)


def test_nobody_moves_where_no_place_as_good_is_free() -> None:
    """Four GPUs are free, but no other pair is free for the job that would migrate."""
    current = {"pair": gpus("a", 0, 1), "x": gpus("b", 0), "y": gpus("b", 2)}
    wanted = {"pair": 2, "x": 1, "y": 1, "new": 4}
    assert place(TWO_OF_FOUR, current, wanted, migration_rules(wanted, "pair", stay_s=1e6, stop_s=1.0)).migrated == ()
    both = place(TWO_OF_FOUR, current, wanted, migration_rules(wanted, "x", "y", stay_s=1e6, stop_s=1.0))
    assert both.migrated == ("x", "y")
    assert both.gpus_by_job["new"] == gpus("b", 0, 1, 2, 3)


def test_nobody_makes_room_for_another_at_the_price_of_a_slower_place() -> None:
    """The pair sits on one socket; the only other free pair spans two."""
    topology = Topology((Node("a", 6, sockets=2), Node("b", 2, sockets=2)))
    current = {"pair": gpus("a", 0, 1), "rest": gpus("a", 2)}
    wanted = {"pair": 2, "rest": 1, "new": 4}
    placement = place(topology, current, wanted, migration_rules(wanted, "pair", stay_s=1e6, stop_s=1.0))
    assert placement.migrated == ()
    assert placement.gpus_by_job["new"] == gpus("a", 3, 4) + gpus("b", 0, 1)


@pytest.mark.parametrize(
    ("movable", "stop_s", "placed"),
    [
        (("far",), 1.0, gpus("a", 0, 1)),
        (("far",), 1e6, gpus("a", 0) + gpus("b", 3)),
        ((), 1.0, gpus("a", 0) + gpus("b", 3)),
    ],
)
def test_a_job_in_pieces_moves_together_if_it_may_and_if_that_pays(
    movable: tuple[str, ...], stop_s: float, placed: tuple[GpuId, ...]
) -> None:
    current = {"far": gpus("a", 0) + gpus("b", 3), "rest": gpus("a", 2)}
    wanted = {"far": 2, "rest": 1}
    allowed = migration_rules(wanted, *movable, stay_s=1000.0, stop_s=stop_s)
    assert place(TWO_OF_FOUR, current, wanted, allowed).gpus_by_job["far"] == placed


def test_racks_nest_to_any_depth() -> None:
    paths = ["hall/row-1/rack-1", "hall/row-1/rack-2", "hall/row-2/rack-3", "hall/row-2/rack-3"]
    topology = Topology(tuple(Node(f"n{n}", 2, sockets=2, rack=path) for n, path in enumerate(paths)))
    blocks = Blocks(topology)

    def level(*names: str) -> int:
        return blocks.level(blocks.positions(gpu for gpu in topology.gpus if gpu.node_id in names))

    assert level("n0") == NODE
    assert (level("n2", "n3"), level("n0", "n1"), level("n1", "n2")) == (RACK, RACK + 1, RACK + 2)
    assert blocks.level(blocks.positions(gpus("n0", 0))) < SOCKET
    placed = place(topology, {}, {"pair": 4, "other": 4}).gpus_by_job
    assert {gpu.node_id for gpu in placed["other"]} == {"n2", "n3"}  # the first, and within one rack
    assert {gpu.node_id for gpu in placed["pair"]} == {"n0", "n1"}


def test_a_node_without_a_rack_stands_beside_the_racks() -> None:
    topology = Topology((Node("a", 1), Node("b", 1, rack="x"), Node("c", 1, rack="x"), Node("d", 1)))
    blocks = Blocks(topology)
    assert blocks.level(blocks.positions(gpus("b", 0) + gpus("c", 0))) == RACK
    assert blocks.level(blocks.positions(gpus("a", 0) + gpus("d", 0))) == CLUSTER


def test_a_pair_prefers_the_fastest_link() -> None:
    odd_sockets = Topology((Node("a", 6, sockets=2),))  # 3 + 3: the third GPUs pair across sockets
    placement = place(odd_sockets, {}, {"x": 2, "y": 2, "z": 2})
    assert placement.gpus_by_job == {"x": gpus("a", 0, 1), "y": gpus("a", 3, 4), "z": gpus("a", 2, 5)}


@pytest.mark.parametrize(
    ("topology", "wanted"),
    [
        (Topology(tuple(Node(f"n{n}", 4) for n in range(3))), {"x": 8, "y": 4}),
        (Topology((Node("a", 6), Node("b", 6))), {"x": 8, "y": 4}),
        (Topology((Node("a", 6),)), {"x": 4, "y": 2}),
        (Topology((Node("a", 3),)), {"x": 2, "y": 1}),
        (Topology((Node("a", 3), Node("b", 3), Node("c", 3))), {"x": 8, "y": 1}),
    ],
)
def test_clusters_of_any_shape_are_filled_to_the_last_gpu(topology: Topology, wanted: dict[str, int]) -> None:
    placed = place(topology, {}, wanted).gpus_by_job
    assert {job_id: len(set(held)) for job_id, held in placed.items()} == wanted
    assert sorted(gpu for held in placed.values() for gpu in held) == sorted(topology.gpus)


def test_a_job_whose_node_is_gone_is_placed_again() -> None:
    left = Topology((Node("b", 4),))
    placement = place(left, {"lost": gpus("a", 0, 1), "stays": gpus("b", 0, 1)}, {"lost": 2, "stays": 2})
    assert placement.gpus_by_job == {"lost": gpus("b", 2, 3), "stays": gpus("b", 0, 1)}
    assert placement.migrated == ()


def test_more_than_exist_is_a_broken_invariant() -> None:
    with pytest.raises(AssertionError, match="than there are"):
        place(TWO_OF_FOUR, {}, {"x": 8, "y": 1})
    with pytest.raises(AssertionError, match="power of two"):
        place(TWO_OF_FOUR, {}, {"x": 3})


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({}, gpus("a", 2, 3)),
        ({"x": gpus("b", 0, 1, 2, 3), "y": gpus("a", 3)}, gpus("a", 1, 2)),
        ({"x": gpus("b", 0, 1, 2, 3), "y": gpus("a", 2, 3)}, gpus("a", 0, 1)),
    ],
    ids=["another block", "fragments of what remains", "too few others are free"],
)
def test_a_job_gets_what_it_has_given_up_only_if_too_few_others_are_free(
    others: dict[str, tuple[GpuId, ...]], expected: tuple[GpuId, ...]
) -> None:
    wanted = {"j": 2, **{other: len(held) for other, held in others.items()}}
    current = {"j": gpus("a", 1), **others}
    rules = MigrationRules(movable=frozenset(), migration_benefit=lambda _: UNUSED, given_up={"j": gpus("a", 0)})
    assert place(TWO_OF_FOUR, current, wanted, rules).gpus_by_job["j"] == expected
    assert place(TWO_OF_FOUR, current, wanted).gpus_by_job["j"] == gpus("a", 0, 1), "around the one that it has"

"""Buddy blocks on the topology tree."""

import pytest

from shared.messages.cluster import GpuId
from shared.scheduling.buddy import place
from shared.scheduling.topology import Level, Node, Topology


def gpus(node_id: str, *indices: int) -> tuple[GpuId, ...]:
    return tuple(GpuId(node_id, index) for index in indices)


TWO_OF_FOUR = Topology((Node("a", 4), Node("b", 4)))


def test_the_tree_is_the_same_for_nodes_in_any_order() -> None:
    nodes = (Node("b", 4, sockets=2, rack="r1"), Node("a", 2, rack="r2"), Node("c", 1, rack="r1"))
    topology = Topology(nodes)
    assert topology == Topology(nodes[::-1])
    assert topology.gpus == gpus("b", 0, 1, 2, 3) + gpus("c", 0) + gpus("a", 0, 1)
    assert topology.tree.level is Level.CLUSTER
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


def test_the_smallest_job_moves_when_fragmented() -> None:
    current = {"one": gpus("a", 0), "two": gpus("b", 0, 1)}
    placement = place(TWO_OF_FOUR, current, {"one": 1, "two": 2, "new": 4})
    assert placement.migrated == ("one",)
    assert placement.gpus_by_job == {
        "one": gpus("b", 2),
        "two": gpus("b", 0, 1),
        "new": gpus("a", 0, 1, 2, 3),
    }


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

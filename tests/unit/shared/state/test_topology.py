"""What connects the GPUs of a job, and the buddy blocks on which a promise counts."""

import pytest

from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.state.topology import CLUSTER, GPU, NODE, RACK, SOCKET, Node, Topology
from testbed.histories import gpus

RACKS = Topology(
    (
        Node("a", 4, sockets=2, rack="hall/one"),
        Node("b", 4, sockets=2, rack="hall/one"),
        Node("c", 4, sockets=2, rack="hall/two"),
        Node("d", 4, sockets=2, rack="other/three"),
    )
)


@pytest.mark.parametrize(
    ("names", "level"),
    [
        (("a:0",), GPU),
        (("a:0", "a:1"), SOCKET),
        (("a:1", "a:2"), NODE),
        (("a:0", "b:0"), RACK),
        (("a:0", "c:0"), RACK + 1),
        (("a:0", "d:0"), CLUSTER),
        (("a:0", "gone:0"), CLUSTER),
    ],
)
def test_the_level_of_gpus_is_the_lowest_part_of_the_tree_that_has_them(names: tuple[str, ...], level: int) -> None:
    assert RACKS.level_of(gpus(*names)) == level


@pytest.mark.parametrize(
    ("num_gpus", "sockets", "socket_by_gpu"), [(5, 2, (0, 0, 0, 1, 1)), (4, 1, (0, 0, 0, 0)), (1, 2, (0,))]
)
def test_the_first_sockets_have_one_gpu_more(num_gpus: int, sockets: int, socket_by_gpu: tuple[int, ...]) -> None:
    node = Node("a", num_gpus, sockets=sockets)
    assert tuple(map(node.socket_of, range(num_gpus))) == socket_by_gpu
    topology = Topology((node, Node("b", 1)))
    on_first = tuple(GpuId("a", index) for index, socket in enumerate(socket_by_gpu) if not socket)
    assert topology.level_of(on_first) == (SOCKET if len(on_first) > 1 else GPU)


@pytest.mark.parametrize(
    ("nodes", "levels"),
    [
        ((Node("a", 4), Node("b", 4)), (GPU, SOCKET, SOCKET, CLUSTER)),
        ((Node("a", 3), Node("b", 3)), (GPU, CLUSTER, CLUSTER)),  # the third GPUs of both nodes pair up
        ((Node("a", 6), Node("b", 2)), (GPU, SOCKET, CLUSTER, CLUSTER)),
        ((Node("a", 1), Node("b", 1)), (GPU, CLUSTER)),
        (RACKS.nodes, (GPU, SOCKET, NODE, CLUSTER, CLUSTER)),
    ],
)
def test_a_promise_counts_on_the_worst_block_of_each_size(nodes: tuple[Node, ...], levels: tuple[int, ...]) -> None:
    assert Topology(nodes).block_levels == levels


def test_places_differ_only_where_a_block_is_better_than_other_gpus() -> None:
    assert Topology((Node("a", 4), Node("b", 4))).has_distances
    assert not Topology((Node("a", 8),)).has_distances
    assert not Topology((Node("a", 1), Node("b", 1))).has_distances
    assert not Topology(()).has_distances

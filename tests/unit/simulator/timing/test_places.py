"""Jobs on more nodes than their GPUs need are slower."""

import pytest

from elasticflow.shared.messages.gpus import GpuId
from elasticflow.simulator.timing.training_time import PUBLISHED_SLOWDOWN, Places

PLACES = Places(slowdown=PUBLISHED_SLOWDOWN, gpus_per_node=8, num_nodes=4)


def on_nodes(num_gpus: int, num_nodes: int) -> list[GpuId]:
    return [GpuId(f"node-{number % num_nodes}", number // num_nodes) for number in range(num_gpus)]


@pytest.mark.parametrize(
    ("num_gpus", "num_nodes", "slowdown"),
    [
        (1, 1, 1.0),
        (8, 1, 1.0),
        (8, 8, 2.17),
        (8, 2, 1.39),
        (16, 2, 1.0),
        (16, 4, 1.39),
        (16, 16, 2.17),
    ],
)
def test_each_doubling_of_the_nodes_adds_a_third_of_the_published_slowdown(
    num_gpus: int, num_nodes: int, slowdown: float
) -> None:
    assert 1 / PLACES.factor(on_nodes(num_gpus, num_nodes)) == pytest.approx(slowdown)


def test_the_speeds_on_several_nodes_are_those_of_a_block_where_one_node_is_too_small() -> None:
    apart = PLACES.apart({1: 1.0, 2: 2.0, 8: 6.0, 16: 9.0})
    assert apart == pytest.approx({1: 1.0, 2: 2.0 / 1.39, 8: 6.0 / 1.78, 16: 9.0})

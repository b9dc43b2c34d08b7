"""A batch on its device keeps the types that train() expects. The device "meta" stands for a GPU."""

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from elasticflow.services.executor.worker.data.read_ahead import objects_moved, tensors_in, tensors_moved

ELSEWHERE = torch.device("meta")


class Pair(NamedTuple):
    points: torch.Tensor
    names: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    points: torch.Tensor
    pair: Pair
    weight: float = 1.0


class Encoding(UserDict[str, torch.Tensor]):
    """Like that of a tokenizer: a mapping that moves itself."""

    def to(self, device: torch.device) -> "Encoding":
        return Encoding({name: tensor.to(device) for name, tensor in self.data.items()})


@dataclass
class Graph:
    """Like a batch of graphs: a dataclass that moves itself."""

    edges: torch.Tensor

    def to(self, device: torch.device) -> "Graph":
        return Graph(self.edges.to(device))


def points() -> torch.Tensor:
    return torch.ones(2)


@pytest.mark.parametrize(
    "batch",
    [
        points(),
        (points(), points()),
        [points(), 3],
        Pair(points(), ("a",)),
        {"points": points(), "name": "a"},
        OrderedDict(points=points()),
        Sample(points(), Pair(points(), ("a",))),
        {"nested": [Sample(points(), Pair(points(), ()))]},
        Encoding({"ids": points()}),
        Graph(points()),
        [Graph(points()), points()],
    ],
)
def test_all_tensors_move_and_all_types_stay(batch: Any) -> None:
    before = shape(batch)
    moved = objects_moved(tensors_moved(batch, ELSEWHERE), ELSEWHERE)
    assert shape(moved) == shape(batch, device="meta")
    assert shape(batch) == before, "the batch itself is not changed"


def shape(batch: Any, device: str = "cpu") -> Any:
    """Its types, and the device of each tensor. device: to report for tensors on the CPU."""
    match batch:
        case torch.Tensor():
            return device if batch.device.type == "cpu" else batch.device.type
        case Sample():
            return Sample, shape(batch.points, device), shape(batch.pair, device), batch.weight
        case Graph():
            return Graph, shape(batch.edges, device)
        case UserDict() | dict():
            return type(batch), [(key, shape(value, device)) for key, value in batch.items()]
        case tuple() | list():
            return type(batch), [shape(value, device) for value in batch]
        case _:
            return batch


def test_tensors_of_containers_and_dataclasses_are_found_once() -> None:
    batch = (points(), {"sample": Sample(points(), Pair(points(), ()))}, Graph(points()))
    assert len(list(tensors_in(batch))) == 3, "a graph copies its own in the stream that uses it"

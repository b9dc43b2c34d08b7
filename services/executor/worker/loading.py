"""Reads what virtual nodes train on: the one place where users' data sets are asked for samples."""

import random  # noqa: TID251 - users' code may draw from it, so it is seeded like the others
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from services.executor.worker.data_order import Part
from services.executor.worker.virtual_nodes import Phase, seed_of


def seed_generators(seed: int) -> None:
    """All generators that users draw from. (torch.manual_seed does the same, for more kinds of devices and a hundred
    times as long.)"""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed)
    random.seed(seed)


class Reader(Protocol):
    """Of parts, wherever it is called: what it returns depends on nothing but the part."""

    def __call__(self, part: Part) -> Any: ...

    def turn(self, part: Part) -> int:
        """Which of several processes reads it, counted round and round."""
        ...


class SampleReader:
    """A map-style data set by parts instead of samples. What is drawn at random while a part is read, to augment
    it, belongs to the part and not to the process that reads it."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], seed: int) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed

    def __call__(self, part: Part) -> Any:
        seed_generators(
            seed_of(
                self._seed,
                Phase.LOAD,
                iteration=part.iteration,
                virtual_node=part.virtual_node,
                micro_batch=part.micro_batch,
            )
        )
        if hasattr(self._dataset, "__getitems__"):  # as torch's own fetcher does
            return self._collate(self._dataset.__getitems__(list(part.samples)))
        return self._collate([self._dataset[index] for index in part.samples])

    def turn(self, part: Part) -> int:
        """Spreads the parts of one step over processes, and so those of many steps."""
        return part.iteration + part.virtual_node + part.micro_batch

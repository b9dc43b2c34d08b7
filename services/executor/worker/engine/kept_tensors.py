"""Tensors that user code makes while it trains, and keeps from step to step: the best weights, a list of losses.

They are no state of the job (`PlainState`), and no process has them that joins or starts anew. Those that were there
before the first step are made again by the code that made them.
"""

import re
import weakref
from collections.abc import Callable

import torch

from elasticflow.services.executor.worker.engine.undeclared_state import is_tensor, items_of_user

EVERY = 20  # steps between two looks; each compares the beginnings of two steps
_MOST_ITEMS = 1_000  # of a look: a data set in a list has more
_NAME = re.compile(r"(self\.)?\w+")


class KeptTensors:
    """job: the object of the user's class, or a script. declared: memory of tensors that are state."""

    def __init__(self, job: object, declared: Callable[[], set[int]]) -> None:
        self._job, self._declared = job, declared
        self._first: dict[int, weakref.ref[torch.Tensor]] | None = None
        self._seen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._told = set[str]()

    def newly_kept(self, iteration: int) -> list[str]:
        """The names of variables and attributes that hold some, each once. Call it before each step."""
        if self._first is not None and iteration % EVERY > 1:
            return []
        declared = self._declared()
        tensors = [(name, each) for name, each in items_of_user(self._job, _MOST_ITEMS) if is_tensor(each)]
        there = [(name, each) for name, each in tensors if each.untyped_storage()._cdata not in declared]
        references = {id(each): weakref.ref(each) for _, each in there}
        if self._first is None:
            self._first = references
            return []
        kept = [name for name, each in there if _has(self._seen, each) and not _has(self._first, each)]
        self._seen = references
        found = dict.fromkeys(match[0] for name in kept if (match := _NAME.match(name)) is not None)
        names = [name for name in found if name not in self._told]
        self._told.update(names)
        return names


def _has(references: dict[int, weakref.ref[torch.Tensor]], tensor: torch.Tensor) -> bool:
    """Whether it is the same object: a later one may have its id."""
    reference = references.get(id(tensor))
    return reference is not None and reference() is tensor

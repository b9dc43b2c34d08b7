"""Tensors that user code makes while it trains, and keeps from step to step: the best weights, a list of losses.

They are no state of the job (`PlainState`), and no process has them that joins or starts anew. Those that were there
before the first step are made again by the code that made them.
"""

import re
import weakref
from collections.abc import Callable, Set

import torch

from elasticflow.services.executor.worker.engine.live_variables import may_be_read
from elasticflow.services.executor.worker.engine.undeclared_state import (
    HeldObjects,
    RunsScript,
    is_tensor,
    items_of_user,
)
from elasticflow.services.executor.worker.process.users_code import is_users_frame

EVERY = 23  # steps between two looks; each compares the beginnings of two steps. Prime: not always those of an epoch
_MOST_ITEMS = 1_000  # of a look: a data set in a list has more
_NAME = re.compile(r"[\w.]+")


class KeptTensors:
    """job: the object of the user's class, or a script. declared: memory of tensors that are state. known: ids of
    objects that have a state. held: as of `UndeclaredState`."""

    def __init__(
        self,
        job: object,
        declared: Callable[[], set[int]],
        known: Set[int] = frozenset(),
        held: HeldObjects = tuple,
    ) -> None:
        self._job, self._declared, self._known, self._held = job, declared, known, held
        self._first: dict[int, weakref.ref[torch.Tensor]] | None = None
        self._seen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._told = set[str]()

    def newly_kept(self, iteration: int) -> list[str]:
        """The names of variables and attributes that hold some, each once. Call it before each step."""
        if self._first is not None and iteration % EVERY > 1:
            return []
        declared = self._declared()
        items = items_of_user(self._job, _MOST_ITEMS, self._known, self._held)
        tensors = [(name, each) for name, each in items if is_tensor(each)]
        there = [(name, each) for name, each in tensors if each.untyped_storage()._cdata not in declared]
        references = {id(each): weakref.ref(each) for _, each in there}
        if self._first is None:
            self._first = references
            return []
        kept = [name for name, each in there if _has(self._seen, each) and not _has(self._first, each)]
        self._seen = references
        found = dict.fromkeys(match[0] for name in kept if (match := _NAME.match(name)) is not None)
        names = [name for name in found if name not in self._told and self._is_missed(name)]
        self._told.update(names)
        return names

    def _is_missed(self, name: str) -> bool:
        """Whether a script may still read it: its last evaluation leaves tensors in variables, too."""
        if not isinstance(self._job, RunsScript):
            return True
        root = name.partition(".")[0]
        frames = [each for each in self._job.script_frames() if is_users_frame(each) and root in each.f_locals]
        return not frames or any(may_be_read(each, root) for each in frames)


def _has(references: dict[int, weakref.ref[torch.Tensor]], tensor: torch.Tensor) -> bool:
    """Whether it is the same object: a later one may have its id."""
    reference = references.get(id(tensor))
    return reference is not None and reference() is tensor

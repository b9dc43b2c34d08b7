"""Tensors that user code makes or changes while it trains, and keeps from step to step: the best weights, a list of
losses, a loss for each sample.

They are no state of the job (`PlainState`), and no process has them that joins or starts anew. Those that were there
before the first step are made again by the code that made them, but without what steps have written there.
"""

import dis
import re
import weakref
from collections.abc import Callable, Iterator, Set
from functools import lru_cache
from types import CodeType, FrameType

import torch

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
        self._versions: dict[int, int] = {}  # torch's counts of changes in place, by id
        self._last_look = -1  # its iteration
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
        follows, self._last_look = iteration == self._last_look + 1, iteration
        before, self._versions = self._versions, {id(each): each._version for _, each in there}
        if self._first is None:
            self._first = self._seen = references
            return []
        kept = [
            name
            for name, each in there
            if _has(self._seen, each)
            and (not _has(self._first, each) or (follows and before.get(id(each)) != each._version))
        ]
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


# --- live variables -----------------------------------------------------------------------------------
# Which variables of a paused function it may still read, before it gives them another value.
#
# A loop that evaluates the model leaves its last outputs behind, in variables that it makes anew each time: nobody
# misses them. Read from the bytecode; where that does not tell, a variable counts as read.

_ENDS = frozenset(
    {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD"}
    | {"JUMP_BACKWARD_NO_INTERRUPT"}
)  # behind which the next instruction does not follow
_WRITES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "DELETE_FAST", "DELETE_NAME", "DELETE_GLOBAL")


def may_be_read(frame: FrameType, name: str) -> bool:
    """Whether the function may read the variable when it goes on."""
    code = frame.f_code
    is_local = name in code.co_varnames if code.co_flags & _OPTIMIZED else frame.f_locals is frame.f_globals
    if not is_local or name in code.co_cellvars or any(_mentions(each, name) for each in _inner(code)):
        return True
    return name in _read_behind(code, frame.f_lasti)


_OPTIMIZED = 1  # of functions, whose variables are not in a dict


def _inner(code: CodeType) -> Iterator[CodeType]:
    """Functions and classes that it makes."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _inner(each)


def _mentions(code: CodeType, name: str) -> bool:
    return name in code.co_names or name in code.co_freevars


@lru_cache(maxsize=64)
def _read_behind(code: CodeType, offset: int) -> frozenset[str]:
    """The names that are read behind the instruction at this offset, on some path, before they are written."""
    instructions = list(dis.get_instructions(code))
    at = {each.offset: index for index, each in enumerate(instructions)}
    follow = [_successors(instructions, index, at) for index in range(len(instructions))]
    for start, end, target in _handlers(code):
        if instructions[at[target] + 1].opname == "WITH_EXCEPT_START":
            continue  # a context that hides errors is rare
        for index, each in enumerate(instructions):
            if start <= each.offset < end:
                follow[index].append(at[target])
    live = [frozenset[str]()] * len(instructions)
    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(instructions))):
            read, written = _uses(instructions[index])
            now = read | (frozenset[str]().union(*(live[each] for each in follow[index])) - written)
            if now != live[index]:
                live[index], changed = now, True
    present = max(index for index, each in enumerate(instructions) if each.offset <= offset)  # it has a cache behind it
    return frozenset[str]().union(*(live[each] for each in follow[present]))


def _successors(instructions: list[dis.Instruction], index: int, at: dict[int, int]) -> list[int]:
    each = instructions[index]
    jumps = [at[each.argval]] if each.opcode in dis.hasjrel else []
    falls = index + 1 < len(instructions) and each.opname not in _ENDS
    return [*jumps, index + 1] if falls else jumps


def _handlers(code: CodeType) -> Iterator[tuple[int, int, int]]:
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        yield entry.start, entry.end, entry.target


def _uses(instruction: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """The names that it reads, and those that it writes."""
    name, value = instruction.opname, instruction.argval
    if isinstance(value, tuple):  # two instructions in one
        is_first_read = not name.startswith("STORE")
        reads = value if is_first_read else value[1:] if "LOAD" in name else ()
        writes = () if is_first_read else value if "LOAD" not in name else value[:1]
        return frozenset(map(str, reads)), frozenset(map(str, writes))
    if not isinstance(value, str):
        return frozenset(), frozenset()
    return (frozenset(), frozenset({value})) if name in _WRITES else (frozenset({value}), frozenset())

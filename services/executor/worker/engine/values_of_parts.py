"""What user code takes from one part of a batch as if that were the whole: counts of samples, losses, and other
values that depend on it.

The pool may choose the number of parts, so such values would depend on the pool. The first steps of a process are
watched, and the job's history names them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.process.compiled_models import has_compiled

_NUM_STEPS = 3  # of a process, in which it is watched
_DIVIDED = {each: signature(each) for each in (functional.cross_entropy, functional.nll_loss)}
_SUMMED = {
    getattr(functional, name)
    for name in (
        *(
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
            "cross_entropy",
            "nll_loss",
            "kl_div",
            "huber_loss",
        ),
        *("mse_loss", "l1_loss", "smooth_l1_loss", "gaussian_nll_loss", "poisson_nll_loss", "soft_margin_loss"),
    )
}


class CountsOfParts:
    """Finds numbers that grow by the samples of a part, or a multiple of them, in each step: a step has more. Parts of
    unequal sizes change them in unequal ways, which is reported as such."""

    def __init__(self, virtual_nodes: VirtualNodes, read: Callable[[], Mapping[str, Any]]) -> None:
        sizes = virtual_nodes.part_sizes
        self._size = sizes[0] if len(sizes) > 1 and len(set(sizes)) == 1 else 1
        self._read = read
        self._last: Mapping[str, int] = {}
        self._grown: list[Mapping[str, int]] = []  # by how much, in each step

    def step_ended(self) -> Sequence[str]:
        """Names of such numbers, once."""
        if self._size == 1 or len(self._grown) == _NUM_STEPS:
            return ()
        now = {name: value for name, value in self._read().items() if type(value) is int}
        self._grown.append({name: now[name] - self._last[name] for name in now.keys() & self._last.keys()})
        self._last = now
        if len(self._grown) < _NUM_STEPS:
            return ()
        first, *others = self._grown[1:]  # the first step has nothing before it
        counts = (name for name, by in first.items() if by > 0 and by % self._size == 0)
        return sorted(name for name in counts if all(each.get(name) == first[name] for each in others))


class DependentValues:
    """Finds variables of a script that have another value for each part of a batch, where its one loop computes several
    parts. Only the last pass has the effect of a step, so those before it are compared, which takes three parts.

    note: gets the values of two passes that differ.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, Any]],
        note: Callable[[Mapping[str, Any], Mapping[str, Any]], None],
    ) -> None:
        self._left = _NUM_STEPS
        self._read, self._note = read, note
        self._first: Mapping[str, Any] | None = None  # of this step

    def pass_ended(self, *, is_last: bool) -> None:
        """A pass through the loop has ended; is_last: of its step."""
        if not self._left:
            return
        if is_last:
            self._left, self._first = self._left - 1, None
            return
        now = self._read()
        self._first = self._first or now
        if now != self._first:
            self._note(self._first, now)


class FoundLosses(NamedTuple):
    """divided: by the weights, or by the labels that count, of one part only. summed: over the samples of one part."""

    divided: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()


class PartialLosses:
    """Finds losses that torch divides by what one part has, or adds up over it.

    Not in jobs that compile, as the first step shows: torch would compile again for the steps without the watch.
    """

    def __init__(self, virtual_nodes: VirtualNodes) -> None:
        self._left = 1 + _NUM_STEPS if len(virtual_nodes.part_sizes) > 1 else 0
        self._divided, self._summed = set[str](), set[str]()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """User code runs in this thread within the block."""
        is_due = 0 < self._left <= _NUM_STEPS and not has_compiled()
        with _Watch(self._divided.add, self._summed.add) if is_due else nullcontext():
            yield

    def step_ended(self) -> FoundLosses:
        """Their names, once."""
        if not self._left:
            return FoundLosses()
        self._left = 0 if self._divided or self._summed else self._left - 1
        return FoundLosses(tuple(sorted(self._divided)), tuple(sorted(self._summed)))


class _Watch(TorchFunctionMode):
    def __init__(self, note_divided: Callable[[str], object], note_summed: Callable[[str], object]) -> None:
        super().__init__()
        self._note_divided, self._note_summed = note_divided, note_summed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # torch.compile would make other graphs with a look at values: then bits would depend on who is watched
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            if func in _SUMMED and kwargs.get("reduction") == "sum":  # losses of torch.nn give it by name, too
                self._note_summed(f"{func.__name__}()")
            if func in _DIVIDED:
                self._look(func, args, kwargs)
        return func(*args, **kwargs)

    def _look(self, func: Any, args: Any, kwargs: Any) -> None:
        # arguments that the function refuses are for itself to name, and a tensor within vmap() shows no values
        with suppress(Exception):
            given = _DIVIDED[func].bind(*args, **kwargs)
            given.apply_defaults()
            if by := _divides_by(given.arguments):
                self._note_divided(f"{func.__name__}() with {by}")


def _divides_by(given: Mapping[str, Any]) -> str:
    """By what a mean is divided that parts of a batch have unequally; "" if by the number of labels."""
    if given["reduction"] != "mean":
        return ""
    if given["weight"] is not None:
        return "weight"
    target = given["target"]
    if not target.is_floating_point() and bool((target == given["ignore_index"]).any()):
        return "ignore_index"
    return ""

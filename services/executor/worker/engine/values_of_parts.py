"""What user code takes from one part of a batch as if that were the whole: counts of samples, losses, and other
values that depend on it.

The pool may choose the number of parts, so such values would depend on the pool. The first steps of a process are
watched, and later some again (`is_check_point`). The job's history names what is found.
"""

import math
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
_MOST_NODES = 50  # of a graph, in a search
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
        self._told = set[str]()

    def watch_again(self) -> None:
        """The next steps are watched, the present one first."""
        if len(self._grown) == _NUM_STEPS:
            self._grown, self._last = [], {}

    def step_ended(self) -> Sequence[str]:
        """Names of such numbers, each once."""
        if self._size == 1 or len(self._grown) == _NUM_STEPS:
            return ()
        now = {name: value for name, value in self._read().items() if type(value) is int}
        self._grown.append({name: now[name] - self._last[name] for name in now.keys() & self._last.keys()})
        self._last = now
        if len(self._grown) < _NUM_STEPS:
            return ()
        first, *others = self._grown[1:]  # the first step has nothing before it
        counts = (name for name, by in first.items() if by > 0 and by % self._size == 0)
        found = {name for name in counts if all(each.get(name) == first[name] for each in others)} - self._told
        self._told |= found
        return sorted(found)


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

    def watch_again(self) -> None:
        """The present step is watched."""
        self._left = max(self._left, 1)

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
    """divided: by the weights, or by the labels that count, of one part only. summed: over the samples of one part.

    Each is a name for the job's history.
    """

    divided: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()


class PartialLosses:
    """Finds losses that torch divides by what one part has, or adds up over it.

    Not in jobs that compile, as the first step shows: torch would compile again for the steps without the watch.
    """

    def __init__(self, virtual_nodes: VirtualNodes) -> None:
        self._virtual_nodes = virtual_nodes
        self._has_parts = len(virtual_nodes.part_sizes) > 1
        self._left = 1 + _NUM_STEPS if self._has_parts else 0
        self._divided, self._summed = set[str](), set[str]()
        self._sums: list[str] = []  # the losses of backward passes that are sums over a part; "" if one is none
        self._told = set[str]()

    def watch_again(self) -> None:
        """The present step is watched."""
        if self._has_parts and not self._left:
            self._left = 1

    @contextmanager
    def watched(self) -> Iterator[None]:
        """User code runs in this thread within the block."""
        is_due = 0 < self._left <= _NUM_STEPS and not has_compiled()
        with _Watch(self._divided.add, self._summed.add, self._note_backward) if is_due else nullcontext():
            yield

    def step_ended(self) -> FoundLosses:
        """Their names, each once."""
        if not self._left:
            return FoundLosses()
        self._left -= 1
        if not self._left and len(set(self._sums)) == 1:  # all of them: a divisor may be equal by chance
            self._summed |= {*self._sums} - {""}
        found = FoundLosses(*(tuple(sorted(each - self._told)) for each in (self._divided, self._summed)))
        if any(found):
            self._left = 0
        if not self._left:
            self._sums = []
        self._told.update(*found)
        return found

    def _note_backward(self, loss: torch.Tensor) -> None:
        with suppress(Exception):  # a graph of the user's own functions may show nothing
            self._sums.append(sum_of_part(loss, self._virtual_nodes))


class _Watch(TorchFunctionMode):
    def __init__(
        self,
        note_divided: Callable[[str], object],
        note_summed: Callable[[str], object],
        note_backward: Callable[[torch.Tensor], object],
    ) -> None:
        super().__init__()
        self._note_divided, self._note_summed, self._note_backward = note_divided, note_summed, note_backward

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # torch.compile would make other graphs with a look at values: then bits would depend on who is watched
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            if func in _SUMMED and kwargs.get("reduction") == "sum":  # losses of torch.nn give it by name, too
                self._note_summed(f"{func.__name__}() with reduction='sum'")
            if func in _DIVIDED:
                self._look(func, args, kwargs)
            if func is torch.Tensor.backward:
                self._note_backward(args[0])
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


# --- sums over a part -----------------------------------------------------------------------------------

_SUMS = ("SumBackward0", "SumBackward1")
_SCALED = ("DivBackward0", "MulBackward0")
_OF_SAME_VALUE = ("NegBackward0", "ViewBackward0", "SqueezeBackward0", "ToCopyBackward0", "CloneBackward0")
_MADE_OF_LOSSES = ("StackBackward0", "CatBackward0", "MeanBackward0", "MeanBackward1")


def sum_of_part(loss: torch.Tensor, virtual_nodes: VirtualNodes) -> str:
    """What a loss is that user code has summed by itself over the samples of one part, and divided by the samples of
    the global batch, or by nothing. "" for any other, also for sums within a larger expression."""
    divisors, node = _divisors_of(loss.grad_fn)
    shapes, below = _summed_shapes(node)
    if not shapes:
        return ""
    batch, sizes = virtual_nodes.global_batch_size, virtual_nodes.part_sizes
    if divisors:
        is_of_batch = math.isclose(math.prod(divisors), batch, rel_tol=1e-6)
        return f"sum() divided by {batch}" if is_of_batch and batch not in map(math.prod, shapes) else ""
    is_over_samples = len(shapes[-1]) > 0 and shapes[-1][0] in sizes
    return "sum()" if is_over_samples and not _is_made_of_losses(below) else ""


def _divisors_of(node: Any) -> tuple[list[float], Any]:
    """The numbers by which a loss is divided at last, and the node of its graph before that."""
    divisors = list[float]()
    while node is not None:
        if node.name() in _SCALED:
            inner = [each for each, _ in node.next_functions if each is not None]
            number = node._saved_other if node._saved_other is not None else node._saved_self
            if len(inner) != 1 or number.numel() != 1 or number.device.type != "cpu":
                return [], None
            divisors.append(float(number) if node.name() == "DivBackward0" else 1 / float(number))
            node = inner[0]
        elif node.name() in _OF_SAME_VALUE:
            node = node.next_functions[0][0]
        else:
            break
    return divisors, node


def _summed_shapes(node: Any) -> tuple[list[Sequence[int]], Any]:
    """The shapes of what sums in a row have summed, and the node before them."""
    shapes = list[Sequence[int]]()
    while node is not None and node.name() in _SUMS:
        shapes.append(node._saved_self_sym_sizes)
        node = node.next_functions[0][0]
    return shapes, node


def _is_made_of_losses(node: Any) -> bool:
    """Whether means, or a list, are among what was summed: that may be one number for each feature or task."""
    nodes, seen = [node], set[Any]()
    while nodes and len(seen) < _MOST_NODES:
        each = nodes.pop(0)
        if each is None or each in seen:
            continue
        if each.name() in _MADE_OF_LOSSES:
            return True
        seen.add(each)
        nodes += [inner for inner, _ in each.next_functions]
    return False

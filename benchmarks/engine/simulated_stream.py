"""A stream of work on CPU tensors, as a GPU has one: what is begun there runs later, in order, in a thread of its own.

A transfer's wait joins the stream and returns at once. From then on, operations on the transfer's tensors follow it:
some of them join the stream too (`_LATER`), others wait for it before they run, in any thread of the process. The
interpreter may read memory past torch, for example by `numpy()` or `tolist()`. Such a read finds what was there before,
unless the reader has called `synchronize`.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch has no public way to run an operation below autograd)

import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_ATEN = torch.ops.aten
_LATER = frozenset(  # those that write to memory that exists, and return it or nothing
    (
        _ATEN.add.out,
        _ATEN.add_.Tensor,
        _ATEN.copy_.default,
        _ATEN.div_.Scalar,
        _ATEN.div_.Tensor,
        _ATEN.fill_.Scalar,
        _ATEN.mul_.Scalar,
        _ATEN.mul_.Tensor,
        _ATEN.zero_.default,
        _ATEN._foreach_add_.List,
        _ATEN._foreach_copy_.default,
    )
)
_VERSION_COUNTS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
_in_order = threading.local()
_streams: "list[SimulatedStream]" = []


class UnorderedThread(threading.Thread):
    """A thread of the device itself or of its library: it does not follow the order, it makes it."""


class SimulatedStream:
    """The stream of one worker; a process of a test may have several. Threads that begin later follow its order."""

    def __init__(self) -> None:
        self._work = queue.SimpleQueue[tuple[Callable[[], Any], Sequence[torch.Tensor]] | None]()
        self._state = threading.Lock()
        self._used = Counter[int]()  # by the address of memory: work that has not run
        UnorderedThread(target=self._run, name="simulated-stream", daemon=True).start()
        _streams.append(self)
        threading.setprofile(_begin_thread)

    def push(self, act: Callable[[], Any], tensors: Sequence[torch.Tensor] = ()) -> None:
        """Run it after all earlier work. tensors: those that it reads or writes."""
        with self._state:
            self._used.update(_addresses(tensors))
        self._work.put((act, tensors))

    def reached(self) -> threading.Event:
        """Set once all work until now has run."""
        reached = threading.Event()
        self.push(reached.set)
        return reached

    def synchronize(self) -> None:
        """Block until all work until now has run."""
        if self._used:
            self.reached().wait()

    def uses(self, tensors: Iterable[torch.Tensor]) -> bool:
        with self._state:
            return any(address in self._used for address in _addresses(tensors))

    def close(self) -> None:
        """Close the stream after the work until now."""
        self._work.put(None)

    @property
    def is_idle(self) -> bool:
        """No work that uses tensors is unfinished."""
        return not self._used

    def _run(self) -> None:
        with on_device():
            while (work := self._work.get()) is not None:
                act, tensors = work
                act()
                with self._state:
                    self._used.subtract(_addresses(tensors))
                    self._used = +self._used
                del work, act, tensors
        if self in _streams:
            _streams.remove(self)


class _Order(TorchDispatchMode):
    """Operations of a thread that use the memory of unfinished work follow it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_list = func.name().startswith("aten::_foreach")
        if is_list and func._schema.is_mutable:  # torch counts these changes only where no mode is active
            torch.autograd.graph.increment_version(args[0])
        tensors: list[torch.Tensor] = []
        busy = [] if func.is_view else [each for each in _streams if not each.is_idle]
        if busy:
            tensors = list(_tensors_in((args, kwargs)))
            busy = [each for each in busy if each.uses(tensors)]
        of_gang = any(hasattr(each, "to_local") for each in args)  # an operation of DTensor, which runs others
        if len(busy) == 1 and func in _LATER and not of_gang:
            busy[0].push(partial(func, *args, **kwargs), tensors)
            return None if is_list else kwargs.get("out", args[0])
        for each in busy:
            each.synchronize()
        return func(*args, **kwargs)


def follow_in_this_thread() -> None:
    """Follow the streams' order in this thread for the rest of its life."""
    if not hasattr(_in_order, "mode"):
        _in_order.mode = _Order()
        _in_order.mode.__enter__()


def follow_in_later_threads() -> None:
    """Follow the streams' order in later threads, also in those that begin before the first stream.

    A thread of user code may read what another has waited for.
    """
    threading.setprofile(_begin_thread)


def forget_streams() -> None:
    """This thread and those that begin later follow no order any more: for a process that goes on without streams."""
    threading.setprofile(None)
    _streams.clear()
    if hasattr(_in_order, "mode"):
        _in_order.mode.__exit__(None, None, None)
        del _in_order.mode


def _begin_thread(*_: object) -> None:
    """The first event of a new thread."""
    sys.setprofile(None)
    if not isinstance(threading.current_thread(), UnorderedThread):
        follow_in_this_thread()


@contextmanager
def on_device() -> Iterator[None]:
    """Operations run now, whatever the stream does, and autograd does not notice: it did when they were begun."""
    with (
        _disable_current_modes(),
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._ExcludeDispatchKeyGuard(_VERSION_COUNTS),
    ):
        yield


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield getattr(value, "_local_tensor", value)  # of a gang: the rows here
    elif isinstance(value, dict):
        yield from _tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)


def _addresses(tensors: Iterable[torch.Tensor]) -> list[int]:
    """The addresses of the tensors' memory; an empty tensor has none."""
    return [address for tensor in tensors if (address := tensor.untyped_storage().data_ptr())]

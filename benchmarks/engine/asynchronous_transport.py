"""A transport on CPU slots that behaves as NCCL does: calls return at once, and an abort leaves garbage silently.

Data arrive in another thread. As on a GPU's stream, later operations on tensors wait for them: the first operation of
the same thread does.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from elasticflow.services.executor.worker.elastic.gloo_transport import GlooTransport
from elasticflow.services.executor.worker.elastic.transport import Transfer

GARBAGE = float("nan")


class AsynchronousTransport:
    def __init__(self, gloo: GlooTransport) -> None:
        self.error = ""
        self._gloo = gloo
        self._is_aborted = False
        self._work = queue.SimpleQueue[tuple[Callable[[], None], Sequence[torch.Tensor], threading.Event] | None]()
        self._unfinished = list[threading.Event]()
        self._ordered_threads = threading.local()
        threading.Thread(target=self._run, name="asynchronous-transport", daemon=True).start()

    def begin_exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> Callable[[], None]:
        """Its wait blocks, because any thread of the worker may use the data then. It raises no error either."""
        received = [transfer.tensor for transfer in receives]
        done = self._begin(lambda: self._gloo.begin_exchange(sends, receives)(), received)

        def wait() -> None:
            done.wait()

        return wait

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        self._follow(self._begin(lambda: self._gloo.all_reduce(tensor).wait(), [tensor]))
        done = torch.futures.Future[torch.Tensor]()
        done.set_result(tensor)
        return done

    def broadcast(self, tensors: list[torch.Tensor], *, source: int) -> None:
        self._follow(self._begin(lambda: self._gloo.broadcast(tensors, source=source), tensors))

    def wait(self) -> None:
        unfinished, self._unfinished = self._unfinished, []
        for done in unfinished:
            done.wait()

    def abort(self) -> None:
        self._is_aborted = True
        self._gloo.abort()

    def release(self) -> None:
        self._work.put(None)

    def _begin(self, act: Callable[[], Any], received: Sequence[torch.Tensor]) -> threading.Event:
        done = threading.Event()
        self._work.put((act, received, done))
        return done

    def _follow(self, done: threading.Event) -> None:
        """Later operations of this thread wait."""
        self._unfinished.append(done)
        if not hasattr(self._ordered_threads, "mode"):
            self._ordered_threads.mode = _StreamOrder(self)
            self._ordered_threads.mode.__enter__()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            act, received, done = work
            try:
                act()
            except RuntimeError as error:
                self.error = f"the library reported: {error}"  # known before the abort that releases the waits
                self._is_aborted = True
            if self._is_aborted:
                for tensor in received:
                    if tensor.is_floating_point():
                        tensor.fill_(GARBAGE)
            done.set()


class _StreamOrder(TorchDispatchMode):
    """In one thread, for its life: operations on tensors wait for the transport."""

    def __init__(self, transport: AsynchronousTransport) -> None:
        super().__init__()
        self._transport = transport

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._transport.wait()
        return func(*args, **(kwargs or {}))

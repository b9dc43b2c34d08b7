"""A process that reads for its worker, and the socket between the two.

It is forked from the worker, so that only samples are pickled, not the data set. Tensors travel as bytes, straight into
their final memory: aligned as any tensor, and pinned if a GPU copies from it. The socket needs no shared memory, of
which a container may have little, and leaves no files behind.
"""

import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NoReturn

import torch

_HEAD = struct.Struct("!?dQ")  # whether the part could be read; CPU seconds; bytes of the pickle
_LENGTH = struct.Struct("!Q")


class NotRead(Exception):
    """This process failed to read; the cause shows when the worker reads the part itself."""


@dataclass(frozen=True, slots=True)
class ReadPart:
    batch: Any
    cpu_s: float  # of the process that has read it


class ReaderProcess:
    """read: called with each part, or another request. begin: called before. pin_memory: of arriving tensors.
    on_arrival: called with each batch, on a thread."""

    def __init__(
        self,
        read: Callable[[Any], Any],
        *,
        begin: Callable[[], None] | None = None,
        pin_memory: bool,
        on_arrival: Callable[[Any], Any],
    ) -> None:
        self._pin_memory = pin_memory
        self._on_arrival = on_arrival
        self._pending: deque[Future[ReadPart]] = deque()
        self._socket, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            _serve(theirs, read, begin)
        theirs.close()
        threading.Thread(target=self._receive, name="reader", daemon=True).start()

    def read(self, parts: Sequence[Any]) -> list[Future[ReadPart]]:
        """Read the parts in order, each once. The futures may hold NotRead."""
        futures = [Future[ReadPart]() for _ in parts]
        self._pending.extend(futures)
        request = pickle.dumps(list(parts))
        try:
            self._socket.sendall(_LENGTH.pack(len(request)) + request)
        except OSError as error:
            self._fail_all(error)
        return futures

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _receive(self) -> None:
        try:
            while True:
                was_read, cpu_s, num_bytes = _HEAD.unpack(_receive_bytes(self._socket, _HEAD.size))
                content = _receive_bytes(self._socket, num_bytes)
                future = self._pending[0]
                if was_read:
                    batch = _Unpacking(content, self._socket, pin_memory=self._pin_memory).load()
                    future.set_result(ReadPart(self._on_arrival(batch), cpu_s))
                    del batch
                else:
                    future.set_exception(NotRead(content.decode()))
                self._pending.popleft()
                del future  # a reference here would keep the batch until the next one arrives
        except Exception as error:  # the process has died, or its batch cannot be unpickled here
            self.close()
            os.waitpid(self._pid, 0)
            self._socket.close()
            self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        for future in self._pending:
            with suppress(InvalidStateError):  # from two threads
                future.set_exception(NotRead(f"the reader process has ended: {error!r}"))


def _serve(to_worker: socket.socket, read: Callable[[Any], Any], begin: Callable[[], None] | None) -> NoReturn:
    """Until the worker is gone."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the worker receives the signal, too, and decides
        torch.set_num_threads(1)  # the fork has not copied OpenMP's threads
        reported_s = time.process_time()
        if begin is not None:
            begin()
        while True:
            (num_bytes,) = _LENGTH.unpack(_receive_bytes(to_worker, _LENGTH.size))
            for part in pickle.loads(_receive_bytes(to_worker, num_bytes)):
                reported_s = _send(to_worker, read, part, reported_s)
    except (EOFError, OSError):
        os._exit(0)
    finally:
        os._exit(1)


def _send(to_worker: socket.socket, read: Callable[[Any], Any], part: Any, reported_s: float) -> float:
    """reported_s: CPU time reported before. Returns the CPU time reported now."""
    content = BytesIO()
    packing = _Packing(content, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        packing.dump(read(part))
        was_read, text = True, content.getvalue()
    except Exception as error:
        was_read, text = False, f"{type(error).__name__}: {error}".encode()
    now_s = time.process_time()
    to_worker.sendall(_HEAD.pack(was_read, now_s - reported_s, len(text)) + text)
    if was_read:
        for tensor in packing.tensors:
            to_worker.sendall(_memory_of(tensor))
    return now_s


class _Packing(pickle.Pickler):
    """Omits plain tensors: their bytes follow, in the order of their first occurrence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tensors: list[torch.Tensor] = []
        self._indices: dict[int, int] = {}  # by id of the tensor

    def persistent_id(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or not _is_plain(value):
            return None
        if (index := self._indices.get(id(value))) is None:
            index = self._indices[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return index, tuple(value.shape), value.dtype


class _Unpacking(pickle.Unpickler):
    def __init__(self, content: bytearray, source: socket.socket, *, pin_memory: bool) -> None:
        super().__init__(BytesIO(content))
        self._source = source
        self._pin_memory = pin_memory
        self._tensors: list[torch.Tensor] = []

    def persistent_load(self, outline: tuple[int, tuple[int, ...], torch.dtype]) -> torch.Tensor:
        index, shape, dtype = outline
        if index == len(self._tensors):
            tensor = torch.empty(shape, dtype=dtype, pin_memory=self._pin_memory)
            _receive_into(self._source, _memory_of(tensor))
            self._tensors.append(tensor)
        return self._tensors[index]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether bytes, shape and type define the tensor; torch pickles all others."""
    dense = tensor.layout is torch.strided and tensor.is_contiguous()
    bare = not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    return tensor.device.type == "cpu" and dense and bare


def _memory_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]


def _receive_bytes(source: socket.socket, num_bytes: int) -> bytearray:
    content = bytearray(num_bytes)
    _receive_into(source, memoryview(content))
    return content


def _receive_into(source: socket.socket, memory: memoryview) -> None:
    while memory:  # a signal may end a call early
        num_bytes = source.recv_into(memory, 0, socket.MSG_WAITALL)
        if num_bytes == 0:
            raise EOFError("the other end is closed")
        memory = memory[num_bytes:]

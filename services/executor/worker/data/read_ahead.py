"""Reads the batches of coming steps, and copies them to the device, while the present step computes.

Reading may draw random numbers, for example to augment, from the same generators as training; all threads of a process
share them. A reading thread would change the bits of the training, so processes read (decision record 0019). The result
does not depend on them: if a process fails, the worker reads.
"""

# pyright: reportPrivateImportUsage=false
# (torch's pytree is public by its use in torch.export and torch.func, not by its name)

import copy
import dataclasses
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves, tree_map

from elasticflow.services.executor.worker.data.dataset import OTHER_SAMPLES, Stream, StreamOrder, StreamPlace
from elasticflow.services.executor.worker.data.loader_settings import keep_worker_info
from elasticflow.services.executor.worker.data.random_seeds import keep_generators
from elasticflow.services.executor.worker.data.sample_order import Order, Part
from elasticflow.services.executor.worker.data.sample_readers import SampleReader, checksum_of
from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.shared.runtime.process.logs import log

# --- Copies batches to a device beside its work, whatever types a batch is made of ---------------------


class DeviceCopies:
    """Any thread begins a copy, the user of the batch finishes it. CPU slots need none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begin(self, batch: Any) -> Any:
        """The input of `finish`. Copies from pinned memory run in the background."""
        if self._stream is None:
            return batch
        with torch.cuda.stream(self._stream):
            return tensors_moved(batch, self._device), self._stream.record_event()

    def finish(self, begun: Any) -> Any:
        """The batch on the device; later device work waits for the copy."""
        if self._stream is None:
            return begun
        batch, copied = begun
        here = torch.cuda.current_stream(self._device)
        here.wait_event(copied)
        for tensor in tensors_in(batch):
            # otherwise the allocator could reuse its memory during this stream's work
            tensor.record_stream(here)
        return objects_moved(batch, self._device)


def tensors_moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device, in containers of the same types."""
    return _mapped(batch, lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf)


def objects_moved(batch: Any, device: torch.device) -> Any:
    """The batch with each object that has a method `to` on the device, such as a graph or a tokenizer's encoding.

    What such an object holds is its own affair, so it is moved in the stream that uses it.
    """

    def on_device(leaf: Any) -> Any:
        return leaf.to(device) if not isinstance(leaf, torch.Tensor) and callable(getattr(leaf, "to", None)) else leaf

    return _mapped(batch, on_device)


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors that `tensors_moved` moves."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif _is_plain_dataclass(leaf):
            yield from tensors_in(_fields_of(leaf))


def _mapped(batch: Any, act: Callable[[Any], Any]) -> Any:
    """`act` of each leaf. Beside torch's containers, dataclasses are containers, unless they move themselves."""

    def of_leaf(leaf: Any) -> Any:
        if not _is_plain_dataclass(leaf):
            return act(leaf)
        made = copy.copy(leaf)
        for name, value in _fields_of(leaf).items():
            object.__setattr__(made, name, _mapped(value, act))  # a frozen one, too
        return made

    return tree_map(of_leaf, batch)


def _is_plain_dataclass(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) and not callable(getattr(leaf, "to", None))


def _fields_of(leaf: Any) -> dict[str, Any]:
    return {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}


# --- A process that reads for its worker, and the socket between the two -------------------------------
# It is forked from the worker, so that only samples are pickled, not the data set. Tensors travel as bytes, straight
# into their final memory: aligned as any tensor, and pinned if a GPU copies from it. The socket needs no shared
# memory, of which a container may have little, and leaves no files behind.

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
    """Serve requests until the worker is gone."""
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


# --- read ahead ----------------------------------------------------------------------------------------

_READ_TIMEOUT_S = 60.0  # for one part: a forked process may hang, e.g. in a lock that a thread had held
_BATCH_TIMEOUT_S = 600.0  # for a whole batch of a stream, by a process that does not hang
_SECOND_READING_TIMEOUT_S = 60.0

CHANGING_SAMPLES = (
    "the data set gave other values when the same samples were read again. Which process reads a sample, and how "
    "often, depends on the number of workers. Let the result of __getitem__() and of the collate function follow from "
    "the index, with random numbers of torch, numpy or random, which the job seeds for each part of a batch. Keep no "
    "counter, no generator with a seed of its own and no changed sample"
)


class ReadAhead:
    """num_processes: 0 reads nothing ahead. stream: what `read` reads, if it has no length. begin_reading: called once
    in each process that reads, with its number."""

    def __init__(
        self,
        read: SampleReader,
        order: Order | StreamOrder,
        *,
        stream: Stream | None = None,
        num_processes: int,
        device: torch.device,
        cpu_throttle: CpuThrottle,
        begin_reading: Callable[[int], None] | None = None,
    ) -> None:
        self._read = read
        self._order = order
        self._copies = DeviceCopies(device)
        self._cpu_throttle = cpu_throttle
        self._pending: dict[Part, Future[ReadPart]] = {}
        self._begin_here = begin_reading
        self._stream = stream
        self._second_reading: SecondReading | None = None
        self._timeout_s = _READ_TIMEOUT_S
        self._is_checked = False  # whether the stream can begin another epoch
        self._processes = [
            ReaderProcess(
                read,
                begin=partial(begin_reading, number) if begin_reading else None,
                pin_memory=device.type == "cuda",
                on_arrival=self._copies.begin,
            )
            for number in range(num_processes)
        ]

    def prepare(self, micro_batches: Sequence[MicroBatch], iteration: int) -> None:
        """Begin to read for a worker that joins at about this step."""
        self._request(self._due(micro_batches, iteration))

    def take(
        self,
        micro_batches: Sequence[MicroBatch],
        iteration: int,
        next_micro_batches: Sequence[MicroBatch] = (),
    ) -> list[Any]:
        """The batches of one step, on the device, each for one use: training may change it in place.

        next_micro_batches: those of the next step if the worker may switch generations before it.
        """
        due = self._due(micro_batches, iteration)
        self._request([*due, *(self._order.parts(next_micro_batches, iteration + 1) if self._processes else [])])
        batches = [self._copies.finish(self._batch(part)) for part in due[: len(micro_batches)]]
        if self._stream is None:
            return batches
        batches = list(map(self._stream.note, batches))
        self._check(self._stream, iteration)
        return batches

    def _due(self, micro_batches: Sequence[MicroBatch], iteration: int) -> list[Part]:
        """The parts of this step and of the next, or of as many steps as keep all processes busy."""
        ahead = -(-len(self._processes) // len(micro_batches))
        steps = range(iteration, iteration + ahead + 1)
        return [part for step in steps for part in self._order.parts(micro_batches, step)]

    def _request(self, parts: Sequence[Part]) -> None:
        """Begin to read these, in this order; forget all others."""
        self._pending = {part: self._pending[part] for part in parts if part in self._pending}
        new = dict.fromkeys(part for part in parts if part not in self._pending)
        for index, process in enumerate(self._processes):
            theirs = [part for part in new if self._read.process_key(part) % len(self._processes) == index]
            if theirs:
                self._pending.update(zip(theirs, process.read(theirs), strict=True))

    def begin_at(self, place: StreamPlace, on_progress: Callable[[], None]) -> None:
        """Come to a place in the stream, which may take long. Raises TrainingFailed if its samples differ."""
        while not self._has_reached(place):
            on_progress()

    def _has_reached(self, place: StreamPlace) -> bool:
        if self._processes:
            try:
                return self._copies.finish(self._arrived(self._processes[0].read([place])[0]).batch)
            except (NotRead, TimeoutError) as why:
                self._fall_back(why)
        return self._read(place)

    def require_same_samples(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Read a stream's first batch again after the first step, in another process, or some samples of a data set
        twice more. Raises TrainingFailed."""
        if self._stream is None:
            part = self._order.parts(micro_batches, 0)[0]
            first, second = (checksum_of(self._copies.finish(self._read_again(part)), 0) for _ in range(2))
            if first != second:
                raise TrainingFailed(CHANGING_SAMPLES)
        elif self._processes:
            reading = SecondReading(self._read, self._stream.place(1))
            reading.is_over(_SECOND_READING_TIMEOUT_S)
            reading.close()

    def _read_again(self, part: Part) -> Any:
        if self._processes:
            try:
                return self._arrived(self._processes[0].read([part])[0]).batch
            except (NotRead, TimeoutError) as why:
                self._fall_back(why)
        return self._copies.begin(self._read(part))

    def _check(self, stream: Stream, iteration: int) -> None:
        """Check, when the first epoch ends here, that another process, as of a worker that joins, begins the next
        alike."""
        if self._second_reading is not None and self._second_reading.is_over():
            self._second_reading = None
        begins = stream.position(iteration + 1).epoch > stream.position(iteration).epoch
        if begins and self._processes and not self._is_checked:
            self._is_checked = True
            self._second_reading = SecondReading(self._read, stream.place(iteration + 1))

    def close(self) -> None:
        """End the processes, and forget what they have read."""
        for process in self._processes:
            process.close()
        if self._second_reading is not None:
            self._second_reading.close()
        self._processes, self._pending, self._second_reading = [], {}, None

    def _batch(self, part: Part) -> Any:
        """The batch of a part, as `DeviceCopies.begin` returns it."""
        if (future := self._pending.pop(part, None)) is not None:
            try:
                arrived = self._arrived(future)
            except (NotRead, TimeoutError) as why:
                self._fall_back(why)
            else:
                self._cpu_throttle.charge(arrived.cpu_s)
                return arrived.batch
        if self._stream is not None:  # where the process has been
            while not self._read(self._stream.place(part.iteration)):
                pass
        if self._begin_here is not None:
            with keep_generators(), keep_worker_info():
                self._begin_here(0)
            self._begin_here = None
        return self._copies.begin(self._read(part))

    def _arrived(self, future: Future[ReadPart]) -> ReadPart:
        arrived = future.result(self._timeout_s)
        if self._stream is not None:
            self._timeout_s = _BATCH_TIMEOUT_S
        return arrived

    def _fall_back(self, why: Exception) -> None:
        """End the reading ahead: from now on the worker reads. If the data set itself fails, so does the worker."""
        log.warning("reading_ahead_ended", reason=str(why) or type(why).__name__)
        self.close()


class SecondReading:
    """Reads a stream up to a place once more, from its beginning there, in a process of its own.

    read: not used so far in this process, as in that of a worker that joins.
    """

    def __init__(self, read: SampleReader, place: StreamPlace) -> None:
        self._place = StreamPlace(position=place.position)
        self._process = ReaderProcess(read, pin_memory=False, on_arrival=lambda reached: reached)
        self._reached = self._process.read([self._place])[0]

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Raises TrainingFailed if it has found other samples."""
        try:
            if not self._reached.result(wait_s).batch:
                self._reached = self._process.read([self._place])[0]
                return False
        except TimeoutError:
            return False
        except NotRead as why:
            if OTHER_SAMPLES in str(why):
                raise TrainingFailed(OTHER_SAMPLES) from None
            log.warning("stream_not_read_again", reason=str(why))
        self.close()
        return True

    def close(self) -> None:
        self._process.close()

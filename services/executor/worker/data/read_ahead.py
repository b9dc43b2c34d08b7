"""Reads the batches of coming steps, and copies them to the device, while the present step computes.

Reading may draw random numbers, for example to augment, from the same generators as training; all threads of a process
share them. A reading thread would change the bits of the training, so processes read (decision record 0019). The result
does not depend on them: if a process fails, the worker reads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import structlog
import torch

from elasticflow.services.executor.worker.data.device_copies import DeviceCopies
from elasticflow.services.executor.worker.data.loader_settings import keep_worker_info
from elasticflow.services.executor.worker.data.reader_process import NotRead, ReaderProcess, ReadPart
from elasticflow.services.executor.worker.data.sample_order import Order, Part
from elasticflow.services.executor.worker.data.sample_readers import Reader
from elasticflow.services.executor.worker.process.cpu_throttle import CpuThrottle
from elasticflow.services.executor.worker.steps.random_seeds import keep_generators
from elasticflow.services.executor.worker.steps.virtual_nodes import MicroBatch

_READ_TIMEOUT_S = 60.0  # for one part: a forked process may hang, e.g. in a lock that a thread had held

log = structlog.get_logger()


class ReadAhead:
    """num_processes: 0 reads nothing ahead. begin_reading: called once in each process that reads, with its number."""

    def __init__(
        self,
        read: Reader,
        order: Order,
        *,
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
        return [self._copies.finish(self._batch(part)) for part in due[: len(micro_batches)]]

    def _due(self, micro_batches: Sequence[MicroBatch], iteration: int) -> list[Part]:
        """In this step and in the next, or in as many as keep all processes busy."""
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

    def close(self) -> None:
        """End the processes, and forget what they have read."""
        for process in self._processes:
            process.close()
        self._processes, self._pending = [], {}

    def _batch(self, part: Part) -> Any:
        """As `DeviceCopies.begin` returns it."""
        if (future := self._pending.pop(part, None)) is not None:
            try:
                arrived = future.result(_READ_TIMEOUT_S)
            except (NotRead, TimeoutError) as why:
                self._fall_back(why)
            else:
                self._cpu_throttle.charge(arrived.cpu_s)
                return arrived.batch
        if self._begin_here is not None:
            with keep_generators(), keep_worker_info():
                self._begin_here(0)
            self._begin_here = None
        return self._copies.begin(self._read(part))

    def _fall_back(self, why: Exception) -> None:
        """From now on the worker reads. If the data set itself fails, so does the worker."""
        log.warning("reading_ahead_ended", reason=str(why) or type(why).__name__)
        self.close()

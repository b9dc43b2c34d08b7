"""Batches of the steps to come, read and brought to the device while the present one computes.

Reading draws random numbers, to augment, from the same generators as training does, and these are one for all threads
of a process: a thread that read beside the training would change its bits. So a process reads (decision record 0019).
Nothing that is read depends on it: where it cannot go on, the worker reads what is due by itself.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import structlog
import torch

from services.executor.worker.data_order import Part, SampleOrder
from services.executor.worker.device import Copies
from services.executor.worker.loading import Reader
from services.executor.worker.pacing import Pacer
from services.executor.worker.reader_process import NotRead, ReaderProcess, ReadPart
from services.executor.worker.virtual_nodes import MicroBatch

_PATIENCE_S = 60.0  # for one part: a process that was forked may hang, e.g. in a lock that a thread had held

log = structlog.get_logger()


class ReadAhead:
    """num_processes: 0: nothing is read ahead."""

    def __init__(
        self, read: Reader, order: SampleOrder, *, num_processes: int, device: torch.device, pacer: Pacer
    ) -> None:
        self._read = read
        self._order = order
        self._copies = Copies(device)
        self._pacer = pacer
        self._awaited: dict[Part, Future[ReadPart]] = {}
        self._processes = [
            ReaderProcess(read, pin_memory=device.type == "cuda", on_arrival=self._copies.begin)
            for _ in range(num_processes)
        ]

    def prepare(self, micro_batches: Sequence[MicroBatch], iteration: int) -> None:
        """Begin to read what a worker is to compute that comes in at about this step."""
        self._expect(self._due(micro_batches, iteration))

    def take(
        self, micro_batches: Sequence[MicroBatch], iteration: int, coming: Sequence[MicroBatch] = ()
    ) -> list[Any]:
        """The batches of one step, on the device, each for one use: training may change it in place.

        coming: those of the next step, if it is with other workers, which is not certain.
        """
        due = self._due(micro_batches, iteration)
        self._expect([*due, *(self._order.parts(coming, iteration + 1) if self._processes else [])])
        return [self._copies.finish(self._batch(part)) for part in due[: len(micro_batches)]]

    def _due(self, micro_batches: Sequence[MicroBatch], iteration: int) -> list[Part]:
        """In this step and in the next, or in as many as keep all processes busy."""
        ahead = -(-len(self._processes) // len(micro_batches))
        steps = range(iteration, iteration + ahead + 1)
        return [part for step in steps for part in self._order.parts(micro_batches, step)]

    def _expect(self, parts: Sequence[Part]) -> None:
        """Begin to read these, in this order; all others are forgotten."""
        self._awaited = {part: self._awaited[part] for part in parts if part in self._awaited}
        new = dict.fromkeys(part for part in parts if part not in self._awaited)
        for index, process in enumerate(self._processes):
            theirs = [part for part in new if self._read.turn(part) % len(self._processes) == index]
            if theirs:
                self._awaited.update(zip(theirs, process.read(theirs), strict=True))

    def close(self) -> None:
        """End the processes; what they have read is forgotten."""
        for process in self._processes:
            process.close()
        self._processes, self._awaited = [], {}

    def _batch(self, part: Part) -> Any:
        """As the copies have begun it."""
        if (future := self._awaited.pop(part, None)) is not None:
            try:
                arrived = future.result(_PATIENCE_S)
            except (NotRead, TimeoutError) as why:
                self._give_up(why)
            else:
                self._pacer.charge(arrived.cpu_s)
                return arrived.batch
        return self._copies.begin(self._read(part))

    def _give_up(self, why: Exception) -> None:
        """From here on, the worker reads. It fails by itself if it is the data set that does."""
        log.warning("reading_ahead_ended", reason=str(why) or type(why).__name__)
        self.close()

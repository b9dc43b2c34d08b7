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

from services.executor.worker.data_order import Part
from services.executor.worker.device import Copies
from services.executor.worker.loading import Reader
from services.executor.worker.pacing import Pacer
from services.executor.worker.reader_process import NotRead, ReaderProcess, ReadPart

_PATIENCE_S = 60.0  # for one part: a process that was forked may hang, e.g. in a lock that a thread had held

log = structlog.get_logger()


class ReadAhead:
    """num_processes: 0: nothing is read ahead."""

    def __init__(self, read: Reader, *, num_processes: int, device: torch.device, pacer: Pacer) -> None:
        self._read = read
        self._copies = Copies(device)
        self._pacer = pacer
        self._awaited: dict[Part, Future[ReadPart]] = {}
        self._processes = [
            ReaderProcess(read, pin_memory=device.type == "cuda", on_arrival=self._copies.begin)
            for _ in range(num_processes)
        ]

    def steps_ahead(self, num_parts: int) -> int:
        """How far to read ahead at so many parts a step: one step, or as many as keep all processes busy."""
        return max(1, -(-len(self._processes) // max(num_parts, 1))) if self._processes else 0

    def expect(self, parts: Sequence[Part]) -> None:
        """Begin to read what will be due, in this order; all else is forgotten."""
        self._awaited = {part: self._awaited[part] for part in parts if part in self._awaited}
        new = [part for part in parts if part not in self._awaited]
        for index, process in enumerate(self._processes):
            theirs = [part for part in new if self._read.turn(part) % len(self._processes) == index]
            if theirs:
                self._awaited.update(zip(theirs, process.read(theirs), strict=True))

    def take(self, parts: Sequence[Part]) -> list[Any]:
        """Their batches, on the device, each for one use: training may change it in place."""
        return [self._copies.finish(self._batch(part)) for part in parts]

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

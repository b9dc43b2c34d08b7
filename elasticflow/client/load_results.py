"""The results of a padding load: their values, and how far tasks may run ahead of them."""

import asyncio
import hashlib
import pickle
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elasticflow.errors import ResultFileUnusable, TaskError
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.load_spec import IndexSet
from elasticflow.shared.messages.padding_tasks import TaskResult, decode_results
from elasticflow.shared.state.load import Load


def result_folder(data_dir: Path, load: Load) -> Path:
    """Where the large results of this load are. data_dir: of the pool."""
    return data_dir / "results" / load.folder_name


def value_of(result: TaskResult, folder: Path | None) -> Any:
    """What the task returned; runs code of its pickle. folder, and what it raises: as in `pickled_value_of`."""
    return pickle.loads(pickled_value_of(result, folder))


def pickled_value_of(result: TaskResult, folder: Path | None) -> bytes:
    """What the task returned, as its runner pickled it. folder: the `result_folder` of its load, None if it is unknown.

    Raises TaskError if it failed for good, ResultFileUnusable.
    """
    if result.error:
        raise TaskError(result.index, result.attempts, result.error, result.traceback)
    if result.value is not None:
        return result.value
    if folder is None:
        why = "the pool's data folder is not known here: give it as data_dir (--data-dir, EF_DATA_DIR)"
        raise ResultFileUnusable(result.index, result.file_digest, result.node_id, why)
    file = folder / result.file_digest
    try:
        pickled = file.read_bytes()
    except OSError as error:
        why = f"{file}: {error.strerror}; all nodes and this machine must share the data folder"
        raise ResultFileUnusable(result.index, result.file_digest, result.node_id, why) from None
    if hashlib.sha256(pickled).hexdigest() != result.file_digest:
        raise ResultFileUnusable(result.index, result.file_digest, result.node_id, f"{file} is damaged")
    return pickled


# --- result window -------------------------------------------------------------------------------------
# How far the tasks of a load may run ahead of its results, so that the results of no load fill the pool's stream.

MAX_STORED_BYTES = 32 << 20  # of the results of one load
FIRST_TASKS = 256  # before the size of a result is known
MAX_TASKS_AHEAD = 100_000


class ResultWindow:
    """The first result of each task counts, in the order of the stream. A result may be deleted once it is read.

    keeps_results: they are read for their sizes only, and another client deletes them later.
    """

    def __init__(self, *, keeps_results: bool = False) -> None:
        self._keeps_results = keeps_results
        self._read = IndexSet()
        self._stored: deque[tuple[int, int]] = deque()  # sequence and bytes of messages that are read, not deleted
        self._read_to = 0
        self._num_bytes_read = 0
        self._num_bytes_deleted = 0
        self.counted_to = 0  # the sequence of the last result that the ledger counts
        self._moved = asyncio.Event()

    @property
    def num_read(self) -> int:
        """Tasks whose results are read."""
        return len(self._read)

    def read(self, record: LedgerRecord) -> Iterator[TaskResult]:
        """The results in a message that count. Raises Undecodable."""
        for result in decode_results(record.data).results:
            if self._read.add(result.index, result.index):
                yield result
        self._stored.append((record.sequence, len(record.data)))
        self._read_to = record.sequence
        self._num_bytes_read += len(record.data)
        self._moved.set()

    def deletable(self) -> int | None:
        """Up to which sequence results may be deleted, of those that the ledger counts; None: no others than before."""
        up_to = min(self._read_to, self.counted_to)
        is_read = self._stored and self._stored[0][0] <= up_to
        return up_to if is_read and not self._keeps_results else None

    def deleted(self, up_to: int) -> None:
        """Results are deleted up to this sequence."""
        while self._stored and self._stored[0][0] <= up_to:
            self._num_bytes_deleted += self._stored.popleft()[1]
        self._moved.set()

    async def feedable(self, num_fed: int) -> int:
        """Wait until more tasks may be fed; how many. 0: the results that are kept leave no space for others."""
        while (feedable := self._most_fed() - num_fed) <= 0:
            if self._keeps_results and self.num_read and num_fed >= self._most_stored():
                return 0
            self._moved.clear()
            await self._moved.wait()
        return feedable

    def _most_fed(self) -> int:
        if not self.num_read:
            return FIRST_TASKS
        return min(self._most_stored(), self._read.first_missing + MAX_TASKS_AHEAD)

    def _most_stored(self) -> int:
        """Tasks whose results fit, with those that are deleted; further ones may be as large as the mean."""
        mean_bytes = self._num_bytes_read / self.num_read
        stored_bytes = self._num_bytes_read - self._num_bytes_deleted
        num_expected = int((MAX_STORED_BYTES - stored_bytes) / mean_bytes)
        return self.num_read + max(num_expected, 0)

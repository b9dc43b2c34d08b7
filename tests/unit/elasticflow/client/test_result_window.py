"""The tasks of a load run ahead of its results by a bounded size of results."""

import asyncio

from elasticflow.client.loads import FIRST_TASKS, MAX_STORED_BYTES, MAX_TASKS_AHEAD, ResultWindow
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.padding_tasks import ResultBatch, TaskResult, encode_results


def record(sequence: int, *indices: int, value: bytes = b"") -> LedgerRecord:
    results = tuple(TaskResult(index=i, value=value, attempts=1, task_s=1.0, node_id="n") for i in indices)
    data = encode_results(ResultBatch(results=results))
    return LedgerRecord(subject="", sequence=sequence, message_id="", stored_at_s=0.0, data=data)


def read(window: ResultWindow, stored: LedgerRecord) -> list[int]:
    return [result.index for result in window.read(stored)]


async def is_full(window: ResultWindow, num_fed: int) -> bool:
    waiting = asyncio.create_task(window.feedable(num_fed))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    return not waiting.done()


def test_the_first_result_of_each_task_counts() -> None:
    window = ResultWindow()
    assert read(window, record(1, 3, 4)) == [3, 4]
    assert read(window, record(2, 4, 5)) == [5]
    assert window.num_read == 3


async def test_a_few_tasks_may_be_fed_before_the_first_result() -> None:
    window = ResultWindow()
    assert await window.feedable(0) == FIRST_TASKS
    assert await is_full(window, FIRST_TASKS)
    read(window, record(1, 0))
    assert not await is_full(window, FIRST_TASKS)


async def test_results_that_are_not_deleted_take_space() -> None:
    window, half = ResultWindow(), bytes(MAX_STORED_BYTES // 20)
    for index in range(10):
        read(window, record(index + 1, index, value=half))
    assert 8 <= await window.feedable(10) <= 10
    assert window.deletable() is None
    window.counted_to = 4
    assert window.deletable() == 4
    window.deleted(4)
    assert 12 <= await window.feedable(10) <= 14
    window.counted_to = 99
    assert window.deletable() == 10, "nothing is deleted that was not read"


async def test_no_task_runs_far_ahead_of_the_first_that_has_no_result() -> None:
    window = ResultWindow()
    read(window, record(1, *range(1, 1_001)))
    assert await is_full(window, MAX_TASKS_AHEAD)
    read(window, record(2, 0))
    assert await window.feedable(MAX_TASKS_AHEAD) <= 1_001


async def test_results_that_are_kept_leave_no_space_in_the_end() -> None:
    window = ResultWindow(keeps_results=True)
    read(window, record(1, 0, value=bytes(MAX_STORED_BYTES // 100)))
    assert await window.feedable(2) in (96, 97, 98)
    assert await window.feedable(100) == 0, "it does not wait: no result is deleted"
    window.counted_to = 1
    assert window.deletable() is None

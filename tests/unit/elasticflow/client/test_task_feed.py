"""Inputs become bundles: full ones where inputs are fast, small ones where they come slowly."""

import asyncio
import itertools
import pickle
import queue
from collections.abc import Iterator

import pytest

from elasticflow.client.task_feed import _MAX_READ_TASKS, MAX_BUNDLE_BYTES, MAX_BUNDLE_TASKS, TaskFeed
from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.padding_tasks import TaskBundle

MOST = 10**9


async def all_bundles(feed: TaskFeed) -> list[TaskBundle]:
    bundles: list[TaskBundle] = []
    while (bundle := await feed.next_bundle(MOST)) is not None:
        bundles.append(bundle)
    return bundles


async def test_all_inputs_come_in_order_and_no_bundle_is_too_large() -> None:
    bundles = await all_bundles(TaskFeed(range(2_500), task_s=1e-6))
    tasks = [task for bundle in bundles for task in bundle.tasks]
    assert [(index, pickle.loads(data)) for index, data in tasks] == [(index, index) for index in range(2_500)]
    assert max(len(bundle.tasks) for bundle in bundles) <= MAX_BUNDLE_TASKS


async def test_a_bundle_lasts_half_a_second_by_what_tasks_take() -> None:
    feed = TaskFeed(itertools.count(), task_s=0.1)
    sizes = [len(bundle.tasks) for _ in range(2) if (bundle := await feed.next_bundle(MOST))]
    for _ in range(200):
        feed.measured(0.05)
    sizes += [len(bundle.tasks) for _ in range(1) if (bundle := await feed.next_bundle(MOST))]
    sizes += [len(bundle.tasks) for _ in range(1) if (bundle := await feed.next_bundle(3))]
    feed.close()
    assert sizes == [5, 5, pytest.approx(10, abs=1), 3]


async def test_large_inputs_are_split_over_bundles() -> None:
    bundles = await all_bundles(TaskFeed([bytes(400_000)] * 5, task_s=1e-3))
    assert [len(bundle.tasks) for bundle in bundles] == [2, 2, 1]


async def test_a_slow_input_does_not_wait_for_the_next_one() -> None:
    given: queue.Queue[int | None] = queue.Queue()
    feed = TaskFeed(iter(given.get, None), task_s=1e-3)
    for number in range(3):
        given.put(number)
        bundle = await feed.next_bundle(MOST)
        assert bundle is not None
        assert [index for index, _ in bundle.tasks] == [number]
    given.put(None)
    assert await feed.next_bundle(MOST) is None


async def test_an_endless_iterator_is_read_only_a_little_ahead() -> None:
    num_read = 0

    def inputs() -> Iterator[int]:
        nonlocal num_read
        while True:
            num_read += 1
            yield num_read

    feed = TaskFeed(inputs(), task_s=1e-6)
    for _ in range(20):
        assert await feed.next_bundle(MOST) is not None
    assert num_read <= 20 * MAX_BUNDLE_TASKS + _MAX_READ_TASKS + 1
    feed.close()


async def test_errors_of_the_inputs_come_after_the_tasks_before_them() -> None:
    def inputs() -> Iterator[int]:
        yield 1
        raise KeyError("no more")

    feed = TaskFeed(inputs(), task_s=1e-3)
    assert await feed.next_bundle(MOST) == TaskBundle(tasks=((0, pickle.dumps(1, pickle.HIGHEST_PROTOCOL)),))
    with pytest.raises(KeyError, match="no more"):
        await feed.next_bundle(MOST)


async def test_inputs_that_end_the_process_are_an_error_of_the_caller() -> None:
    def inputs() -> Iterator[int]:
        yield 1
        raise SystemExit(3)

    feed = TaskFeed(inputs(), task_s=1e-3)
    assert await feed.next_bundle(MOST) is not None
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match=r"the inputs raised SystemExit\(3\)"):
            await feed.next_bundle(MOST)


async def test_an_input_that_fits_in_no_bundle_is_named() -> None:
    with pytest.raises(TooLarge, match="task 1"):
        await all_bundles(TaskFeed([0, bytes(MAX_BUNDLE_BYTES)], task_s=1e-3))


async def test_an_input_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(TypeError, match="the input of task 1 cannot be pickled: cannot pickle 'generator' object"):
        await all_bundles(TaskFeed([0, (number for number in ())], task_s=1e-3))

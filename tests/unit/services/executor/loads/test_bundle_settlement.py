"""What is stored and what goes back when a bundle is settled, on the bus in memory."""

from dataclasses import replace

import pytest

from elasticflow.services.executor.loads.bundle_queue import BundleSettlement, PulledBundle
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import (
    TaskBundle,
    TaskResult,
    decode_bundle,
    decode_results,
    encode_bundle,
)
from elasticflow.shared.messages.worker_protocol.task_running import TaskDone
from elasticflow.shared.runtime.bus.streams import StreamLimits
from elasticflow.shared.state.load import Load, LoadPhase
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from tests.support.shared_pool import stored_results

POOL = "p"
LOAD = Load(
    load_id="a",
    identity="1f",
    tenant="lab",
    spec=LoadSpec(task_function="jobs.fold:fold", task_s=1.0, max_attempts=2),
    phase=LoadPhase.OPEN,
    useful_share=None,
    opened_at_s=0.0,
)
SUBJECT = subjects.tasks(POOL, "a")


@pytest.fixture
async def bus() -> MemoryBus:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    return bus


async def pulled(bus: MemoryBus, bundle: TaskBundle | None = None) -> PulledBundle:
    """The next bundle of the queue; first the given one is added."""
    if bundle is not None:
        await bus.append(SUBJECT, encode_bundle(bundle), message_id=f"first-{bundle.num_failures}")
    (item,) = await (await bus.tasks(POOL, "a")).pull(1, 1.0)
    return PulledBundle(LOAD, item, decode_bundle(item.data))


async def waiting(bus: MemoryBus) -> list[TaskBundle]:
    return [decode_bundle(item.data) for item in await (await bus.tasks(POOL, "a")).pull(9, 0.0)]


async def results(bus: MemoryBus) -> dict[int, TaskResult]:
    stored = [decode_results(record.data) for record in await stored_results(bus, "a", pool=POOL)]
    return {result.index: result for batch in reversed(stored) for result in batch.results}  # the first one counts


def done(index: int, value: bytes) -> TaskDone:
    return TaskDone(bundle_id=1, index=index, result=value, task_s=0.5)


def bundle(*indices: int, num_failures: int = 0) -> TaskBundle:
    return TaskBundle(tasks=tuple((index, b"x%d" % index) for index in indices), num_failures=num_failures)


async def test_results_are_stored_and_nothing_goes_back(bus: MemoryBus) -> None:
    settlement = BundleSettlement(bus, POOL, "n", await pulled(bus, bundle(0, 1)))
    settlement.done(done(0, b"zero"))
    settlement.done(done(1, b"one"))
    await settlement.settle()
    assert {index: result.value for index, result in (await results(bus)).items()} == {0: b"zero", 1: b"one"}
    assert await waiting(bus) == []


async def test_a_large_result_is_the_digest_of_its_file(bus: MemoryBus) -> None:
    settlement = BundleSettlement(bus, POOL, "n", await pulled(bus, bundle(0)))
    settlement.done(replace(done(0, b""), file_digest="a" * 64))
    await settlement.settle()
    result = (await results(bus))[0]
    assert (result.value, result.file_digest) == (None, "a" * 64)


async def test_unfinished_tasks_go_back_together_without_a_failure(bus: MemoryBus) -> None:
    settlement = BundleSettlement(bus, POOL, "n", await pulled(bus, bundle(0, 1, 2, num_failures=1)))
    settlement.done(done(0, b"zero"))
    await settlement.settle([1, 2])
    assert await waiting(bus) == [bundle(1, 2, num_failures=1)]


async def test_a_task_that_fails_is_tried_alone_until_its_last_attempt(bus: MemoryBus) -> None:
    settlement = BundleSettlement(bus, POOL, "n", await pulled(bus, bundle(0, 1)))
    settlement.failed(0, "boom")
    settlement.failed(1, "bang")
    await settlement.settle()
    assert await results(bus) == {}
    again = await pulled(bus)
    assert again.bundle == bundle(0, num_failures=1)
    settlement = BundleSettlement(bus, POOL, "n", again)
    settlement.failed(0, "boom again", "line 1")
    await settlement.settle()
    result = (await results(bus))[0]
    assert (result.value, result.error, result.traceback, result.attempts) == (None, "boom again", "line 1", 2)
    assert await waiting(bus) == [bundle(1, num_failures=1)]


async def test_results_of_consecutive_tasks_are_one_message(bus: MemoryBus) -> None:
    settlement = BundleSettlement(bus, POOL, "n", await pulled(bus, bundle(0, 1, 2, 5, 6)))
    for index in (6, 0, 5, 1):
        settlement.done(done(index, b""))
    await settlement.settle([2])
    messages = await stored_results(bus, "a", pool=POOL)
    assert [subjects.tasks_of_results(stored.subject) for stored in messages] == [("a", 0, 1), ("a", 5, 6)]


async def test_a_failure_beside_a_full_stream_is_the_result() -> None:
    bus = MemoryBus(limits=StreamLimits(task_bytes=60))
    await bus.ensure_pool(POOL)
    settlement = BundleSettlement(bus, POOL, "n", await pulled(bus, bundle(0)))
    settlement.failed(0, "boom")
    await settlement.settle()
    result = (await results(bus))[0]
    assert (result.error, result.attempts) == ("boom", 1)
    assert await waiting(bus) == []


async def test_the_tasks_of_a_load_that_has_ended_do_not_go_back(bus: MemoryBus) -> None:
    settlement = BundleSettlement(bus, POOL, "n", await pulled(bus, bundle(0)))
    settlement.done(done(0, b"zero"))
    await settlement.drop()
    assert await waiting(bus) == []
    assert await results(bus) == {}

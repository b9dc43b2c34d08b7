"""Folders of padding loads that have the same id, one after the other."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticflow.client.loads import pickled_value_of, result_folder
from elasticflow.errors import ResultFileUnusable
from elasticflow.services.executor.decisions.local_events_and_actions import UsePaddingSlots
from elasticflow.services.executor.loads import padding_slot
from elasticflow.services.executor.loads.bundle_queue import BundleQueue, BundleSettlement, PulledBundle
from elasticflow.services.executor.loads.load_runners import LoadRunners
from elasticflow.services.executor.loads.padding_slot import PaddingSlot, RunnerSettings
from elasticflow.services.executor.processes.code_archive import CodeArchive
from elasticflow.services.executor.worker.tasks.run_tasks import write_result_file
from elasticflow.shared.messages import events, subjects
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import TaskBundle, TaskResult, encode_bundle
from elasticflow.shared.messages.worker_protocol.task_running import RunTasks, TaskDone
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import WorkItem
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.fold import loads as fold
from elasticflow.shared.state.load import Load
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.histories import NOW_S, pool

POOL = "p"


class StandingClock(SystemClock):
    def now_s(self) -> float:
        return NOW_S


SPEC = LoadSpec(task_function="jobs.fold:fold", task_s=1.0)
BUNDLE = TaskBundle(tasks=((0, b""),))
LARGE = b"a large result of the first tenant"


class FakeRunner:
    """Has no task to run. orders: of all runners. started: since the test has cleared it."""

    orders: list[RunTasks]
    started: asyncio.Event

    @classmethod
    async def start(cls, fork: Any, order: RunTasks, *, task_timeout_s: float) -> "FakeRunner":
        cls.orders.append(order)
        cls.started.set()
        return cls()

    def run(self, bundle_id: int, tasks: Any) -> "FakeRunner":
        return self

    def __aiter__(self) -> "FakeRunner":
        return self

    async def __anext__(self) -> Any:
        raise StopAsyncIteration

    async def preempt(self) -> None:
        pass

    def kill(self) -> None:
        pass


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[RunTasks]:
    FakeRunner.orders, FakeRunner.started = [], asyncio.Event()
    monkeypatch.setattr(padding_slot, "TaskRunner", FakeRunner)
    return FakeRunner.orders


def two_loads(monkeypatch: pytest.MonkeyPatch, *, by_identity: bool = True) -> tuple[Load, Load]:
    """Load "a" of a tenant that the pool has forgotten, and load "a" of another tenant."""
    monkeypatch.setattr(fold, "MAX_ENDED_LOADS", 1)
    first = events.LoadOpened(
        load_id="a", tenant="first", spec=SPEC, useful_share=0.9, at_s=NOW_S, by_identity=by_identity
    )
    history = pool(1).then(first)
    of_first = history.state.loads["a"]
    other = replace(first, load_id="b", tenant="second")
    ends = [events.LoadCancelled(load_id=name, reason="", at_s=NOW_S + s) for s, name in enumerate(("a", "b"))]
    history.then(other, *ends)
    assert "a" not in history.state.loads
    return of_first, history.then(replace(first, tenant="second")).state.loads["a"]


async def execute(slot: PaddingSlot, load: Load, bus: MemoryBus) -> None:
    item: Any = WorkItem
    pulled = PulledBundle(load, item, BUNDLE)
    await slot.execute(1, pulled, BundleSettlement(bus, POOL, "n0", pulled))


def settings(data_dir: Path, bus: MemoryBus) -> RunnerSettings:
    async def no_process(_: object) -> Any:
        raise AssertionError("a fake runner has no process")

    return RunnerSettings(
        node_id="n0",
        device="cpu",
        cpu_share=1.0,
        code=CodeArchive(bus, POOL, data_dir),
        fork=no_process,
        logs=data_dir / "load-logs",
        results=data_dir / "results",
        log=SilentLog(),
    )


async def test_a_later_load_of_the_same_id_sees_nothing_of_the_earlier_one(
    tmp_path: Path, orders: list[RunTasks], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = MemoryBus()
    slot = PaddingSlot(0, settings(tmp_path, bus))
    first, second = two_loads(monkeypatch)
    for load in (first, first, second):
        await execute(slot, load, bus)
    of_first, of_second = orders  # and the second load gets a runner of its own
    assert (of_first.load_id, of_second.load_id) == ("a", "a")
    assert Path(of_first.log_file).parent != Path(of_second.log_file).parent
    assert of_first.results_folder != of_second.results_folder


async def test_bundles_of_the_later_load_are_executed_as_its_own(
    tmp_path: Path, orders: list[RunTasks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if this executor has seen the first load end and the second one open in one step."""
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    runners = LoadRunners(bus, POOL, settings(tmp_path, bus))
    running = asyncio.create_task(runners.run())
    for number, load in enumerate(two_loads(monkeypatch)):
        runners.use(UsePaddingSlots(gpus=(0,), loads=(load,)))
        await bus.append(subjects.tasks(POOL, load.bus_name), encode_bundle(BUNDLE), message_id=f"bundle {number}")
        async with asyncio.timeout(60):
            await FakeRunner.started.wait()
        FakeRunner.started.clear()
        assert Path(orders[number].results_folder) == tmp_path / "results" / load.folder_name
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize("by_identity", [True, False], ids=["new client", "older client"])
async def test_an_executor_pulls_and_answers_under_the_name_of_the_opening(
    tmp_path: Path, orders: list[RunTasks], monkeypatch: pytest.MonkeyPatch, by_identity: bool
) -> None:
    """Tasks that an earlier load of the id has left are not executed; those of older clients still are."""
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    first, second = two_loads(monkeypatch, by_identity=by_identity)
    assert (first.bus_name != second.bus_name) == by_identity
    left = TaskBundle(tasks=((7, b"of the first tenant"),))
    await bus.append(subjects.tasks(POOL, first.bus_name), encode_bundle(left), message_id="left")
    await bus.append(subjects.tasks(POOL, second.bus_name), encode_bundle(BUNDLE), message_id="own")
    wanted = asyncio.Event()
    queue = BundleQueue(bus, POOL, second, num_wanted=lambda: 1, on_pulled=wanted.set, log=SilentLog())
    running = asyncio.create_task(queue.run())
    queue.want()
    async with asyncio.timeout(60):
        await wanted.wait()
    pulled = queue.ready.popleft()
    assert pulled.bundle == (BUNDLE if by_identity else left)
    ((index, _),) = pulled.bundle.tasks
    settlement = BundleSettlement(bus, POOL, "n0", pulled)
    settlement.done(TaskDone(bundle_id=1, index=index, result=b"", task_s=1.0))
    await settlement.settle()
    stored = [record.subject for record in bus.broker.stream(streams.result_stream(POOL)).messages.values()]
    assert stored == [subjects.results(POOL, second.bus_name, index, index)]
    running.cancel()
    await asyncio.wait({running})


async def test_a_flood_of_unreadable_bundles_is_one_line_and_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list[tuple[str, dict[str, Any]]]()

    class Log(SilentLog):
        def error(self, event: str, **keys: Any) -> None:
            lines.append((event, keys))

    bus, load = MemoryBus(), two_loads(monkeypatch)[1]
    await bus.ensure_pool(POOL)
    for number in range(50):
        await bus.append(subjects.tasks(POOL, load.bus_name), b"junk", message_id=f"junk-{number}")
    await bus.append(subjects.tasks(POOL, load.bus_name), encode_bundle(BUNDLE), message_id="bundle")
    wanted = asyncio.Event()
    queue = BundleQueue(bus, POOL, load, num_wanted=lambda: 1, on_pulled=wanted.set, log=Log())
    queue._clock = StandingClock()
    running = asyncio.create_task(queue.run())
    queue.want()
    async with asyncio.timeout(60):
        await wanted.wait()
    running.cancel()
    await asyncio.wait({running})
    dropped, counted = lines
    assert (dropped[0], dropped[1]["load_id"]) == ("BundleDropped", "a")
    assert (counted[0], counted[1]["sender"], counted[1]["number"]) == ("RefusalsCounted", "second", 49)


async def test_a_client_reads_the_files_of_its_own_load_only(
    tmp_path: Path, orders: list[RunTasks], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = MemoryBus()
    first, second = two_loads(monkeypatch)
    await execute(PaddingSlot(0, settings(tmp_path, bus)), first, bus)
    digest = write_result_file(Path(orders[0].results_folder), LARGE)
    result = TaskResult(index=0, file_digest=digest, attempts=1, task_s=1.0, node_id="n0")
    assert pickled_value_of(result, result_folder(tmp_path, first)) == LARGE
    with pytest.raises(ResultFileUnusable, match="No such file"):
        pickled_value_of(result, result_folder(tmp_path, second))

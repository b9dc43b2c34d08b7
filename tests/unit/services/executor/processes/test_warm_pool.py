"""At most one process of a slot has a CUDA context while a job trains there."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.services.executor.processes import launcher
from elasticflow.services.executor.processes.launcher import Launcher
from elasticflow.services.executor.processes.worker_isolation import NOT_ISOLATED, WorkerIsolation
from elasticflow.shared.messages.job_spec import TORCHRUN, JobSpec
from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan, WarmUp

pytestmark = pytest.mark.asyncio

WAIT_S = 30.0


class Process:
    """The ends of forked processes are futures. Warm ones end with their channel."""

    def __init__(self, pid: int, slots: tuple[int, ...]) -> None:
        self.pid, self.slots = pid, slots
        self.exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.sent: list[Any] = []
        self.channel = SimpleNamespace(send=self.sent.append, close=self.end)

    def end(self) -> None:
        if not self.exited.done():
            self.exited.set_result("ended")

    async def follow(self, *_: Any, **__: Any) -> str:
        return await self.exited


class Node:
    """A launcher with two slots whose processes are fakes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, isolation: WorkerIsolation) -> None:
        monkeypatch.setattr(launcher, "_PAUSE_S", 0.0)
        self.processes: list[Process] = []
        monkeypatch.setattr(Launcher, "fork", self._fork)
        self.launcher = Launcher(
            data_dir=folder,
            node_id="a",
            on_event=lambda *_: None,
            device="cuda",
            gpu_names=["0", "1"],
            warm_workers=2,
            isolation=isolation,
        )
        self.warming = asyncio.create_task(self.launcher.warm_pool.run())

    async def _fork(self, slots: Sequence[int] = ()) -> Any:
        await asyncio.sleep(0)
        self.processes.append(process := Process(len(self.processes), tuple(slots)))
        return process

    def contexts(self) -> list[int]:
        """Processes that were warmed up and live, by GPU index."""
        warmed = [(each, message) for each in self.processes for message in each.sent if isinstance(message, WarmUp)]
        return sorted(message.gpu_index for each, message in warmed if not each.exited.done())

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():  # noqa: ASYNC110 - the pool signals nothing
                await asyncio.sleep(0.001)

    async def launch(self, gpu_index: int, *, shown_gpus: tuple[int, ...] = (), **spec: Any) -> Process:
        """Of a job on this slot. shown_gpus: all slots of the job."""
        values = {"training_function": "a:B", "global_batch_size": 1, "max_iterations": 1, "deadline_in_s": 9.0, **spec}
        assignment = Assignment(
            job_id="a",
            plan=GenerationPlan(generation=1, world_size=1),
            rank=0,
            spec=JobSpec(**values),
            checkpoint_dir="",
            device="cuda",
            gpu_index=gpu_index,
            shown_gpus=shown_gpus or (gpu_index,),
        )
        handle = await self.launcher.launch(assignment)
        return next(each for each in self.processes if each.pid == handle.pid)


async def running_node(
    folder: Path, monkeypatch: pytest.MonkeyPatch, isolation: WorkerIsolation
) -> AsyncIterator[Node]:
    made = Node(folder, monkeypatch, isolation)
    await made.until(lambda: made.contexts() == [0, 1])
    yield made
    made.warming.cancel()
    for process in made.processes:
        process.end()
    await asyncio.wait({made.warming, *made.launcher._followers})


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async for made in running_node(tmp_path, monkeypatch, NOT_ISOLATED):
        yield made


@pytest.fixture
async def separating_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    isolation = WorkerIsolation(Isolation(namespaces=True), gpu_files=("nvidia0", "nvidia1"))
    async for made in running_node(tmp_path, monkeypatch, isolation):
        yield made


async def test_a_job_takes_the_context_of_its_slot_and_no_other_follows_until_it_ends(node: Node) -> None:
    worker = await node.launch(1)
    assert any(isinstance(message, WarmUp) for message in worker.sent)
    node.processes[0].end()  # the pool replaces that one meanwhile
    await node.until(lambda: len(node.processes) == 3)
    assert node.launcher.warm_pool.ready.keys() == {0}
    assert node.contexts() == [0, 1]
    worker.end()
    await node.until(lambda: node.launcher.warm_pool.ready.keys() == {0, 1})


@pytest.mark.parametrize(
    "job",
    [
        {"training_function": f"a:{TORCHRUN}"},
        {"environment": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
        {"environment": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}},
    ],
    ids=["torchrun", "allocator", "precision"],
)
async def test_a_job_that_cannot_use_the_context_gets_a_new_process_and_the_context_ends(
    node: Node, job: dict[str, Any]
) -> None:
    waiting = node.launcher.warm_pool.ready[0]
    worker = await node.launch(0, **job)
    assert worker.pid != waiting
    assert not any(isinstance(message, WarmUp) for message in worker.sent)
    assert node.contexts() == [1]
    worker.end()
    await node.until(lambda: node.contexts() == [0, 1])


async def test_a_slot_of_two_workers_is_free_once_both_are_gone(node: Node) -> None:
    """Of one that leaves with a switch, and of the one that replaces it."""
    first, second = await node.launch(0), await node.launch(0)
    first.end()
    await asyncio.sleep(0.01)
    assert node.launcher.warm_pool.ready.keys() == {1}
    second.end()
    await node.until(lambda: node.launcher.warm_pool.ready.keys() == {0, 1})


async def test_other_variables_of_a_job_keep_the_warm_worker(node: Node) -> None:
    waiting = node.launcher.warm_pool.ready[0]
    assert (await node.launch(0, environment={"WANDB_MODE": "offline"})).pid == waiting


async def test_where_gpus_are_separated_a_warm_worker_sees_its_own(separating_node: Node) -> None:
    node = separating_node
    assert sorted(process.slots for process in node.processes) == [(0,), (1,)]
    waiting = node.launcher.warm_pool.ready[1]
    assert (await node.launch(1)).pid == waiting


async def test_where_gpus_are_separated_a_job_with_several_gets_processes_that_see_them_all(
    separating_node: Node,
) -> None:
    """CUDA does not find a GPU that appears later."""
    node = separating_node
    workers = [await node.launch(slot, shown_gpus=(0, 1)) for slot in (0, 1)]
    assert [worker.slots for worker in workers] == [(0, 1), (0, 1)]
    assert node.contexts() == []


async def test_else_a_job_with_several_gpus_has_warm_workers(node: Node) -> None:
    waiting = node.launcher.warm_pool.ready[1]
    assert (await node.launch(1, shown_gpus=(0, 1))).pid == waiting

"""The manager gives workers the secrets of their generations."""

import asyncio
from pathlib import Path
from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import SendToWorker, StartWorker, WorkerId
from elasticflow.services.executor.processes.generation_secrets import GenerationSecrets
from elasticflow.services.executor.processes.manager import WorkerManager
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, PrepareSwitch
from elasticflow.shared.runtime.process.secret_sealing import SecretKeys
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from tests.support.histories import spec

SECRETS = GenerationSecrets(b"of the pool")


class Worker:
    """A handle that keeps what it is sent."""

    pid = 1

    def __init__(self, assignment: Assignment) -> None:
        self.assignment, self.sent = assignment, list[Any]()

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Launcher:
    """Also the store of code."""

    def __init__(self) -> None:
        self.launched: asyncio.Queue[Worker] = asyncio.Queue()

    async def launch(self, assignment: Assignment) -> Worker:
        await self.launched.put(worker := Worker(assignment))
        return worker

    async def folder(self, tenant: str, digest: str) -> str:
        return ""


async def gpu_left(gpu_index: int) -> None:
    pass


async def test_a_worker_gets_the_secrets_of_its_generations(tmp_path: Path) -> None:
    launcher: Any = Launcher()
    manager = WorkerManager(
        launcher,
        gpu_left=gpu_left,
        make_launcher=lambda _: launcher,
        note=lambda _: None,
        shut_down=lambda _: None,
        log=SilentLog(),
        data_dir=tmp_path,
        secret_keys=SecretKeys(),
        generation_secrets=SECRETS,
    )
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(0)
    assignment = Assignment(job_id="a", generation=3, rank=0, world_size=2, spec=spec(), checkpoint_dir="unused")
    manager.act(StartWorker(assignment=assignment, tenant="lab"))
    switch = PrepareSwitch(generation=4, rendezvous_rank=0, world_size=3, rendezvous_size=3)
    manager.act(SendToWorker(worker=WorkerId("a", 3, 0), message=switch))
    worker = await launcher.launched.get()
    await asyncio.sleep(0)
    assert worker.assignment.generation_secret == SECRETS.of("a", 3)
    (sent,) = (message for message in worker.sent if isinstance(message, PrepareSwitch))
    assert sent.generation_secret == SECRETS.of("a", 4)
    assert sent.generation_secret not in f"{sent}{worker.assignment}", "they are logged"
    running.cancel()
    await asyncio.wait({running})

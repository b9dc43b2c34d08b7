"""A real pool on this machine for one test: nats-server, services and nodes under the supervisor, and a client.

A test can kill each process. It awaits events, not time: the only wall time is the timeout after which it fails.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil
from typer.testing import CliRunner

from elasticflow.client.client import Client
from elasticflow.client.ledger import write_ledger
from elasticflow.client.pool_endpoint import Endpoint, RunFile, read_run_file
from elasticflow.local.supervisor import Supervisor
from elasticflow.local.up_plan import UpPlan
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import NodeJoined
from elasticflow.shared.messages.export import read_export
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.replay.command import app as replaying
from elasticflow.simulator.replay.recorded_ledger import Entry, read_entries

POOL = "faults"
PATIENCE_S = 120.0  # for awaited events; much longer than they take
_POLL_S = 0.02
RATES = {1: 40.0, 2: 60.0, 4: 80.0}  # iterations/s of tiny_jobs.Steps, accurate enough for a promise
CONFIG = PoolConfig(
    stop_free=True,
    resize_cost_s=1.0,
    throughput_margin=0.5,
    max_restarts=50,  # here the test, not the job, causes the crashes
    max_nodes_lost_at_start=50,
    curves={"steps/b8": RATES, "digits/b150": {1: 20.0, 2: 30.0}, "snapshots/b100": {1: 20.0, 2: 40.0}},
)
T = TypeVar("T")


def job(job_class: JobClass = JobClass.SLO, **changes: object) -> JobSpec:
    """`tiny_jobs.Steps` with a known curve. An SLO job has a very late deadline."""
    spec = JobSpec(
        training_function="testbed.user_code.tiny_jobs:Steps",
        model_name="steps",
        global_batch_size=8,
        hyperparameters={"step_s": 0.02},
        max_iterations=100,
        job_class=job_class,
        deadline_in_s=3600.0 if job_class is not JobClass.BEST_EFFORT else None,
    )
    return replace(spec, **changes)


def slowed_down(spec: JobSpec, file: Path) -> JobSpec:
    """The job does not end while this file exists, which is made here."""
    file.touch()
    return replace(spec, hyperparameters={**spec.hyperparameters, "slow_down": str(file)})


@dataclass
class RunningPool:
    """reports: lines of the supervisor, for example about processes that ended."""

    data_dir: Path
    url: str
    bus: NatsBus
    client: Client
    reports: list[str] = field(default_factory=list[str])

    # -- processes ---------------------------------------------------------------------------------------

    @property
    def run(self) -> RunFile:
        run = read_run_file(self.data_dir)
        assert run is not None, "the supervisor has ended"
        return run

    def pid(self, name: str) -> int | None:
        """Process id of a service or server; None while it does not run."""
        process = self.run.processes.get(name)
        return process.pid if process is not None and psutil.pid_exists(process.pid) else None

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self.run.processes.items()}

    def fork_servers(self) -> list[psutil.Process]:
        """The fork servers of all running nodes."""
        executors = [pid for name in self.run.processes if name.startswith("executor") and (pid := self.pid(name))]
        return [server for pid in executors for keeper in children(pid) for server in children(keeper.pid)]

    def workers(self) -> list[psutil.Process]:
        return [worker for server in self.fork_servers() for worker in children(server.pid)]

    async def kill(self, name: str) -> list[psutil.Process]:
        """Send SIGKILL. Return once the process and all that it started have ended."""
        while True:
            pid = await eventually(lambda: self.pid(name), f"{name} is up")
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by itself
                process = psutil.Process(pid)
                orphans = process.children(recursive=True)
                process.send_signal(signal.SIGKILL)
                await eventually(lambda pid=pid: self.pid(name) != pid, f"{name} ({pid}) is gone")
                return orphans

    async def restarted(self, name: str, pid: int) -> None:
        await eventually(lambda: self.pid(name) not in (None, pid), f"{name} runs again")

    # -- events -------------------------------------------------------------------------------------------

    async def acknowledged(self, spec: JobSpec, job_id: str, *, unless: type[Retry] | None = None) -> str:
        """Submit a job, repeatedly until the server acknowledges it. Raises `unless`."""
        return await persistently(lambda: self.client.post(spec, job_id=job_id), unless=unless)

    async def node_joins(self, node_id: str, num_gpus: int) -> None:
        """Add a node without an executor: jobs are admitted and placed, but no worker trains them."""
        joined = NodeJoined(node_id=node_id, incarnation="1", num_gpus=num_gpus, device="cpu", at_s=self.client.now_s())
        data = codec.encode(joined, id=f"joined-{node_id}", recorded_at_s=joined.at_s)
        await self.bus.append_event(subjects.node(POOL, node_id), data, message_id=f"joined-{node_id}")

    async def when(self, holds: Callable[[PoolState], bool], what: str) -> PoolState:
        """The first state of the ledger for which this holds."""

        async def first() -> PoolState:
            async with contextlib.aclosing(self.client.states()) as states:
                async for state in states:
                    seen.append(state)
                    if holds(state):
                        return state
            raise AssertionError("the ledger is followed for ever")

        seen: list[PoolState] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await persistently(first)
        except TimeoutError:
            raise AssertionError(f"it never came that {what}: {in_words(seen[-1])}") from None

    async def ended(self, job_ids: Iterable[str]) -> PoolState:
        """The state once these jobs have ended, and all their workers too."""
        job_ids = tuple(job_ids)

        def all_ended(state: PoolState) -> bool:
            return all((job := state.ended_jobs.get(job_id)) is not None and not job.stopping for job_id in job_ids)

        return await self.when(all_ended, f"{', '.join(job_ids)} have ended")

    async def ledger(self) -> tuple[Entry, ...]:
        """The whole ledger. Fails unless `replay --verify` reproduces every decision."""
        file = self.data_dir.parent / "ledger.eflow"
        await persistently(lambda: write_ledger(self.client, file))
        replay = await asyncio.to_thread(CliRunner().invoke, replaying, [str(file), "--verify"])
        assert replay.exit_code == 0, replay.output
        with file.open("rb") as opened:
            return read_entries(read_export(opened))


@contextlib.asynccontextmanager
async def running_pool(
    folder: Path,
    *,
    num_nodes: int,
    replicas: dict[str, int],
    config: PoolConfig = CONFIG,
    nats_url: str = "",
) -> AsyncIterator[RunningPool]:
    """A pool that is healthy when the body begins. Fails if a process of it is left afterwards."""
    data_dir = folder / "pool"
    plan = UpPlan(
        data_dir=data_dir,
        pool=POOL,
        num_nodes=num_nodes,
        slots_per_node=2,
        device="cpu",
        replicas=replicas,
        config=config,
        nats_url=nats_url,
    )
    reports: list[str] = []
    supervisor = Supervisor(plan, reports.append)
    healthy: asyncio.Future[RunFile] = asyncio.get_running_loop().create_future()
    up = asyncio.create_task(supervisor.run(healthy.set_result))
    try:
        await asyncio.wait([up, healthy], return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            await up
        url = healthy.result().nats_url
        bus = await connect_nats(url, name="test")
        try:
            endpoint = Endpoint(nats_url=url, pool=POOL)
            client = Client(bus, endpoint, tenant="lab", clock=SystemClock())
            yield RunningPool(data_dir, url, bus, client, reports)
            assert not up.done(), "the supervisor has ended"
        finally:
            await bus.close()
    finally:
        up.cancel()
        await asyncio.wait([up])
        if not up.cancelled() and (error := up.exception()) is not None:
            raise error
    await eventually(lambda: not left_behind(data_dir), f"nothing is left: {left_behind(data_dir)}")


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []


def left_behind(data_dir: Path) -> list[str]:
    """Processes of this folder, recognized by their environment or by a path in their arguments."""
    found: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            command = " ".join(process.cmdline())
            owner = process.environ().get("EF_DATA_DIR", "")
            mine = owner == str(data_dir) or f"{data_dir}{os.sep}" in command
            if mine and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {command}")
    return found


async def eventually(holds: Callable[[], T | None], what: str) -> T:
    """Wait until this is true, and return its value."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not (value := holds()):  # noqa: ASYNC110 - processes report to no one
                await asyncio.sleep(_POLL_S)
            return value
    except TimeoutError:
        raise AssertionError(f"it never came that {what}") from None


async def persistently(ask: Callable[[], Awaitable[T]], *, unless: type[Retry] | None = None) -> T:
    """Repeat the call until it returns, because the test kills servers. Raises `unless`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await ask()
            except Retry as error:
                if unless is not None and isinstance(error, unless):
                    raise
                await asyncio.sleep(_POLL_S)


def in_words(state: PoolState) -> str:
    """The pool as a failed test prints it."""
    jobs = [
        f"{job.job_id}: {job.phase} g{job.generation} on {list(job.gpus)} iteration {job.iteration}"
        f"{' broken' if job.broken else ''}{f' stopping {job.stopping}' if job.stopping else ''} {job.explanation}"
        for job in (*state.live_jobs.values(), *state.ended_jobs.values())
    ]
    nodes = [f"{node.node_id}: {'alive' if node.alive else 'lost'}" for node in state.nodes.values()]
    return "\n  ".join([f"sequence {state.sequence}", *jobs, *nodes])


# --- kill -9 of one process ----------------------------------------------------------------------------


PROCESSES = {  # those that the supervisor does not know by name
    "fork server": RunningPool.fork_servers,
    "worker": RunningPool.workers,
    "another worker": RunningPool.workers,
    "runner": RunningPool.workers,  # in a pool without jobs
}


async def kill_one(pool: RunningPool, victim: str, rng: np.random.Generator) -> list[psutil.Process]:
    """What the victim had started, which has to follow it. Waits until there is such a process."""
    if victim not in PROCESSES:
        return await pool.kill(victim)
    while True:
        candidates = await eventually(lambda: PROCESSES[victim](pool), f"there is a {victim}")
        process = candidates[rng.integers(len(candidates))]
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by itself
            orphans = process.children(recursive=True)
            process.kill()
            return orphans

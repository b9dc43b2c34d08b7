"""`eflow` over a real nats-server, with a real admission service: in this process, or as one of its own."""

import asyncio
import contextlib
import importlib
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from elasticflow.cli.app import app
from elasticflow.services.admission.service import serve
from elasticflow.shared.errors import NoResponder
from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.process.settings import Settings
from elasticflow.shared.runtime.service.ledger_encoding import subject_of
from elasticflow.shared.runtime.service.run_service import Process
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.histories import LINEAR, gpus
from testbed.terminal_user import Ran

POOL = "default"
WAIT_S = 240.0
IN_OTHER_PROCESSES = (
    "replay",
    "simulate",
    "suits",
    "node",
    "up",
)  # these commands start another program, or become one
JOB_FILE = """
from elasticflow import ElasticJob

class Line(ElasticJob):
    hyperparameters = {"global_batch_size": 64, "lr": 1, "depth": 1}
    max_iterations = 100
    model_name = "linear"
"""


class CommandLinePool:
    """A pool with nodes of four GPUs and a known curve, and the `eflow` command for its server."""

    def __init__(self, url: str, bus: NatsBus, folder: Path, pool: str = POOL) -> None:
        self.url, self.bus, self.folder, self.pool = url, bus, folder, pool
        self.now_s = SystemClock().now_s()
        self._num_appended = 0

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
        root = str(Path(__file__).parents[1])
        return kept | {"NATS_URL": self.url, "PYTHONPATH": root, "EF_DATA_DIR": str(self.folder)} | more

    async def start(self, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "elasticflow",
            *arguments,
            cwd=self.folder,
            env=self.environment(**environment),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def beside(self, *arguments: str, **environment: str) -> Ran:
        """Run the command in a process of its own, beside other commands."""
        process = await self.start(*arguments, **environment)
        async with asyncio.timeout(WAIT_S):
            out, err = await process.communicate()
        assert process.returncode is not None
        assert b"Traceback" not in err, err.decode()
        return Ran(status=process.returncode, out=out.decode(), err=err.decode())

    async def eflow(self, *arguments: str, **environment: str) -> Ran:
        """Run the command in a thread of this process: a process takes longer to start than the rest of a test."""
        if not arguments or arguments[0] in IN_OTHER_PROCESSES:
            return await self.beside(*arguments, **environment)
        unset = {name: None for name in os.environ if name.startswith(("EF_", "NATS_"))}
        here = {**unset, "NATS_URL": self.url, "EF_DATA_DIR": str(self.folder), **environment}
        async with asyncio.timeout(WAIT_S):
            ran = await asyncio.to_thread(self._invoke, arguments, here)
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return Ran(status=ran.exit_code, out=ran.stdout, err=ran.stderr)

    def _invoke(self, arguments: Sequence[str], environment: Mapping[str, str | None]) -> Any:
        """Leaves nothing of the user's files loaded: another test has others of the same names."""
        path, loaded = sys.path[:], {*sys.modules}
        importlib.invalidate_caches()  # the test may have written the file just now
        with contextlib.chdir(self.folder):
            try:
                return CliRunner().invoke(app, arguments, env=environment, prog_name="eflow")
            finally:
                sys.path[:] = path
                for name in {*sys.modules} - loaded:
                    if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(self.folder)):
                        del sys.modules[name]

    async def append(self, *messages: Any) -> None:
        """Append events, and decisions of the allocator and of placement, as the services do."""
        for message in messages:
            self._num_appended += 1
            message_id = f"test-{self._num_appended}"
            data = codec.encode(message, id=message_id, recorded_at_s=self.now_s)
            decided = isinstance(message, events.PlanDecided)
            subject = subjects.plan(self.pool) if decided else subject_of(self.pool, message)
            await self.bus.append(subject, data, message_id=message_id)

    async def decide(self, service: str, *decided: Any) -> None:
        based_on = await self.bus.last_sequence(self.pool)
        await self.append(events.PlanDecided(service=service, based_on=based_on, now_s=self.now_s, events=decided))

    async def place(self, job_id: str, *names: str, generation: int = 1) -> None:
        """Allocation and placement of one job, alone in the pool."""
        share = events.AllocationDecided(num_gpus_by_job={job_id: len(names)}, valid_until_s=None, at_s=self.now_s)
        placed = events.PlacedJob(job_id=job_id, generation=generation, gpus=gpus(*names))
        await self.decide("allocator", share)
        await self.decide("placement", events.PlacementDecided(placements=(placed,), at_s=self.now_s))

    async def train(self, job_id: str, *, iteration: int, generation: int = 1) -> None:
        """Report that the job has started and reached this iteration."""
        await self.append(
            events.GenerationStarted(
                job_id=job_id, generation=generation, num_gpus=2, iteration=0, at_s=self.now_s + 1.0
            ),
            events.JobProgressed(
                job_id=job_id,
                generation=generation,
                iteration=iteration,
                iterations_per_s=2.0,
                metrics={"loss": 0.25},
                at_s=self.now_s + 2.0,
            ),
        )


@asynccontextmanager
async def command_line_pool(
    url: str, folder: Path, pool: str = POOL, num_nodes: int = 2
) -> AsyncIterator[CommandLinePool]:
    """folder: of the user. The server has no such pool yet."""
    async with AsyncExitStack() as stack:
        bus = await connect_nats(url, name="test")
        stack.push_async_callback(bus.close)
        await bus.ensure_pool(pool)
        (folder / "line.py").write_text(JOB_FILE)
        made = CommandLinePool(url, bus, folder, pool)
        await _configure(made, num_nodes)
        settings = Settings.from_environment({"NATS_URL": url, "EF_DATA_DIR": str(folder), "EF_POOL": pool})
        process = Process(
            settings=settings,
            bus=await connect_nats(url, name="admission"),
            clock=SystemClock(),
            log=SilentLog(),  # its lines would be among those of a command
            metrics=Metrics("admission", pool),
        )
        stack.push_async_callback(process.bus.close)
        await stack.enter_async_context(_beside(serve(process)))
        async with asyncio.timeout(WAIT_S):
            while not await _admission_replies(bus, pool):  # noqa: ASYNC110 - a subject can only be polled
                await asyncio.sleep(0.01)
        yield made


async def _configure(cli: CommandLinePool, num_nodes: int) -> None:
    """Configure the pool, and add its nodes."""
    config = PoolConfig(resize_cost_s=1.0, throughput_margin=0.0, curves={"linear/b64": LINEAR})
    await cli.decide("operator", events.PoolConfigured(config=config, at_s=cli.now_s))
    for number in range(num_nodes):
        joined = events.NodeJoined(
            node_id=f"node-{number}", incarnation=f"first-{number}", num_gpus=4, device="cpu", at_s=cli.now_s
        )
        await cli.append(joined)


@asynccontextmanager
async def _beside(serving: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(serving)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _admission_replies(bus: NatsBus, pool: str) -> bool:
    """Whether admission replies, even to an invalid request."""
    try:
        await bus.request(subjects.quote("default", pool), b"?", WAIT_S)
    except NoResponder:
        return False
    return True

"""`eflow up` on real processes: it starts all, restarts killed ones, and leaves none behind."""

import asyncio
import fcntl
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import RunFile, find_endpoint, holder_of, read_run_file
from elasticflow.shared import machine_code
from elasticflow.shared.runtime.process.http_server import page_is_ok
from elasticflow.shared.state.job import Phase

WAIT_S = 240.0
ROOT = Path(__file__).parents[2]
SERVICES = {"admission", "allocator", "placement", "monitor"}


class Laptop:
    """A folder in which `eflow up` runs, without nodes unless given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_dir = folder / ".eflow"

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "elasticflow",
            *arguments,
            cwd=self.folder,
            env=kept | {"PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def eflow(self, *arguments: str) -> tuple[int, str, str]:
        process = await self.start(*arguments)
        async with asyncio.timeout(WAIT_S):
            out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def up(self, *nodes: str) -> RunFile:
        status, _, err = await self.eflow("up", "--detach", *(nodes or ("--nodes", "0")))
        log = self.data_dir / "services" / "up.log"
        assert status == 0, err + log.read_text()
        return self.run()

    def run(self) -> RunFile:
        run = read_run_file(self.data_dir)
        assert run is not None
        return run

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():  # noqa: ASYNC110 - other processes report to no one
                await asyncio.sleep(0.05)

    async def until_explained(self, words: str) -> str:
        """Until the history of the job has these words; the job must not fail."""
        async with asyncio.timeout(WAIT_S):
            while words not in (explained := (await self.eflow("explain", "job"))[1]):
                assert "failed" not in explained, explained
        return explained

    async def until_placed(self, job_id: str) -> None:
        """Its workers start now."""
        endpoint = find_endpoint(data_dir=self.data_dir)
        async with asyncio.timeout(WAIT_S), Client.connect(endpoint) as client, aclosing(client.states()) as states:
            async for state in states:
                job = state.job(job_id)
                if job is not None and job.phase is Phase.ADMITTED and job.gpus:
                    return

    def pids(self) -> set[int]:
        run = self.run()
        return {run.pid, *(process.pid for process in run.processes.values())}


@pytest.fixture
async def laptop(tmp_path: Path) -> AsyncIterator[Laptop]:
    made = Laptop(tmp_path)
    yield made
    pid = holder_of(made.data_dir)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    await made.until(lambda: holder_of(made.data_dir) is None)


async def test_up_in_the_background_and_down_again(laptop: Laptop) -> None:
    settings = ("--reserve", "1", "--confidence", "0.9")
    status, out, err = await laptop.eflow("up", "--detach", "--nodes", "0", *settings, "--json")
    assert status == 0, err
    shown = json.loads(out)
    assert set(shown["processes"]) == SERVICES | {"nats-server"}
    assert "***" in shown["nats_url"]
    pids = laptop.pids()
    for name in SERVICES:
        port = shown["processes"][name]["metrics_port"]
        assert await page_is_ok("127.0.0.1", port, "/healthz", timeout_s=WAIT_S)

    status, _, err = await laptop.eflow("up", "--nodes", "0")
    assert (status, f"process {shown['pid']} already runs a pool" in err) == (2, True)

    status, out, err = await laptop.eflow("events", "--json")
    assert status == 0, err
    assert '"reserve_nodes": 1' in out
    assert '"confidence": 0.9' in out
    status, out, err = await laptop.eflow("down")
    assert (status, "stopped the pool" in out) == (0, True), err
    assert not any(_runs(pid) for pid in pids)
    assert not (laptop.data_dir / "run.json").exists()


async def test_ending_up_during_a_background_start_ends_all_its_processes(laptop: Laptop) -> None:
    process = await laptop.start("up", "--detach", "--nodes", "0")
    await laptop.until(lambda: holder_of(laptop.data_dir) is not None)
    started = holder_of(laptop.data_dir)
    process.terminate()
    await process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    await laptop.until(lambda: not _runs(started))


async def test_killed_processes_are_restarted_and_no_message_is_lost(laptop: Laptop) -> None:
    before = await laptop.up()
    events = json.loads((await laptop.eflow("events", "--json"))[1])
    for name in ("placement", "nats-server"):
        os.kill(before.processes[name].pid, signal.SIGKILL)

    def restarted() -> bool:
        after = laptop.run().processes
        return all(
            name in after and after[name].pid != before.processes[name].pid for name in ("placement", "nats-server")
        )

    await laptop.until(restarted)
    assert laptop.run().nats_url == before.nats_url
    again = json.loads((await laptop.eflow("events", "--json"))[1])
    assert again[: len(events)] == events


async def test_ctrl_c_stops_all_in_order(laptop: Laptop) -> None:
    process = await laptop.start("up", "--nodes", "0", "--replicas", "admission=2")
    await laptop.until(
        lambda: ((run := read_run_file(laptop.data_dir)) is not None and run.healthy) or process.returncode
    )
    assert {"admission-0", "admission-1"} <= set(laptop.run().processes)
    pids = laptop.pids()
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert b"eflow submit" in out
    assert not any(_runs(pid) for pid in pids)


async def test_ctrl_c_while_the_scheduler_is_compiled(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = machine_code.folder()
    assert kept is not None
    compiled = laptop.folder / kept.name  # another cache folder, whose lock this test holds
    compiled.mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(laptop.folder))
    with (compiled / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = await laptop.start("up", "--nodes", "0")
        assert process.stderr is not None
        async with asyncio.timeout(WAIT_S):
            assert b"compiling the scheduler, once" in await process.stderr.readline()
        children = psutil.Process(process.pid).children(recursive=True)
        assert [child.cmdline()[-1] for child in children] == [
            "elasticflow.shared.scheduling.warm_up"
        ]  # and no service
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(WAIT_S):
            _, err = await process.communicate()
    assert (process.returncode, b"Traceback" in err) == (130, False), err
    assert not any(child.is_running() for child in children)


async def test_a_killed_supervisor_leaves_no_process_and_breaks_no_promise(laptop: Laptop) -> None:
    """The job is starting, and all nodes are gone at once: none of its starts counts as a lost one."""
    nodes = ("--nodes", "2", "--slots", "1")
    (laptop.folder / "pool.toml").write_text("heartbeat_timeout_s = 60.0")  # a slow start reports no node as lost
    await laptop.up(*nodes, "--config", "pool.toml")
    job = (str(ROOT / "examples" / "digits.py"), "--gpus", "2", "--iterations", "10", "--name", "job")
    status, _, err = await laptop.eflow("submit", *job, "--deadline", "30m", "--detach")
    assert status == 0, err
    pids = laptop.pids()
    await laptop.until_placed("job")
    os.kill(laptop.run().pid, signal.SIGKILL)
    await laptop.until(lambda: not any(_runs(pid) for pid in pids))
    status, out, _ = await laptop.eflow("down")
    assert (status, out) == (0, "no pool runs in .eflow\n")
    await laptop.up(*nodes)
    explained = await laptop.until_explained("finished at iteration 10")
    assert "was started again, so its workers of this job are gone" in explained


async def test_a_process_that_cannot_start_is_named(laptop: Laptop) -> None:
    (laptop.folder / "pool.toml").write_text("colour = 1")
    status, _, err = await laptop.eflow("up", "--detach", "--nodes", "0", "--config", "pool.toml")
    assert (status, "colour is not a setting of a pool" in err) == (2, True)
    status, _, err = await laptop.eflow("up", "--nodes", "0", "--nats-url", "nats://127.0.0.1:1")
    assert (status, "no NATS JetStream at nats://127.0.0.1:1" in err) == (2, True)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

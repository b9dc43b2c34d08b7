"""An older version of this repository beside the working tree: its wheel, and services that change between both."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elasticflow.client.client import Client
from elasticflow.client.operator_decisions import configure
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.local.supervisor import start_process
from elasticflow.local.up_plan import UpPlan
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.http_server import page_is_ok
from testbed.real_pool import CONFIG, POOL, RunningPool
from tests.support.installation import ROOT, SOURCES, install, python

# The version to upgrade from and to go back to: the commit of the last release. RELEASING.md says when it moves.
OLD_COMMIT = "812643a28a81d5b7148ccbd0c0c80ab2e2b26cac"
# Modules by their names in that commit: one that moves in the working tree does not move there.
OLD_WARM_UP = "shared.scheduling.compiled.warm_up"
OLD_CODEC = "shared.messages.envelope.codec"
STOP_ORDER = ("admission", "allocator", "placement", "executor", "monitor")


@dataclass(frozen=True, slots=True)
class Version:
    """site: the folder that holds its package `elasticflow`."""

    name: str
    site: Path

    def command(self, module: str) -> tuple[str, ...]:
        """As `module_command` in this version: all processes below run its code too."""
        script = self.site / "elasticflow" / "shared" / "runtime" / "process" / "run_module.py"
        return (sys.executable, "-P", str(script), module)

    def constant(self, module: str, name: str) -> int:
        code = f"import elasticflow.{module} as module; print(module.__file__, module.{name})"
        file, value = python("-P", "-c", code, cwd=self.site, PYTHONPATH=str(self.site)).split()
        assert Path(file).is_relative_to(self.site), f"{file} is not of {self.name}"
        return int(value)


NEW = Version("new", ROOT)


def commit_is_there(commit: str) -> bool:
    """Whether this checkout has the commit: a shallow clone or an unpacked sdist may lack it."""
    return _is_in_git(f"{commit}^{{commit}}")


def module_is_in(commit: str, module: str) -> bool:
    """Whether the commit has this module of `elasticflow`."""
    return _is_in_git(f"{commit}:{module.replace('.', '/')}.py")


def _is_in_git(name: str) -> bool:
    command = ("git", "-C", str(ROOT), "cat-file", "-e", name)
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:  # no git
        return False


def installed_version(commit: str, folder: Path) -> Version:
    """The wheel of this commit, installed without a network and with its scheduler compiled (about a minute)."""
    checkout = folder / "checkout"
    checkout.mkdir(parents=True)
    archive = subprocess.run(
        ("git", "-C", str(ROOT), "archive", commit, "--", *SOURCES), capture_output=True, check=True
    )
    subprocess.run(("tar", "-x", "-C", str(checkout)), input=archive.stdout, check=True)
    python("-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", cwd=checkout)
    (wheel,) = (folder / "dist").glob("*.whl")
    old = Version("old", install(wheel, folder / "site"))
    python(*old.command(f"elasticflow.{OLD_WARM_UP}")[1:], cwd=folder)
    return old


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    version: Version
    process: asyncio.subprocess.Process
    log_file: Path

    async def is_healthy(self) -> bool:
        """As its page says, at the port that its log names."""
        whole_lines = self.log_file.read_text().rpartition("\n")[0].splitlines()
        port = next((json.loads(line)["port"] for line in whole_lines if '"metrics served"' in line), None)
        return port is not None and await page_is_ok("127.0.0.1", port, "/healthz", timeout_s=2.0)


@dataclass
class PoolOfVersions:
    """pool: without a supervisor. plan: of all processes. running: by the name of the process. num_started: so far."""

    pool: RunningPool
    plan: UpPlan
    running: dict[str, RunningService] = field(default_factory=dict[str, RunningService])
    num_started: int = 0

    @property
    def names(self) -> list[str]:
        """Of the services, and of the executor of each node."""
        return [process.name for process in self.plan.processes(self.pool.url, self.plan.nodes())]

    async def start(self, name: str, version: Version) -> None:
        """Return once it is healthy. Fails if it ends instead."""
        service = await self._started(name, version)
        async with asyncio.timeout(120.0):
            while not await service.is_healthy():
                assert service.process.returncode is None, service.log_file.read_text()[-2000:]
                await asyncio.sleep(0.05)
        self.running[name] = service

    async def refused(self, name: str, version: Version) -> tuple[int, str]:
        """The exit status and the log of a process that ends by itself."""
        service = await self._started(name, version)
        try:
            async with asyncio.timeout(120.0):
                status = await service.process.wait()
        finally:
            if service.process.returncode is None:
                service.process.kill()
                await service.process.wait()
        return status, service.log_file.read_text()

    async def stop(self, name: str) -> None:
        service = self.running.pop(name)
        assert service.process.returncode is None, f"{name} ended by itself: {service.log_file.read_text()[-2000:]}"
        service.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60.0):
            status = await service.process.wait()
        assert status == 0, f"{name} of {service.version.name}: {service.log_file.read_text()[-2000:]}"

    async def replace(self, name: str, version: Version) -> None:
        await self.stop(name)
        await self.start(name, version)

    async def stop_all(self) -> None:
        for stage in STOP_ORDER:
            await asyncio.gather(*(self.stop(name) for name in list(self.running) if name.startswith(stage)))

    async def _started(self, name: str, version: Version) -> RunningService:
        planned = next(p for p in self.plan.processes(self.pool.url, self.plan.nodes()) if p.name == name)
        environment: Mapping[str, str] = {
            **{key: value for key, value in planned.environment.items() if key != "PYTHONPATH"},
            "EF_INSTANCE": f"{name}-{version.name}",
            "EF_METRICS_PORT": "0",  # the service takes a free one: one that is free now may be taken by then
        }
        self.num_started += 1
        log_file = self.pool.data_dir / "services" / f"{name}-{version.name}-{self.num_started}.log"
        process = await start_process(version.command(f"elasticflow.services.{planned.service}"), environment, log_file)
        return RunningService(version=version, process=process, log_file=log_file)


@contextlib.asynccontextmanager
async def pool_of_versions(folder: Path, *, num_nodes: int) -> AsyncIterator[PoolOfVersions]:
    """A server and a configured pool; the body starts its processes. None is left afterwards."""
    data_dir = folder / "pool"
    with EmbeddedServer(data_dir / "nats", log_file=data_dir / "nats.log") as server:
        await configure(server.url, POOL, CONFIG, SystemClock())
        bus = await connect_nats(server.url, name="test")
        client = Client(bus, Endpoint(nats_url=server.url, pool=POOL), tenant="lab", clock=SystemClock())
        plan = UpPlan(
            data_dir=data_dir, pool=POOL, num_nodes=num_nodes, slots_per_node=2, device="cpu", nats_url=server.url
        )
        versions = PoolOfVersions(RunningPool(data_dir, server.url, bus, client), plan)
        try:
            yield versions
        finally:
            for service in versions.running.values():
                if service.process.returncode is None:
                    service.process.kill()
                    await service.process.wait()
            await bus.close()

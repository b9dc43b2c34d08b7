"""A pool for a benchmark: embedded NATS, the services as processes, and nodes without executors."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import NodeJoined, PlanDecided, PoolConfigured
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig, TenantQuota
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.bus.streams import StreamLimits
from elasticflow.shared.runtime.process.clock import SystemClock

CLOCK = SystemClock()
CURVES = {  # iterations/s by GPUs, of the shapes that A100 tables have
    "resnet/b64": {1: 6.8, 2: 11.8, 4: 18.3, 8: 21.3, 16: 21.5, 32: 22.7},
    "resnet/b256": {1: 1.8, 2: 3.4, 4: 6.2, 8: 10.4, 16: 15.2, 32: 17.8},
    "bert/b64": {1: 2.1, 2: 3.9, 4: 7.0, 8: 11.1, 16: 10.6},
}


@dataclass
class Cluster:
    """A running benchmark pool. processes: by service and replica."""

    server: EmbeddedServer
    bus: NatsBus
    data_dir: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    async def open_pool(self, pool: str, *, num_nodes: int, gpus_per_node: int) -> None:
        """Configure a pool with known curves, and let its nodes join."""
        await self.bus.ensure_pool(pool)
        large = TenantQuota(max_command_bytes_per_day=1 << 30)  # a burst has more bytes than the default allows
        quotas = {"bench": large, "flood": large}
        config = PoolConfig(curves=CURVES, heartbeat_timeout_s=1e6, resize_cost_s=2.0, quotas=quotas)
        await append_decision(self.bus, pool, PoolConfigured(config=config, at_s=CLOCK.now_s()))
        for number in range(num_nodes):
            joined = NodeJoined(
                node_id=f"node-{number:03}",
                incarnation="paper",
                num_gpus=gpus_per_node,
                device="cuda",
                at_s=CLOCK.now_s(),
            )
            await append_event(self.bus, subjects.node(pool, joined.node_id), joined, f"joined-{number}")

    async def start(self, service: str, pool: str, *, replica: int = 0) -> None:
        """Start one replica of a service and wait until it has caught up."""
        name = f"{service}-{pool}-{replica}"
        environment = os.environ | {
            "NATS_URL": self.server.url,
            "EF_POOL": pool,
            "EF_INSTANCE": name,
            "EF_DATA_DIR": str(self.data_dir),
            "EF_LOG_FORMAT": "json",
            "EF_LOG_LEVEL": "info",
            "EF_DIE_WITH_PARENT": "1",
        }
        log = self.data_dir / f"{name}.log"
        with log.open("wb") as sink:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", f"elasticflow.services.{service}"],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=sink,
            )
        while b"caught up" not in log.read_bytes():
            assert self.processes[name].poll() is None, log.read_text()[-2000:]
            await asyncio.sleep(0.05)

    async def start_planners(self, pool: str, *, admissions: int = 1) -> None:
        for service in ("allocator", "placement"):
            await self.start(service, pool)
        for replica in range(admissions):
            await self.start("admission", pool, replica=replica)

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds that each service with its children, and the NATS server, has used so far."""
        used = {name: process.pid for name, process in self.processes.items()}
        assert self.server.pid is not None
        used["nats-server"] = self.server.pid
        return {name: _cpu_s(pid) for name, pid in used.items()}

    def stop_services(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(timeout=20)
        self.processes.clear()


@contextlib.asynccontextmanager
async def running_cluster() -> AsyncIterator[Cluster]:
    """NATS in a folder of its own; everything is gone afterwards. Its pools let one tenant submit everything."""
    with tempfile.TemporaryDirectory(prefix="ef-bench-") as folder:
        data_dir = Path(folder)
        with EmbeddedServer(data_dir / "nats", log_file=data_dir / "nats.log") as server:
            limits = StreamLimits(submit_commands_per_tenant=100_000)
            bus = await connect_nats(server.url, name="benchmark", limits=limits)
            cluster = Cluster(server=server, bus=bus, data_dir=data_dir)
            try:
                yield cluster
            finally:
                cluster.stop_services()
                await bus.close()


def _cpu_s(pid: int) -> float:
    process = psutil.Process(pid)
    times = [member.cpu_times() for member in (process, *process.children(recursive=True))]
    return sum(spent.user + spent.system for spent in times)


async def append_event(bus: NatsBus, subject: str, message: codec.Message, message_id: str) -> int:
    data = codec.encode(message, id=message_id, recorded_at_s=CLOCK.now_s())
    return await bus.append(subject, data, message_id=message_id)


async def append_decision(bus: NatsBus, pool: str, *plan_events: PoolConfigured) -> int:
    """An operator's decision, at the head of an empty plan."""
    decision = PlanDecided(service="operator", based_on=0, now_s=CLOCK.now_s(), events=plan_events)
    data = codec.encode(decision, id=f"configure-{pool}", recorded_at_s=CLOCK.now_s())
    return await bus.append(subjects.plan(pool), data, message_id=f"configure-{pool}", expected_last_subject_sequence=0)


# --- submissions ---------------------------------------------------------------------------------------


SEED = 20


def submissions(num_jobs: int, *, seed: int = SEED, longest_s: float = 600.0, prefix: str = "job") -> list[SubmitJob]:
    """Jobs of 5 to longest_s seconds on one GPU (log-uniform), due in 0.5 to 1.5 times that."""
    chance = np.random.default_rng(seed)
    profiles = sorted(CURVES)
    commands: list[SubmitJob] = []
    for number in range(num_jobs):
        model_name, batch = profiles[chance.integers(len(profiles))].split("/b")
        rate = CURVES[f"{model_name}/b{batch}"][1]
        duration_s = float(np.exp(chance.uniform(np.log(5.0), np.log(longest_s))))
        spec = JobSpec(
            training_function="benchmark:OnPaper",
            model_name=model_name,
            global_batch_size=int(batch),
            max_iterations=max(1, int(duration_s * rate)),
            deadline_in_s=duration_s * float(chance.uniform(0.5, 1.5)),
        )
        commands.append(SubmitJob(job_id=f"{prefix}-{number:05}", tenant="bench", spec=spec))
    return commands


def as_bytes(command: SubmitJob, now_s: float) -> bytes:
    return codec.encode(command, id=f"submit-{command.job_id}", recorded_at_s=now_s)

"""Each process of a pool has its own key, and a tenant's job runs from its submission to its end."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from elasticflow.client.client import Client
from elasticflow.client.configure_pool import configure
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.local.supervisor import compile_scheduler
from elasticflow.shared import machine_code
from elasticflow.shared.messages.events import JobAdmitted
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.run_module import module_command
from elasticflow.shared.state.job import Phase
from tests.support.executor_process import ROOT
from tests.support.real_pool import CONFIG, PATIENCE_S, job
from tests.support.secured_pool import POOL, SecuredPool, secured_pool

SERVICES = ("admission", "allocator", "placement", "monitor")


@contextlib.asynccontextmanager
async def running_processes(pool: SecuredPool, folder: Path) -> AsyncIterator[None]:
    """The four services with their key, and a node with its own."""
    processes: list[asyncio.subprocess.Process] = []
    environment = os.environ | {
        "NATS_URL": pool.url,
        "EF_POOL": POOL,
        "EF_DATA_DIR": str(folder),
        "EF_DIE_WITH_PARENT": "1",
        "PYTHONPATH": str(ROOT),  # of the function: workers do not see the working directory
    }
    node = {"EF_NODE_ID": "n1", "EF_SLOTS": "2", "EF_DEVICE": "cpu"}
    services = [(name, pool.keys.seed_file(Role.SERVICE, "services"), {"EF_INSTANCE": name}) for name in SERVICES]
    try:
        for name, seed, own in (*services, ("executor", pool.keys.seed_file(Role.NODE, "n1"), node)):
            with (folder / f"{name}.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *module_command(f"elasticflow.services.{name}"),
                    env=environment | own | {"EF_NATS_CREDS": str(seed)},
                    stdout=log,
                    stderr=log,
                )
            processes.append(process)
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*(process.wait() for process in processes))


async def test_a_job_of_a_tenant_is_admitted_trains_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    if not machine_code.is_complete():  # four services would compile it at once
        await compile_scheduler(os.environ, tmp_path / "compilation.log", print)
    async with secured_pool(tmp_path, (Role.TENANT, "alice"), (Role.NODE, "n1")) as pool:
        monkeypatch.setenv("EF_NATS_CREDS", str(pool.keys.seed_file(Role.OPERATOR, "operator")))
        await configure(pool.url, POOL, CONFIG, SystemClock())
        monkeypatch.setenv("EF_NATS_CREDS", str(pool.keys.seed_file(Role.TENANT, "alice")))
        endpoint = Endpoint(nats_url=pool.url, pool=POOL)
        async with running_processes(pool, data), Client.connect(endpoint, tenant="alice") as client:
            async with contextlib.aclosing(client.states()) as states:
                async for state in states:
                    if "n1" in state.nodes:
                        break
            decision = await client.submit(job(), job_id="a", timeout=PATIENCE_S)
            assert isinstance(decision, JobAdmitted)
            ended = await client.wait("a", timeout=PATIENCE_S)
            assert ended.phase is Phase.FINISHED
            assert ended.tenant == "alice"

"""Each process of a pool has its own key, and a tenant's job runs from its submission to its end."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from elasticflow.client.client import Client
from elasticflow.client.operator_decisions import configure
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.local.supervisor import compile_scheduler
from elasticflow.shared import machine_code
from elasticflow.shared.messages.events import JobAdmitted
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.run_module import module_command
from elasticflow.shared.state.job import Phase
from testbed.real_pool import CONFIG, PATIENCE_S, job
from testbed.secured_pool import POOL, SecuredPool, secured_pool
from tests.support.executor_process import ROOT

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
    async with secured_pool(tmp_path, (Role.TENANT, "alice"), (Role.TENANT, "bob"), (Role.NODE, "n1")) as pool:
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
            async with asyncio.timeout(PATIENCE_S):  # a history is stored after the job's state
                while "JobFinished" not in {entry.type for entry in await client.history("a")}:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await check_commands_of_tenants(pool, tmp_path)


async def check_commands_of_tenants(pool: SecuredPool, folder: Path) -> None:
    """Each sees its own jobs."""

    async def eflow(tenant: str, *arguments: str) -> tuple[int, str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
        own = {"EF_TENANT": tenant, "EF_NATS_CREDS": str(pool.keys.seed_file(Role.TENANT, tenant))}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "elasticflow", *arguments),
            cwd=folder,
            env=kept | own | {"NATS_URL": pool.url, "EF_POOL": POOL, "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert b"Traceback" not in err, err.decode()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    own, other = [await eflow(tenant, "jobs", "--all", "--json") for tenant in ("alice", "bob")]
    assert [job["job_id"] for job in json.loads(own[1])] == ["a"]
    assert json.loads(other[1]) == []
    status, out, _ = await eflow("alice", "explain", "a")
    assert status == 0
    assert out.splitlines()[0].count("submitted by alice") == 1
    assert (await eflow("bob", "explain", "a"))[0] == 1
    assert (await eflow("bob", "cancel", "a"))[0] == 1
    status, _, message = await eflow("alice", "nodes")
    assert (status, message.count("use the key of an operator")) == (2, 1)

"""`eflow doctor` names each misconfiguration of a pool and of a machine, and nothing else."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticflow.client import doctor
from elasticflow.client.doctor import Finding
from elasticflow.client.ledger import LedgerView
from elasticflow.client.operator_decisions import configure
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.local.supervisor import kept_token
from elasticflow.services.monitor.tenant_views import NewHistories, ViewWriter
from elasticflow.shared.errors import LedgerBroken
from elasticflow.shared.extras import torch_problem
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats import pool_check
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.runtime.bus.streams import MAX_COMMAND_BYTES, MAX_PAYLOAD_BYTES
from elasticflow.shared.runtime.process.clock import Clock, SystemClock
from elasticflow.shared.runtime.process.files import keep_token
from elasticflow.shared.state.pool import PoolState
from testbed.secured_pool import POOL as SECURED
from testbed.secured_pool import secured_pool, serving
from tests.support.certificates import make_certificates
from tests.support.job_files import keep_files
from tests.support.shared_pool import POOL
from tests.support.worker_events import joined
from tests.unit.services.monitor.test_tenant_views import fold
from tests.unit.shared.state.test_tenant_view import shared_pool


class WrongClock(SystemClock):
    def now_s(self) -> float:
        return super().now_s() + 60.0


@pytest.fixture
async def endpoint(nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 0)
    await configure(nats_server.url, POOL, None, SystemClock())
    kept_token(tmp_path)
    return Endpoint(nats_url=nats_server.url, pool=POOL, data_dir=tmp_path)


def monitor_url(folder: Path) -> str:
    (ports,) = folder.glob("*.ports")
    return json.loads(ports.read_text())["monitoring"][0]


async def problems(endpoint: Endpoint, *, clock: Clock | None = None, replicas: int = 1, **environment: str) -> str:
    findings = await doctor.examine(endpoint, replicas=replicas, clock=clock or SystemClock(), environment=environment)
    assert all(isinstance(finding, Finding) for finding in findings)
    return "\n".join(finding.problem for finding in findings if finding.problem)


async def test_a_sound_pool_has_no_problem(endpoint: Endpoint) -> None:
    assert await problems(endpoint) == ""


async def test_a_token_that_others_can_read(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "nats" / "token").chmod(0o644)
    assert "mode 0644 lets other users read it; run: chmod 600" in await problems(endpoint)


async def test_a_secret_of_workers_that_others_can_read(endpoint: Endpoint, tmp_path: Path) -> None:
    keep_token(tmp_path / "workers.secret")
    assert await problems(endpoint) == ""
    (tmp_path / "workers.secret").chmod(0o640)
    assert "workers.secret: mode 0640 lets other users read it; run: chmod 600" in await problems(endpoint)


async def test_nodes_without_the_secret_of_workers_or_isolation(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    bus = await connect_nats(endpoint.nats_url, name="test")
    event = replace(joined("first", "node-7"), workers_secret="none", isolation="none")
    await bus.append(subjects.node(POOL, "node-7"), codec.encode(event, id="j", recorded_at_s=1.0), message_id="j")
    await bus.close()
    found = await problems(endpoint, EF_ISOLATION="auto")
    assert "workers on node-7 trust each connection" in found
    assert "jobs on node-7 run as the user of their executor" in found, "the environment of the asker does not count"


async def test_a_server_elsewhere_without_tls_and_keys(endpoint: Endpoint) -> None:
    found = await problems(replace(endpoint, nats_url="nats://t@nats.invalid:4222"))
    assert "messages to nats.invalid are not encrypted: set up TLS" in found
    assert "give each its own key with `eflow keys`" in found
    assert "no NATS JetStream at nats://***@nats.invalid:4222" in found


async def test_files_that_cannot_be_used(endpoint: Endpoint) -> None:
    found = await problems(endpoint, EF_NATS_CREDS="/nowhere.seed")
    assert "EF_NATS_CREDS=/nowhere.seed: cannot be read" in found


async def test_files_of_a_job_that_the_ledger_does_not_know(endpoint: Endpoint, tmp_path: Path) -> None:
    keep_files(tmp_path, "lost", "0123456789abcdef")
    assert "has files of a job that the ledger does not know (lost): NATS has older data" in await problems(endpoint)
    findings = await doctor.examine(endpoint, replicas=1, clock=SystemClock(), environment={})
    assert [finding.check for finding in findings if finding.problem] == ["files"]


async def test_too_few_replicas(endpoint: Endpoint) -> None:
    found = await problems(endpoint, replicas=3)
    assert f"nats stream edit {streams.ledger_stream(POOL)} --replicas 3" in found


async def test_a_stream_that_is_missing(endpoint: Endpoint) -> None:
    bus = await connect_nats(endpoint.nats_url, name="test")
    await bus._connection.api(f"STREAM.DELETE.{streams.submit_stream(POOL)}")
    await bus.close()
    assert f"stream EF_SUBMIT_{POOL} is missing: run `eflow configure --pool {POOL}`" in await problems(endpoint)


async def updated(name: str, endpoint: Endpoint, changes: dict[str, Any]) -> None:
    """As an operator edits a stream."""
    bus = await connect_nats(endpoint.nats_url, name="test")
    config = (await bus._connection.api(f"STREAM.INFO.{name}"))["config"]
    await bus._connection.api(f"STREAM.UPDATE.{name}", config | changes)
    await bus.close()


async def test_a_stream_of_an_older_version(endpoint: Endpoint) -> None:
    name = f"OBJ_{streams.code_bucket(POOL)}"
    await updated(name, endpoint, {"allow_rollup_hdrs": True})
    assert f"stream {name} has allow_rollup_hdrs: true" in await problems(endpoint)


async def test_a_queue_that_takes_commands_of_any_size(endpoint: Endpoint) -> None:
    name = streams.submit_stream(POOL)
    await updated(name, endpoint, {"max_msg_size": -1})
    assert f"nats stream edit {name} --max-msg-size {MAX_COMMAND_BYTES}" in await problems(endpoint)


async def test_a_stream_of_commands_without_limits_for_tenants(endpoint: Endpoint) -> None:
    name = streams.submit_stream(POOL)
    await updated(name, endpoint, {"discard_new_per_subject": False, "max_msgs_per_subject": -1})
    found = await problems(endpoint)
    assert f"run `nats stream edit {name} --max-msgs-per-subject 500 --discard-per-subject`" in found
    await updated(name, endpoint, {"discard_new_per_subject": True, "max_msgs_per_subject": 9})
    assert await problems(endpoint) == "", "another limit is the operator's choice"


async def test_a_wrong_clock(endpoint: Endpoint) -> None:
    assert "its clock is 60.0 s ahead of that of NATS" in await problems(endpoint, clock=WrongClock())


async def test_a_plan_that_cannot_be_read(endpoint: Endpoint) -> None:
    bus = await connect_nats(endpoint.nats_url, name="test")
    sequence = await bus.append(subjects.plan(POOL), b"damaged", message_id="d")
    await bus.close()
    assert f"eflow configure --skip-plan-up-to {sequence}" in await problems(endpoint)


async def test_a_changed_ledger(endpoint: Endpoint) -> None:
    bus = await connect_nats(endpoint.nats_url, name="test")
    decision = PlanDecided(service="allocator", based_on=1, now_s=1.0, chain="00" * 16, events=())
    sequence = await bus.append(subjects.plan(POOL), codec.encode(decision, id="d", recorded_at_s=1.0), message_id="d")
    await bus.close()
    assert f"not those on which the decision at {sequence} rests" in await problems(endpoint)


async def test_a_ledger_that_cannot_be_read_is_read_once(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """NATS says nothing for seconds before that is known."""
    reads = list[LedgerView]()

    async def broken(ledger: LedgerView) -> None:
        reads.append(ledger)
        raise LedgerBroken(POOL, 3, 5)

    monkeypatch.setattr(LedgerView, "state_and_chain", broken)
    assert (await problems(endpoint)).count("lacks messages 3 to 4") > 1
    assert len(reads) == 1


async def test_the_user_root(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "this is the user root, and jobs run as the user of their executor" in await problems(endpoint)


async def test_a_machine_without_namespaces(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "namespaces_problem", lambda: "clone: Operation not permitted")
    found = await problems(endpoint, EF_ISOLATION="auto")
    assert "jobs see the processes and files of their executor's user: clone: Operation not permitted" in found


async def test_a_full_disk(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 1 << 60)
    assert f"{endpoint.data_dir} has " in await problems(endpoint)


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0", "3.0.0"])
def test_a_version_of_torch_that_was_not_tested(version: str) -> None:
    assert f"torch {version} is installed, but torch" in (torch_problem(version) or "")


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu"])
def test_a_version_of_torch_that_fits(version: str) -> None:
    assert torch_problem(version) is None


@pytest.mark.parametrize(("interval", "problem"), [("always", ""), ("2m", "may lose what it has acknowledged")])
async def test_a_server_that_acknowledges_too_early(
    endpoint: Endpoint, tmp_path: Path, interval: str, problem: str
) -> None:
    config = tmp_path / "server.conf"
    config.write_text(f"""
        listen: "127.0.0.1:-1"
        http: "127.0.0.1:-1"
        jetstream {{ store_dir: "{tmp_path}/store", sync_interval: {interval} }}
    """)
    async with serving(config):
        page = monitor_url(tmp_path)
        elsewhere = replace(endpoint, data_dir=None)
        findings = await doctor.examine(
            elsewhere, replicas=1, clock=SystemClock(), environment={}, monitor_urls=(page,)
        )
    found = "\n".join(finding.problem for finding in findings if finding.problem)
    assert problem in found
    assert bool(problem) == bool(found)


async def test_a_server_that_takes_small_messages_only(endpoint: Endpoint, tmp_path: Path) -> None:
    """Its default: decisions of large pools would never be stored."""
    config = tmp_path / "small.conf"
    config.write_text(f'listen: "127.0.0.1:-1"\njetstream {{ store_dir: "{tmp_path}/small" }}')
    async with serving(config) as url:
        found = await problems(replace(endpoint, nats_url=url))
    assert f"set max_payload: {MAX_PAYLOAD_BYTES}" in found


@pytest.mark.parametrize("version", ["2.11.9", "1.99.0", "", "unknown"])
async def test_a_server_that_is_too_old(endpoint: Endpoint, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "server_version", version)
    assert f"NATS has version {version or 'unknown'}: upgrade its servers to 2.12" in await problems(endpoint)


@pytest.mark.parametrize("version", ["2.12.0", "2.13.1-RC.1", "3.0.0"])
def test_a_server_that_is_new_enough(version: str) -> None:
    assert pool_check.version_problem(version) is None


async def test_an_account_that_is_almost_full(endpoint: Endpoint, tmp_path: Path) -> None:
    config = tmp_path / "account.conf"
    config.write_text(f"""
        listen: "127.0.0.1:-1"
        max_payload: {MAX_PAYLOAD_BYTES}
        jetstream {{ store_dir: "{tmp_path}/account" }}
        accounts {{ lab {{ jetstream {{ max_file: 900MB }}, users: [{{ user: u, password: p }}] }} }}
    """)
    async with serving(config) as url:
        own = url.replace("//", "//u:p@")
        await configure(own, POOL, None, SystemClock())
        found = await problems(replace(endpoint, nats_url=own))
    assert "MiB more, less than 1024 MiB: raise its max_file" in found


@pytest.mark.parametrize(("days", "is_found"), [(13, True), (15, False)])
async def test_certificates_that_expire_soon(endpoint: Endpoint, tmp_path: Path, days: int, is_found: bool) -> None:
    made = make_certificates(tmp_path, "ours", days=days)
    files = {"EF_NATS_CA": made.ca, "EF_NATS_CERT": made.certificate, "EF_NATS_KEY": made.key}
    found = await problems(endpoint, **{name: str(file) for name, file in files.items()})
    assert (f"EF_NATS_CERT={made.certificate}: expires at 2" in found) is is_found
    assert (f"EF_NATS_CA={made.ca}: expires at 2" in found) is is_found


async def test_an_authority_whose_successor_is_known_may_expire(endpoint: Endpoint, tmp_path: Path) -> None:
    old, new = make_certificates(tmp_path, "old", days=1), make_certificates(tmp_path, "new", days=100)
    both = tmp_path / "both.pem"
    both.write_bytes(old.ca.read_bytes() + new.ca.read_bytes())
    assert "expires" not in await problems(endpoint, EF_NATS_CA=str(both))


async def test_what_was_not_checked_is_said(endpoint: Endpoint) -> None:
    findings = await doctor.examine(replace(endpoint, data_dir=None), replicas=1, clock=SystemClock(), environment={})
    assert [finding.check for finding in findings if finding.unknown] == ["sync"]


async def test_a_tenant_is_told_of_what_it_sees_and_that_the_rest_needs_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 0)
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # of this machine, where no executor runs

    async with secured_pool(tmp_path, (Role.TENANT, "acme"), (Role.TENANT, "globex")) as pool:

        async def examined(tenant: str = "acme", clock: Clock | None = None) -> dict[str, Finding]:
            environment = {"EF_NATS_CREDS": str(pool.keys.seed_file(Role.TENANT, "acme")), "EF_TENANT": tenant}
            endpoint = Endpoint(nats_url=pool.url, pool=SECURED)
            findings = await doctor.examine(endpoint, replicas=1, clock=clock or SystemClock(), environment=environment)
            return {finding.check: finding for finding in findings}

        assert "has no views for its tenants" in (await examined())["view"].problem
        async with pool.connected(Role.SERVICE, "services") as service:
            histories = NewHistories(PoolState(), 0)
            fold(histories, shared_pool().then(replace(joined("x", "node-9"), workers_secret="none")).messages)
            await ViewWriter(service, SECURED, SystemClock(), histories, ()).round()
        found = await examined()
        assert [check for check, finding in found.items() if finding.problem] == ["workers"]
        assert "workers on node-9 trust each connection" in found["workers"].problem
        assert found["others"].unknown.startswith("streams, clock, plan and executors: use the key of an operator")
        assert not {"streams", "clock and plan", "isolation"} & found.keys()
        monkeypatch.setattr(Connection, "server_version", "2.11.9")
        found = await examined("globex", WrongClock())
        assert "upgrade its servers to 2.12" in found["server"].problem
        assert "EF_TENANT" in found["view"].problem
        assert "the monitor of pool" in (await examined("acme", WrongClock()))["view"].problem

"""A client with a tenant's key: what it sends and reads; and how a node reads a ledger without a consumer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from elasticflow.services.admission.quote import QuoteRequests
from elasticflow.shared.errors import LedgerTruncated, NotFound, NotPermitted
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.commands import DeadlineQuoted
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import MAX_BATCH
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.runtime.process.clock import SystemClock
from testbed.secured_pool import POOL, SecuredPool, secured_pool
from tests.integration.test_answer_subjects import QUOTED, WarningsLog, running

CODE, ARTIFACTS, LOGS = streams.code_bucket(POOL), streams.artifact_bucket(POOL), streams.log_bucket(POOL)
NUM_MESSAGES = 2 * MAX_BATCH + 3


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[SecuredPool]:
    async with secured_pool(tmp_path, (Role.TENANT, "alice"), (Role.TENANT, "bob"), (Role.NODE, "n1")) as pool:
        yield pool


async def test_a_node_reads_the_ledger_in_order_and_then_what_is_new(pool: SecuredPool) -> None:
    async with pool.connected(Role.SERVICE, "services") as service, pool.connected(Role.NODE, "n1") as node:

        async def append(number: int) -> int:
            return await service.append(subjects.job(POOL, f"j{number}"), b"%d" % number, message_id=str(number))

        for number in range(NUM_MESSAGES):
            await append(number)
        records: list[LedgerRecord] = []
        late: asyncio.Task[int] | None = None
        async with aclosing(node.follow(POOL, after_sequence=0)) as batches:
            async for batch in batches:
                records += batch
                if len(records) > NUM_MESSAGES:
                    break
                if len(records) == NUM_MESSAGES:  # the reader waits for this one
                    late = asyncio.create_task(append(NUM_MESSAGES))
        assert late is not None
        await late
        async with aclosing(service.read(POOL, after_sequence=0, up_to=NUM_MESSAGES + 1)) as batches:
            expected = [record async for batch in batches for record in batch]
        assert [(r.sequence, r.subject, r.data, r.message_id) for r in records] == [
            (r.sequence, r.subject, r.data, r.message_id) for r in expected
        ]
        assert all(abs(a.stored_at_s - b.stored_at_s) < 1e-3 for a, b in zip(records, expected, strict=True))


async def test_a_node_notices_that_the_ledger_is_another_one(pool: SecuredPool) -> None:
    async with pool.connected(Role.NODE, "n1") as node:
        with pytest.raises(LedgerTruncated):
            await anext(node.follow(POOL, after_sequence=7))


async def test_a_tenant_reads_no_message_of_the_ledger(pool: SecuredPool) -> None:
    async with pool.connected(Role.TENANT, "alice") as alice:
        with pytest.raises(NotPermitted):
            await anext(alice.follow(POOL, after_sequence=0))
        with pytest.raises(NotPermitted):
            await alice.get_object(streams.snapshot_bucket(POOL), "x", max_bytes=100)


async def test_nodes_read_the_code_of_each_tenant_and_tenants_only_write_their_own(pool: SecuredPool) -> None:
    async with pool.connected(Role.TENANT, "alice") as alice, pool.connected(Role.NODE, "n1") as node:
        await alice.put_object(CODE, streams.code_name("alice", "d"), b"first")
        await alice.put_object(CODE, streams.code_name("alice", "d"), b"second")
        assert await node.get_object(CODE, streams.code_name("alice", "d"), max_bytes=100) == b"second"
        with pytest.raises(NotFound):
            await node.get_object(CODE, streams.code_name("bob", "d"), max_bytes=100)
        with pytest.raises(NotPermitted):
            await alice.put_object(CODE, streams.code_name("bob", "d"), b"forged")
        with pytest.raises(NotPermitted):
            await alice.get_object(CODE, streams.code_name("bob", "d"), max_bytes=100)


async def test_tenants_read_their_own_artifacts_only_and_nodes_write_under_their_own_name(pool: SecuredPool) -> None:
    def name(tenant: str, node_id: str = "n1") -> str:
        return streams.artifact_name(tenant, node_id, "d" * 64, 0)

    data = bytes(streams.ARTIFACT_PIECE_BYTES)
    async with pool.connected(Role.TENANT, "alice") as alice, pool.connected(Role.NODE, "n1") as node:
        for tenant in ("alice", "bob"):
            await node.put_object(ARTIFACTS, name(tenant), b"first")
            await node.put_object(ARTIFACTS, name(tenant), data)
        assert await alice.get_object(ARTIFACTS, name("alice"), max_bytes=len(data)) == data
        with pytest.raises(NotFound):
            await alice.get_object(ARTIFACTS, name("alice", "n2"), max_bytes=100)
        with pytest.raises(NotPermitted):
            await alice.get_object(ARTIFACTS, name("bob"), max_bytes=len(data))
        with pytest.raises(NotPermitted):
            await alice.put_object(ARTIFACTS, name("alice"), b"forged")
        with pytest.raises(NotPermitted):
            await node.put_object(ARTIFACTS, name("alice", "n2"), b"forged")


async def test_tenants_read_the_logs_of_their_own_jobs_only_and_write_none(pool: SecuredPool) -> None:
    own, other = (streams.log_key(tenant, "n1", "j1", "0") for tenant in ("alice", "bob"))
    async with pool.connected(Role.TENANT, "alice") as alice, pool.connected(Role.NODE, "n1") as node:
        for key in (own, other):
            await node.put_value(LOGS, key, b"first")
            await node.put_value(LOGS, key, b"line")
        value = await alice.get_value(LOGS, own)
        assert value is not None
        assert value.data == b"line"
        assert await alice.get_value(LOGS, streams.log_key("alice", "n1", "j1", "1")) is None
        with pytest.raises(NotPermitted):
            await alice.get_value(LOGS, other)
        with pytest.raises(NotPermitted):
            await alice.put_value(LOGS, own, b"forged")
        with pytest.raises(NotPermitted):
            await node.put_value(LOGS, streams.log_key("alice", "n2", "j1", "0"), b"forged")


async def test_quotes_of_another_account_are_answered(pool: SecuredPool) -> None:
    async with pool.connected(Role.SERVICE, "services") as service, pool.connected(Role.TENANT, "alice") as alice:
        asked: list[str] = []

        def answer(data: bytes, tenant: str) -> DeadlineQuoted:
            asked.append(tenant)
            return QUOTED

        requests = await service.subscribe(subjects.quote("*", POOL), queue="admission")
        async with running(QuoteRequests(service, POOL, answer, SystemClock(), WarningsLog()).run(requests)):
            assert await alice.request(subjects.quote("alice", POOL), b"?", 30.0)
        assert asked == ["alice"]

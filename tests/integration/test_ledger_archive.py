"""Epochs of a ledger on a real nats-server: `eflow events archive`, and every reader after it."""

import asyncio
import gzip
import hashlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.client import doctor
from elasticflow.client.archive_ledger import Archived, archive
from elasticflow.client.ledger import ARCHIVES, LedgerView
from elasticflow.client.operator_decisions import configure
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.executor.decisions.policy import executor_policy
from elasticflow.services.executor.decisions.state import NodeSpecification
from elasticflow.services.monitor.policy import POLICY as MONITOR
from elasticflow.services.monitor.tenant_views import TenantViews
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.errors import EpochUnusable, LedgerBroken, LedgerUnusable
from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.messages.export import ExportWriter, records_in
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.logs import get_log
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.ledger_projection import LedgerProjection
from elasticflow.shared.runtime.service.replica import open_replica
from elasticflow.shared.state import snapshot_encoding
from testbed import secured_pool
from testbed.command_line import CommandLinePool
from testbed.planned_ledger import PATIENCE_S
from tests.support.error_codes import coded
from tests.support.service_contexts import service_context

POOL = "default"
CLOCK, LOG = SystemClock(), get_log("test")
LEDGER = streams.ledger_stream(POOL)
NODE = NodeSpecification(node_id="node-0", run_id="first", num_gpus=1, device="cpu", advertise_host="127.0.0.1")


class Pool:
    """A pool whose operator decides often."""

    def __init__(self, url: str, bus: NatsBus, folder: Path) -> None:
        self.url, self.bus, self.folder = url, bus, folder
        self.ledger = LedgerView(bus, POOL)
        self._num_decided = 0

    async def decide(self, times: int = 3) -> None:
        for _ in range(times):
            self._num_decided += 1
            await configure(self.url, POOL, PoolConfig(leave_s=30.0 + self._num_decided), CLOCK)

    async def archive(self, *, delete: bool = False) -> Archived:
        return await archive(self.url, POOL, self.folder, CLOCK, delete=delete, on_message=lambda done, of: None)

    async def sequences(self, after_sequence: int = 0) -> list[int]:
        last = await self.ledger.last_sequence()
        return [stored.sequence async for stored, _ in self.ledger.entries(after_sequence=after_sequence, up_to=last)]

    async def first(self) -> int:
        return (await self.bus.ledger_end(POOL)).first

    async def doctor_finds(self) -> str:
        endpoint = Endpoint(nats_url=self.url, pool=POOL, data_dir=self.folder.parent)
        findings = await doctor.examine(endpoint, replicas=1, clock=CLOCK, environment={})
        return "\n".join(finding.problem for finding in findings if finding.check == "streams")


@pytest.fixture
async def pool(nats_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Pool]:
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    made = Pool(nats_server.url, bus, tmp_path / "archives")
    await made.decide()
    yield made
    await bus.close()


async def test_a_ledger_is_read_across_its_epochs(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    state = await pool.ledger.state()
    first = await pool.archive(delete=True)
    assert (first.up_to, first.num_messages) == (2, 2)
    assert await pool.first() == 3
    after = await pool.ledger.state()
    assert replace(after, sequence=3) == state, "the message of the epoch changes no state"
    await pool.decide()
    second = await pool.archive(delete=True)
    assert (second.up_to, second.num_messages, await pool.first()) == (6, 4, 7)
    with pytest.raises(
        LedgerUnusable,
        match="messages 1 to 6 of pool 'default' are in archives: set EF_ARCHIVES",
        check=coded("archives_needed"),
    ):
        await pool.sequences()
    monkeypatch.setenv(ARCHIVES, str(pool.folder))
    assert await pool.sequences() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert await pool.sequences(5) == [6, 7, 8]
    assert await pool.sequences(7) == [8]
    assert await pool.ledger.loss() is None


async def test_without_news_nothing_is_archived_again_and_deletion_can_follow_later(pool: Pool) -> None:
    await pool.archive()
    assert await pool.first() == 1
    assert await pool.archive(delete=True) == Archived(up_to=2)
    assert await pool.first() == 3


async def test_only_the_archives_of_what_is_deleted_are_read(pool: Pool) -> None:
    oldest = Path((await pool.archive(delete=True)).file)
    oldest.write_bytes(b"")  # noqa: ASYNC240
    await pool.decide()
    await pool.archive(delete=True)
    assert await pool.first() == 7


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path

from elasticflow.client.archive_ledger import archive
from elasticflow.shared.runtime.bus.nats.bus import NatsBus
from elasticflow.shared.runtime.process.clock import SystemClock

url, pool, folder, left = *sys.argv[1:4], int(sys.argv[4])

def kill_before(owner, name):
    call = getattr(owner, name)
    def counted(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **named)
    setattr(owner, name, counted)

kill_before(os, "fsync")
kill_before(Path, "replace")
for name in ("put_object", "append", "delete_ledger"):
    kill_before(NatsBus, name)
asyncio.run(archive(url, pool, Path(folder), SystemClock(), delete=True, on_message=lambda done, of: None))
"""
# Flushes of the two files and of their folder, renames of both, the snapshot in its bucket, EpochBegan, the deletion.
NUM_STEPS = 9


@pytest.mark.parametrize("step", range(1, NUM_STEPS + 2))
async def test_a_command_that_is_killed_at_any_step_is_repeated(
    pool: Pool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = await pool.ledger.state()
    arguments = (pool.url, POOL, str(pool.folder), str(step))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, *arguments)
    status = await process.wait()
    assert status == (0 if step > NUM_STEPS else -signal.SIGKILL)
    assert await pool.ledger.loss() is None
    assert replace(await pool.ledger.state(), sequence=state.sequence) == state
    await pool.decide()
    await pool.archive(delete=True)
    for file in pool.folder.glob("*.snapshot"):
        assert file.name.endswith(f"-{hashlib.sha256(file.read_bytes()).hexdigest()}.snapshot")
    monkeypatch.setenv(ARCHIVES, str(pool.folder))
    assert await pool.sequences() == list(range(1, await pool.ledger.last_sequence() + 1))


async def test_a_fresh_reader_of_another_fold_starts_at_the_epoch(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    state = await pool.ledger.state()
    await pool.archive()
    monkeypatch.setattr(snapshot_encoding, "SHAPE", "of a later version")
    snapshot = await snapshot_store.load(pool.bus, POOL, LOG)
    assert snapshot is not None
    assert snapshot.state.sequence == state.sequence - 1
    assert replace(await pool.ledger.state(), sequence=state.sequence) == state


async def test_a_newer_snapshot_of_the_monitor_is_preferred(pool: Pool) -> None:
    await pool.archive()
    await pool.decide()
    state, chain = await pool.ledger.state_and_chain()
    await snapshot_store.save(pool.bus, POOL, snapshot_store.Snapshot(state=state, chain=chain.digest), 1.0)
    snapshot = await snapshot_store.load(pool.bus, POOL, LOG)
    assert snapshot is not None
    assert snapshot.state == state


@pytest.mark.parametrize("policy", [ADMISSION, ALLOCATOR, PLACEMENT, MONITOR, executor_policy(NODE)])
async def test_each_service_starts_after_the_deletion(pool: Pool, policy: Any) -> None:
    await pool.archive(delete=True)
    await pool.decide()
    replica = await open_replica(
        service_context(pool.bus, POOL, CLOCK, log=LOG),
        policy,
        act=lambda action: None,
    )
    running = asyncio.create_task(replica.run())
    async with asyncio.timeout(PATIENCE_S):
        await replica.host.ready.wait()
    assert replica.host.folded.config.leave_s == 36.0
    assert replica.host.snapshot() is not None, "its chain agrees with the decisions after the epoch"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_node_finds_the_epoch_with_its_own_key(tmp_path: Path) -> None:
    async with (
        secured_pool.secured_pool(tmp_path, (Role.NODE, "n1")) as secured,
        secured.connected(Role.OPERATOR, "operator") as operator,
        secured.connected(Role.NODE, "n1") as node,
    ):
        assert await snapshot_store.newest_epoch(node, secured_pool.POOL) is None
        began = events.EpochBegan(based_on=1, chain="0" * 32, snapshot="0" * 64, fold=1, at_s=1.0)
        subject = subjects.epoch(secured_pool.POOL)
        await operator.append(subject, codec.encode(began, id="1", recorded_at_s=1.0), message_id="1")
        async with asyncio.timeout(PATIENCE_S):  # a replica answers the node
            while (epoch := await snapshot_store.newest_epoch(node, secured_pool.POOL)) is None:
                pass
        assert epoch.began == began


async def test_a_forged_archive_is_named_and_nothing_is_deleted(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARCHIVES, str(pool.folder))
    file = Path((await pool.archive()).file)
    with gzip.open(file) as opened:
        records = list(records_in(opened))  # pyright: ignore[reportArgumentType]
    with gzip.open(file, "wb") as out:
        writer = ExportWriter(out)
        for record in records:
            writer.add(replace(record, message_id="x", data=record.data.replace(b"eflow", b"forge")))
        writer.finish()
    with pytest.raises(LedgerUnusable, match=file.name, check=coded("archive_changed")):
        await pool.archive(delete=True)
    assert await pool.first() == 1
    await pool.bus.delete_ledger(POOL, up_to=2)
    with pytest.raises(LedgerUnusable, match=file.name, check=coded("archive_changed")):
        await pool.sequences()
    file.rename(file.with_suffix(".away"))  # noqa: ASYNC240
    with pytest.raises(LedgerUnusable, match=r"has no default-\.\.\.-2-", check=coded("archive_missing")):
        await pool.sequences()


async def test_a_forged_snapshot_is_named(pool: Pool) -> None:
    await pool.archive()
    epoch = await snapshot_store.newest_epoch(pool.bus, POOL)
    assert epoch is not None
    snapshot = await snapshot_store.of_epoch(pool.bus, POOL, epoch.began)
    forged = snapshot_store.encode(replace(snapshot, state=replace(snapshot.state, num_forgotten=1)))
    name = snapshot_store.epoch_object(epoch.began.snapshot)
    await pool.bus.put_object(streams.snapshot_bucket(POOL), name, forged)
    assert await snapshot_store.load(pool.bus, POOL, LOG) is None, "the whole ledger is there"
    with pytest.raises(EpochUnusable):
        await pool.archive(delete=True)
    await pool.bus.delete_ledger(POOL, up_to=2)
    with pytest.raises(EpochUnusable, match=r"not the one that the ledger names.*put it back") as caught:
        await pool.ledger.state()
    (copy,) = pool.folder.glob("*.snapshot")
    await pool.bus.put_object(caught.value.bucket, caught.value.name, copy.read_bytes())
    assert (await pool.ledger.state()).sequence == 4


async def test_what_is_deleted_but_not_archived_is_named_as_a_loss(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARCHIVES, str(pool.folder))
    await pool.archive()
    await pool.decide(1)
    assert await pool.doctor_finds() == ""
    await pool.bus.delete_ledger(POOL, up_to=3)
    lost = "lacks message 3: "
    assert lost in await pool.doctor_finds()
    for reading in (pool.ledger.state(), pool.sequences()):
        with pytest.raises(LedgerBroken, match=lost):
            await reading


async def test_a_ledger_without_archives_that_lost_its_beginning(pool: Pool) -> None:
    await pool.bus.delete_ledger(POOL, up_to=2)
    with pytest.raises(LedgerBroken, match="lacks messages 1 to 2: "):
        await pool.sequences()
    assert "lacks messages 1 to 2: " in await pool.doctor_finds()


async def test_a_pool_of_an_older_version_is_archived_but_keeps_its_messages(pool: Pool) -> None:
    config = (await pool.bus._connection.api(f"STREAM.INFO.{LEDGER}"))["config"]
    await pool.bus._connection.api(f"STREAM.UPDATE.{LEDGER}", config | {"deny_purge": True})
    with pytest.raises(
        LedgerUnusable, match=f"stream {LEDGER} was made with deny_purge", check=coded("deletion_denied")
    ):
        await pool.archive(delete=True)
    assert await pool.first() == 1
    epoch = await snapshot_store.newest_epoch(pool.bus, POOL)
    assert epoch is not None
    assert epoch.began.based_on == 2
    assert await pool.doctor_finds() == ""


async def test_a_changed_ledger_is_not_archived(pool: Pool) -> None:
    decision = events.PlanDecided(service="allocator", based_on=2, now_s=1.0, chain="00" * 16, events=())
    data = codec.encode(decision, id="d", recorded_at_s=1.0)
    await pool.bus.append(subjects.plan(POOL), data, message_id="d")
    await pool.decide(1)
    with pytest.raises(LedgerUnusable, match="the ledger was changed", check=coded("not_archived")):
        await pool.archive()
    assert list(pool.folder.iterdir()) == []
    assert await snapshot_store.newest_epoch(pool.bus, POOL) is None


async def test_a_message_that_cannot_be_read_would_be_missing_for_ever(pool: Pool) -> None:
    sequence = await pool.bus.append(subjects.job(POOL, "j"), b"of a newer version", message_id="n")
    await pool.decide(1)
    with pytest.raises(
        LedgerUnusable,
        match=f"cannot read message {sequence}: use the eflow of a newer version",
        check=coded("not_archived"),
    ):
        await pool.archive()
    for _ in range(2):  # the newest decision itself is not archived
        await configure(pool.url, POOL, None, CLOCK, changes={"skip_plan_up_to": sequence, "leave_s": CLOCK.now_s()})
    assert (await pool.archive()).up_to > sequence


async def test_commands_read_the_archives_first(cli: CommandLinePool) -> None:
    folder = str(cli.folder / "archives")
    submit = ("submit", "line.py", "--deadline", "1400s", "--name")
    await cli.eflow(*submit, "j1")
    assert (await cli.eflow("cancel", "j1")).status == 0
    await cli.eflow(*submit, "j2")
    before = json.loads((await cli.eflow("explain", "j1", "--json")).out)
    archived = await cli.eflow("events", "archive", folder, "--delete", "--json")
    assert archived.status == 0, archived.err
    up_to = archived.value["up_to"]
    assert archived.value["num_messages"] == up_to >= before[0]["sequence"]
    await cli.eflow(*submit, "j3")
    for command in (("replay",), ("events",), ("report",)):
        refused = await cli.eflow(*command)
        assert (refused.status, f"messages 1 to {up_to} of pool" in refused.err) == (2, True), refused
    assert json.loads((await cli.eflow("explain", "j3", "--json")).out)[0]["type"] == "JobAdmitted"
    refused = await cli.eflow("explain", "j1")
    assert (refused.status, "set EF_ARCHIVES" in refused.err) == (2, True), refused
    assert json.loads((await cli.eflow("explain", "j1", "--json", EF_ARCHIVES=folder)).out) == before
    rows = json.loads((await cli.eflow("events", "--json", EF_ARCHIVES=folder)).out)
    assert sorted({row["sequence"] for row in rows}) == list(range(1, await cli.bus.last_sequence(POOL) + 1))
    assert rows[-2]["type"] == "EpochBegan"
    verified = await cli.eflow("replay", "--verify", EF_ARCHIVES=folder)
    assert verified.status == 0, verified.out + verified.err
    recent = await cli.eflow("events", "--from", str(up_to + 1), "--json")
    assert json.loads(recent.out)[0]["sequence"] == up_to + 1


async def test_views_of_tenants_that_are_not_stored_begin_with_the_epoch(pool: Pool) -> None:
    assert (await snapshot_store.beginning(pool.bus, POOL)).sequence == 0
    await pool.archive()
    assert (await snapshot_store.beginning(pool.bus, POOL)).sequence == 0
    await pool.archive(delete=True)
    process: Any = SimpleNamespace(bus=pool.bus, settings=SimpleNamespace(pool=POOL), clock=CLOCK, log=LOG)
    host: Any = SimpleNamespace(folded=await pool.ledger.state())
    histories, tenants = await TenantViews(process, host)._start()
    assert (histories.state.sequence, tenants) == (2, ())


async def test_a_decision_that_is_archived_is_not_read_again(pool: Pool) -> None:
    """Its command came again: the reply is in the ledger's archive, and the service goes on without it."""
    await pool.archive(delete=True)
    snapshot = await snapshot_store.load(pool.bus, POOL, LOG)
    projection = LedgerProjection(
        service_context(pool.bus, POOL), ADMISSION, lambda: None, lambda record: None, snapshot
    )
    assert await projection.decision_at(1) is None
    assert await projection.decision_at(3) is not None

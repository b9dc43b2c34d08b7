"""Role x verb x subject on a real server: what each key may do, and that nothing else gets through.

docs/how-to/secure-a-pool.md shows the same table.
"""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from elasticflow.local import key_store
from elasticflow.shared.errors import BadCredentials, ElasticFlowError, NotPermitted, Unavailable
from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from testbed.real_pool import PATIENCE_S, eventually
from testbed.secured_pool import POOL, SecuredPool, secured_pool

LEDGER, CODE, NODES = streams.ledger_stream(POOL), streams.code_bucket(POOL), streams.node_bucket(POOL)
ARTIFACTS, LOGS = streams.artifact_bucket(POOL), streams.log_bucket(POOL)
VIEWS = streams.view_bucket(POOL)
STATE, SNAPSHOT = streams.state_bucket(POOL), streams.snapshot_bucket(POOL)
TASKS, RESULTS = streams.padding_streams(POOL)
SUBMIT = streams.submit_stream(POOL)

KEYS = {"O": (Role.OPERATOR, "operator"), "S": (Role.SERVICE, "services"), "N": (Role.NODE, "n1")}
KEYS |= {"A": (Role.TENANT, "alice")}

# Letters: operator, service, node n1, tenant alice. Each publishes on the subject; a letter that is absent is refused.
PUBLISH = {
    subjects.submit("alice", POOL): "OSA",
    subjects.submit("bob", POOL): "OS",
    subjects.submit("alice", "another-pool"): "O",
    subjects.quote("alice", POOL): "OA",
    subjects.quote("bob", POOL): "O",
    subjects.answer("alice", POOL, "job-1"): "OS",
    subjects.reach("alice", POOL, "n1"): "OA",
    subjects.reach("bob", POOL, "n1"): "O",
    subjects.reach("alice", "another-pool", "n1"): "O",
    subjects.reached("alice", POOL, "n1", "x"): "ON",
    subjects.reached("alice", POOL, "n2", "x"): "O",
    subjects.plan(POOL): "OS",
    subjects.epoch(POOL): "OS",
    subjects.snapshot(POOL, "shape"): "OS",
    subjects.job(POOL, "job-1"): "OS",
    subjects.job(POOL, "job-1", "n1"): "OSN",
    subjects.job(POOL, "job-1", "n2"): "OS",
    subjects.load(POOL, "load-1"): "OS",
    subjects.node(POOL, "n1"): "OSN",
    subjects.node(POOL, "n2"): "OS",
    subjects.dead_letter(POOL, "admission"): "OS",
    subjects.telemetry(POOL, "n1"): "O",
    subjects.tasks(POOL, "load-1"): "O",
    subjects.results(POOL, "load-1", 0, 1): "O",
    streams.value_subject(NODES, "n1"): "OSN",
    streams.value_subject(NODES, "n2"): "OS",
    streams.value_subject(STATE, "lease.monitor"): "OS",
    f"$O.{CODE}.M.alice.x": "OA",
    f"$O.{CODE}.C.alice.x": "OA",
    f"$O.{CODE}.M.bob.x": "O",
    f"$O.{CODE}.M.x": "O",
    f"$O.{ARTIFACTS}.M.alice.n1.x": "ON",
    f"$O.{ARTIFACTS}.C.alice.n1.x": "ON",
    f"$O.{ARTIFACTS}.M.alice.n2.x": "O",
    f"$KV.{LOGS}.alice.n1.x.x": "ON",
    f"$KV.{LOGS}.alice.n2.x.x": "O",
    f"$KV.{VIEWS}.alice.jobs": "OS",
    f"$KV.{VIEWS}.as_of": "OS",
    f"$O.{SNAPSHOT}.M.x": "OS",
    "$JS.API.INFO": "OS",
    "$JS.API.STREAM.NAMES": "O",
    f"$JS.API.STREAM.INFO.{LEDGER}": "OSN",
    f"$JS.API.STREAM.INFO.KV_{VIEWS}": "OSN",
    f"$JS.API.STREAM.INFO.{SUBMIT}": "OSN",
    "$JS.API.STREAM.INFO.EF_LEDGER_another-pool": "O",
    "$JS.API.STREAM.CREATE.NEW": "O",
    f"$JS.API.STREAM.UPDATE.{LEDGER}": "O",
    f"$JS.API.STREAM.PURGE.{LEDGER}": "O",
    f"$JS.API.STREAM.PURGE.OBJ_{CODE}": "OS",
    f"$JS.API.STREAM.PURGE.OBJ_{ARTIFACTS}": "OS",
    f"$JS.API.STREAM.PURGE.{RESULTS}": "OS",
    f"$JS.API.STREAM.MSG.DELETE.{LEDGER}": "O",
    f"$JS.API.STREAM.SNAPSHOT.{LEDGER}": "O",
    f"$JS.API.STREAM.MSG.GET.{SUBMIT}": "OS",
    f"$JS.API.STREAM.MSG.GET.KV_{NODES}": "OSN",
    f"$JS.API.STREAM.MSG.GET.OBJ_{CODE}": "OSN",
    f"$JS.API.STREAM.MSG.GET.OBJ_{SNAPSHOT}": "OSN",
    f"$JS.API.STREAM.MSG.GET.{LEDGER}": "OS",
    f"$JS.API.STREAM.MSG.GET.KV_{VIEWS}": "OS",
    f"$JS.API.DIRECT.GET.{LEDGER}": "ON",
    f"$JS.API.DIRECT.GET.{LEDGER}.ef.ledger.{POOL}.plan": "O",
    f"$JS.API.DIRECT.GET.{LEDGER}.ef.ledger.{POOL}.job.x": "O",
    f"$JS.API.DIRECT.GET.OBJ_{SNAPSHOT}": "OSN",
    f"$JS.API.DIRECT.GET.OBJ_{CODE}": "ON",
    f"$JS.API.DIRECT.GET.OBJ_{CODE}.$O.{CODE}.M.alice.x": "OA",
    f"$JS.API.DIRECT.GET.OBJ_{CODE}.$O.{CODE}.M.bob.x": "O",
    f"$JS.API.DIRECT.GET.OBJ_{ARTIFACTS}": "O",
    f"$JS.API.DIRECT.GET.OBJ_{ARTIFACTS}.$O.{ARTIFACTS}.M.alice.n1.x": "ONA",
    f"$JS.API.DIRECT.GET.OBJ_{ARTIFACTS}.$O.{ARTIFACTS}.C.alice.n1.x": "OA",
    f"$JS.API.DIRECT.GET.OBJ_{ARTIFACTS}.$O.{ARTIFACTS}.C.bob.n1.x": "O",
    f"$JS.API.DIRECT.GET.KV_{LOGS}": "O",
    f"$JS.API.DIRECT.GET.KV_{LOGS}.$KV.{LOGS}.alice.n1.x.x": "ONA",
    f"$JS.API.DIRECT.GET.KV_{LOGS}.$KV.{LOGS}.alice.n2.x.x": "OA",
    f"$JS.API.DIRECT.GET.KV_{LOGS}.$KV.{LOGS}.bob.n1.x.x": "ON",
    f"$JS.API.DIRECT.GET.KV_{VIEWS}": "O",
    f"$JS.API.DIRECT.GET.KV_{VIEWS}.$KV.{VIEWS}.as_of": "OSA",
    f"$JS.API.DIRECT.GET.KV_{VIEWS}.$KV.{VIEWS}.pool": "OSA",
    f"$JS.API.DIRECT.GET.KV_{VIEWS}.$KV.{VIEWS}.writer": "OS",
    f"$JS.API.DIRECT.GET.KV_{VIEWS}.$KV.{VIEWS}.alice.jobs": "OSA",
    f"$JS.API.DIRECT.GET.KV_{VIEWS}.$KV.{VIEWS}.alice.history.x": "OSA",
    f"$JS.API.DIRECT.GET.KV_{VIEWS}.$KV.{VIEWS}.bob.jobs": "OS",
    f"$JS.API.DIRECT.GET.KV_{VIEWS}.$KV.{VIEWS}.bob.history.x": "OS",
    f"$JS.API.CONSUMER.CREATE.{LEDGER}": "OS",
    f"$JS.API.CONSUMER.CREATE.{LEDGER}.alice.ef.ledger.{POOL}.job.x": "O",
    f"$JS.API.CONSUMER.CREATE.KV_{VIEWS}": "O",
    f"$JS.API.CONSUMER.CREATE.KV_{VIEWS}.alice.$KV.{VIEWS}.alice.jobs": "O",
    f"$JS.API.CONSUMER.DURABLE.CREATE.KV_{VIEWS}.alice": "O",
    f"$JS.API.CONSUMER.CREATE.{SUBMIT}.admission": "OS",
    f"$JS.API.CONSUMER.CREATE.{TASKS}.load-1": "OS",
    f"$JS.API.CONSUMER.MSG.NEXT.{SUBMIT}.admission": "OS",
    f"$JS.API.CONSUMER.MSG.NEXT.{TASKS}.load-1": "O",
    f"$JS.API.CONSUMER.DELETE.{TASKS}.load-1": "OS",
    f"$JS.ACK.{SUBMIT}.admission.1.1.1.1.0": "OS",
    f"$JS.ACK.{TASKS}.load-1.1.1.1.1.0": "O",
}
SUBSCRIBE = {
    subjects.answer("alice", POOL, "job-1"): "OA",
    subjects.answer("bob", POOL, "job-1"): "O",
    subjects.answer("*", POOL, "job-1"): "O",
    subjects.reach("*", POOL, "n1"): "ON",
    subjects.reach("alice", POOL, "n1"): "ON",
    subjects.reach("alice", POOL, "n2"): "O",
    subjects.reach("alice", POOL, "*"): "O",
    subjects.reached("alice", POOL, "n1", "x"): "OA",
    subjects.reached("bob", POOL, "n1", "x"): "O",
    subjects.reached("*", POOL, "n1", "x"): "O",
    streams.ledger_subjects(POOL): "ON",
    subjects.plan(POOL): "ON",
    subjects.job(POOL, "job-1"): "ON",
    f"$KV.{VIEWS}.alice.jobs": "OA",
    f"$KV.{VIEWS}.alice.history.x": "OA",
    f"$KV.{VIEWS}.bob.jobs": "O",
    f"$KV.{VIEWS}.*.jobs": "O",
    f"$KV.{VIEWS}.>": "O",
    subjects.quote("*", POOL): "OS",
    subjects.every_node(POOL): "OS",
    subjects.submit("*", POOL): "O",
    subjects.every_result(POOL): "O",
    f"$KV.{NODES}.>": "O",
    f"$O.{CODE}.>": "O",
    "$JS.API.>": "O",
    ">": "O",
}


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[SecuredPool]:
    async with secured_pool(tmp_path, (Role.NODE, "n1"), (Role.TENANT, "alice"), (Role.TENANT, "bob")) as pool:
        yield pool


async def is_permitted(bus: NatsBus, subject: str, *, reply: bool) -> bool:
    """Any answer counts as permitted, also an error of JetStream, and none once the server has read the request."""
    if not reply:
        try:
            await (await bus.subscribe(subject)).close()
        except NotPermitted:
            return False
        return True
    request = asyncio.create_task(bus.request(subject, b"no JSON, no message", PATIENCE_S))
    await asyncio.sleep(0)  # it is sent
    await bus._connection.flush(PATIENCE_S)  # the server refuses before it echoes
    await asyncio.wait({request}, timeout=0.05)
    request.cancel()
    (outcome,) = await asyncio.gather(request, return_exceptions=True)
    return not isinstance(outcome, NotPermitted)


async def matrix(pool: SecuredPool, rows: dict[str, str], *, reply: bool) -> dict[str, str]:
    found = dict.fromkeys(rows, "")
    for letter, key in KEYS.items():
        async with pool.connected(*key) as bus:
            permitted = await asyncio.gather(*(is_permitted(bus, subject, reply=reply) for subject in rows))
            for subject, is_allowed in zip(rows, permitted, strict=True):
                found[subject] += letter if is_allowed else ""
    return found


async def test_each_role_publishes_on_its_own_subjects_only(pool: SecuredPool) -> None:
    assert await matrix(pool, PUBLISH, reply=True) == PUBLISH


async def test_each_role_subscribes_to_its_own_subjects_only(pool: SecuredPool) -> None:
    assert await matrix(pool, SUBSCRIBE, reply=False) == SUBSCRIBE


@pytest.mark.parametrize("key", [KEYS["N"], KEYS["A"]])
async def test_no_reply_of_the_server_lands_on_a_subject_that_the_sender_may_not_use(
    pool: SecuredPool, key: tuple[Role, str]
) -> None:
    """NATS does not check the reply subject of a request: in one account the answer would be stored on the plan."""
    async with pool.connected(Role.SERVICE, "services") as service, pool.connected(*key) as bus:
        await service.append(subjects.plan(POOL), b"a decision", message_id="1")
        for subject, letters in PUBLISH.items():
            if any(KEYS[letter] == key for letter in letters):
                request = b"" if subject.count(".$O.") else json.dumps({"seq": 1}).encode()
                await bus.publish(subject, request, reply=subjects.plan(POOL))
                await bus.publish(subject, request, reply=subjects.submit("bob", POOL))
        await bus._connection.flush(5.0)
        async with pool.connected(Role.OPERATOR, "operator") as operator:
            assert await operator.last_subject_sequence(subjects.plan(POOL)) == 1
            submitted = await operator._connection.api(
                f"STREAM.INFO.{SUBMIT}", {"subjects_filter": subjects.submit("bob", POOL)}
            )
            assert not submitted["state"].get("subjects")


async def test_a_tenant_and_a_node_reach_each_other_through_their_accounts(pool: SecuredPool) -> None:
    async with pool.connected(*KEYS["A"]) as alice, pool.connected(*KEYS["N"]) as node:
        asked = await node.subscribe(subjects.reach("alice", POOL, "n1"))
        answered = await alice.subscribe(subjects.reached("alice", POOL, "n1", "x"))
        await alice.publish(subjects.reach("alice", POOL, "n1"), b"asked")
        assert (await anext(asked)).data == b"asked"
        await node.publish(subjects.reached("alice", POOL, "n1", "x"), b"answered")
        assert (await anext(answered)).data == b"answered"
        await asked.close()
        await answered.close()


async def test_no_request_on_a_subject_of_ones_own_reads_the_view_of_another(pool: SecuredPool) -> None:
    """The body of a direct read may name other subjects and sequences, if its subject names none."""
    async with pool.connected(Role.SERVICE, "services") as service, pool.connected(Role.TENANT, "alice") as alice:
        await service.put_value(VIEWS, "bob.jobs", b"of bob")
        await service.put_value(VIEWS, "alice.jobs", b"of alice")
        other = f"$KV.{VIEWS}.bob.jobs"
        for body in (
            {"seq": 1},
            {"last_by_subj": other},
            {"multi_last": [other]},
            {"next_by_subj": other, "seq": 1},
            {"seq": 1, "batch": 9},
        ):
            for key in ("alice.jobs", "as_of", "pool"):
                subject = f"$JS.API.DIRECT.GET.KV_{VIEWS}.$KV.{VIEWS}.{key}"
                try:
                    answer = await alice.request(subject, json.dumps(body).encode(), 5.0)
                except ElasticFlowError:
                    continue
                assert b"of bob" not in answer, (key, body)
        value = await alice.get_value(VIEWS, "alice.jobs")
        assert value is not None
        assert value.data == b"of alice"


async def test_a_header_does_not_move_or_delete_messages_of_others(pool: SecuredPool) -> None:
    async with pool.connected(Role.TENANT, "bob") as bob, pool.connected(Role.TENANT, "alice") as alice:
        await bob.put_object(CODE, "bob/code", b"of bob")
        for headers in ({"Nats-Rollup": "all"}, {"Nats-Trace-Dest": subjects.plan(POOL)}):
            with contextlib.suppress(ElasticFlowError):
                await alice.append(f"$O.{CODE}.M.alice.x", b"{}", message_id=str(headers), headers=headers)
    async with pool.connected(Role.NODE, "n1") as node:
        assert await node.get_object(CODE, "bob/code", max_bytes=100) == b"of bob"
        assert await node.last_sequence(POOL) == 0


@pytest.mark.parametrize(("forger", "sender"), ["NS", "SN"])
async def test_no_one_is_silenced_by_the_id_of_a_message(pool: SecuredPool, forger: str, sender: str) -> None:
    """Ids are derived from events, so a node can foresee them; the server calls the true message a duplicate."""
    own = subjects.job(POOL, "job", "n1")
    async with pool.connected(*KEYS[forger]) as n1, pool.connected(*KEYS[sender]) as other:
        forged = await n1.append(subjects.node(POOL, "n1"), b"junk", message_id="lost")
        assert await other.append_event(own, b"true", message_id="lost") > forged
        record = await other.last_record(own)
        assert record is not None
        assert record.data == b"true"


async def test_a_revoked_key_is_refused(pool: SecuredPool, tmp_path: Path) -> None:
    stolen = NatsAccess(credentials=shutil.copy2(pool.keys.seed_file(Role.TENANT, "alice"), tmp_path / "stolen"))
    bus = await connect_nats(pool.url, name="alice", access=stolen)
    pool.keys.revoke(Role.TENANT, "alice")
    pool.reload()
    await eventually(lambda: not bus.is_connected, "the server closes the connection")
    with pytest.raises(BadCredentials):
        await connect_nats(pool.url, name="alice", access=stolen)
    await bus.close()
    async with pool.connected(Role.TENANT, "bob") as bob:
        await bob.append(subjects.submit("bob", POOL), b"a command", message_id="1")


async def test_a_new_key_works_and_the_connections_of_others_go_on(pool: SecuredPool) -> None:
    async with pool.connected(Role.SERVICE, "services") as service, pool.connected(Role.NODE, "n1") as node:
        following = node.follow(POOL, after_sequence=0)
        for number in range(2):
            await service.append(subjects.plan(POOL), b"a decision", message_id=str(number))
            assert (await anext(following))[-1].sequence == number + 1
            key_store.read(pool.keys.folder).add(Role.TENANT, f"carol-{number}")
            await start_using(pool, f"carol-{number}")
        await following.aclose()
        assert await node.put_value(NODES, "n1", b"a heartbeat", expected_revision=0) == 1


async def start_using(pool: SecuredPool, tenant: str) -> None:
    """The server needs two reloads: the first makes the account, the second what it imports."""
    command = subjects.submit(tenant, POOL)
    while True:
        pool.reload()
        try:
            async with pool.connected(Role.TENANT, tenant) as bus:
                await bus.append(command, b"a command", message_id=tenant)
                return
        except (BadCredentials, Unavailable, ConnectionError):  # a reload may close the connection
            await asyncio.sleep(0.1)


def documented_rows() -> list[str]:
    """The table of the documentation, with names in place of the test's."""
    named = {POOL: "<pool>", "another-pool": "<other pool>", "alice": "<tenant>", "bob": "<other tenant>"}
    named |= {"shape": "<shape>"}
    named |= {"n1": "<node>", "n2": "<other node>", "job-1": "*", "load-1": "*", ".x": ".*", ".0-1": ".*"}
    rows: list[str] = []
    for verb, subjects_of_verb in (("publish", PUBLISH), ("subscribe", SUBSCRIBE)):
        for subject, letters in subjects_of_verb.items():
            for name, shown in named.items():
                subject = subject.replace(name, shown)
            marks = " | ".join("yes" if letter in letters else "" for letter in KEYS)
            rows.append(f"| {verb} | `{subject}` | {marks} |")
    return rows


def test_the_documentation_has_the_same_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "secure-a-pool.md"
    lines = page.read_text().splitlines()
    assert [line for line in lines if line.startswith(("| publish", "| subscribe"))] == documented_rows()

"""Hostile messages on any subject: services continue, keep the bytes with the reason, and reply to the sender.

Planners wait for the operator after unreadable messages of the plan (decision record 0036).
"""

import json
from collections.abc import Iterator
from pathlib import Path

from nats.aio.msg import Msg

from elasticflow.client.operator_decisions import configure
from elasticflow.shared.errors import NotFound
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import (
    JobFinished,
    JobRejected,
    MessageRejected,
    NodeReported,
    PlanDecided,
)
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.service.command_queue import ANSWER_TO
from elasticflow.shared.state.fold.ledger_fold import Unreadable
from elasticflow.shared.state.job import Phase
from testbed.fault_evidence import assert_sound
from testbed.hostile_messages import JOB, NODE, PLAN, QUOTE, SUBMIT, TELEMETRY, hostile_bytes
from testbed.real_pool import POOL, RunningPool, job, persistently, running_pool

TOLD = "_INBOX.told"


def misplaced() -> Iterator[tuple[str, bytes]]:
    """Messages that are fine in themselves, on subjects where they do not belong: no publisher may decide or report
    for others.
    """
    rejected = JobRejected(
        job_id="before", tenant="lab", spec=None, reason="invalid", explanation="by an intruder", at_s=0.0
    )
    decision = encoded(PlanDecided(service="admission", based_on=1, now_s=0.0, events=(rejected,)))
    heartbeat = encoded(NodeReported(node_id="node-0", incarnation="1", at_s=0.0))
    finished = encoded(JobFinished(job_id="before", generation=1, iteration=1, condition="max_iterations", at_s=0.0))
    command = encoded(SubmitJob(job_id="smuggled", tenant="lab", spec=job()))
    foreign = encoded(SubmitJob(job_id="smuggled", tenant="another-lab", spec=job()))
    yield from ((subject, decision) for subject in (SUBMIT, TELEMETRY, JOB, NODE))
    yield from ((subject, encoded(rejected)) for subject in (SUBMIT, TELEMETRY, PLAN, JOB, NODE))
    yield from ((subject, heartbeat) for subject in (SUBMIT, PLAN, JOB, NODE))
    yield from ((subject, finished) for subject in (SUBMIT, TELEMETRY, PLAN, JOB, NODE))
    yield from ((subject, command) for subject in (TELEMETRY, PLAN, JOB, NODE))
    yield SUBMIT, foreign


def encoded(message: codec.Message) -> bytes:
    return codec.encode(message, id="hostile", recorded_at_s=0.0)


async def test_no_message_stops_a_service(tmp_path: Path) -> None:
    everywhere = [(subject, data) for data in hostile_bytes() for subject in (SUBMIT, TELEMETRY, PLAN, JOB, NODE)]
    everywhere.remove((SUBMIT, bytes(MAX_MESSAGE_BYTES)))  # the server refuses it: see test_bus_work.py
    hostile = [*everywhere, *misplaced()]
    async with running_pool(tmp_path, num_nodes=1, replicas={"admission": 2}) as pool:
        told = await pool.bus.subscribe(TOLD)
        await pool.acknowledged(job(), "before")
        await monitor_listens(pool)
        await pool.when(lambda state: state.num_gpus > 0, "the node has joined")
        pids = pool.pids()  # a port that was free may be taken at the start: then a service starts twice
        for number, (subject, data) in enumerate(hostile):
            await publish(pool, subject, data, number)
        for data in hostile_bytes():
            assert refused(await pool.bus.request(QUOTE, data))
        state = await pool.when(lambda state: state.unreadable_plan_sequence > 0, "the plan has unreadable messages")
        await configure(pool.url, POOL, None, SystemClock(), changes={"skip_plan_up_to": state.sequence})
        await pool.acknowledged(job(), "after")
        state = await pool.ended(["before", "after"])
        for subject, service in ((SUBMIT, "admission"), (TELEMETRY, "monitor")):
            sent = {data for where, data in hostile if where == subject}
            await assert_put_aside(pool, service, subject, sent)
        for _ in [subject for subject, _ in hostile if subject == SUBMIT]:
            assert refused((await anext(told)).data)
        entries = await pool.ledger()
        assert pool.pids() == pids, pool.reports

    phases = {ended.job_id: ended.phase for ended in state.ended_jobs.values()}
    assert phases == {"before": Phase.FINISHED, "after": Phase.FINISHED}
    num_unreadable = sum(isinstance(entry.message, Unreadable) for entry in entries)
    assert num_unreadable == sum(subject in (PLAN, JOB, NODE) for subject, _ in hostile)
    assert_sound(entries, pool.data_dir)


async def monitor_listens(pool: RunningPool) -> None:
    """No stream keeps telemetry: messages published before a subscription are lost."""

    async def heard() -> None:
        await pool.bus.publish(TELEMETRY, next(hostile_bytes()))
        await next_letter(pool, "monitor", after=0)

    await persistently(heard)


async def publish(pool: RunningPool, subject: str, data: bytes, number: int) -> None:
    if subject == TELEMETRY:
        await pool.bus.publish(subject, data)
    else:
        await pool.bus.append(subject, data, message_id=f"hostile-{number}", headers={ANSWER_TO: TOLD})


def refused(answer: bytes) -> bool:
    message = codec.decode(answer).message
    return isinstance(message, MessageRejected) and all(message.problems)


async def assert_put_aside(pool: RunningPool, service: str, subject: str, sent: set[bytes]) -> None:
    """The dead letters of a service hold exactly these bytes, each with its reason and where it came from."""
    found: set[bytes] = set()
    sequence = 0

    async def following() -> Msg:
        try:
            return await next_letter(pool, service, after=sequence)
        except NotFound:
            if subject == TELEMETRY:  # no stream keeps it, and the monitor keeps a part of a flood
                await pool.bus.publish(subject, min(sent - found))
            raise

    while not found >= sent:
        letter = await persistently(following)
        assert letter.headers["Ef-Reason"]
        assert letter.headers["Ef-Subject"] == subject
        found.add(letter.data)
        sequence = int(letter.headers["Nats-Sequence"])
    assert found == sent


async def next_letter(pool: RunningPool, service: str, after: int) -> Msg:
    """Raises NotFound while there is none."""
    stream = streams.dead_letter_stream(POOL)
    request = {"next_by_subj": subjects.dead_letter(POOL, service), "seq": after + 1}
    letter = await pool.bus._connection.request(
        f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode(), timeout_s=5.0
    )
    if "Nats-Sequence" not in letter.headers:
        raise NotFound(stream, str(request))
    return letter

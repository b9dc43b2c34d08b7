"""Admission sends answers to inboxes and to the answer subjects of the sender only, on both buses.

A sender names where an answer goes: in a header of a command, and in the reply subject of a request. It could name a
subject on which it may not publish itself.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from elasticflow.services.admission.quote import QuoteRequests
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import DeadlineQuoted, QuoteDeadline
from elasticflow.shared.messages.events import MessageRejected
from elasticflow.shared.runtime.bus.contract import Bus, Subscription
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.service.command_queue import ANSWER_TO, MAX_LOGGED_LENGTH, CommandQueue
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.histories import spec, submit
from tests.support.service_contexts import service_context
from tests.support.shared_pool import PLAN, POOL, next_of

SUBMIT = subjects.submit("lab", POOL)
FOREIGN = (  # to this tenant
    PLAN,
    f"ef.ledger.{POOL}.job.j1",
    f"ef.submit.lab.{POOL}",
    f"ef.dead.{POOL}.admission",
    f"ef.answer.{POOL}.j1",
    "ef.answer.lab.another-pool.j1",
    f"ef.answer.victim.{POOL}.j1",
    f"ef.answer.lab.{POOL}.j1.more",
    "$JS.API.STREAM.DELETE.EF_LEDGER_pool-a",
    "anywhere",
    "_INBOX",
    f"_INBOX.{'x' * 5000}",  # a server closes the connection on a protocol line of more than 4096 bytes
)

QUOTED = DeadlineQuoted(earliest_deadline_s=None, at_s=0.0)


class WarningsLog(SilentLog):
    """Keeps the subjects of which it warns."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    def warning(self, event: str, **keys: Any) -> None:
        if event == "answer not sent":
            self.subjects.append(keys["subject"])


@asynccontextmanager
async def running(coroutine: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(coroutine)
    yield
    task.cancel()
    await asyncio.wait({task})


async def test_rejections_go_to_inboxes_and_to_answer_subjects_only(bus: Bus) -> None:
    log = WarningsLog()
    answers, ledger = await bus.subscribe("ef.answer.>"), await bus.subscribe("ef.ledger.>")
    inbox = await bus.subscribe("_INBOX.abc.>")
    queue = CommandQueue(service_context(bus, POOL, log=log), "admission", lambda: None, PoolState)
    async with running(queue.run()):
        for number, subject in enumerate((*FOREIGN, *FOREIGN, f"ef.answer.lab.{POOL}.j2", "_INBOX.abc.1")):
            await bus.append(SUBMIT, b"garbage", message_id=str(number), headers={ANSWER_TO: subject})
        assert is_rejection((await next_of(inbox)).data)  # of the last one: all others are handled
    assert await received(bus, answers, "ef.answer") == [f"ef.answer.lab.{POOL}.j2"]
    assert await received(bus, ledger, "ef.ledger") == []
    assert await bus.last_sequence(POOL) == 0
    assert log.subjects == [subject[:MAX_LOGGED_LENGTH] for subject in FOREIGN], "each once"


async def test_quotes_go_to_inboxes_and_to_answer_subjects_only(bus: Bus) -> None:
    log = WarningsLog()
    answers, ledger = await bus.subscribe("ef.answer.>"), await bus.subscribe("ef.ledger.>")
    request = codec.encode(QuoteDeadline(tenant="lab", spec=spec()), id="q", recorded_at_s=0.0)
    quotes = await bus.subscribe(subjects.quote("*", POOL), queue="admission")
    async with running(QuoteRequests(bus, POOL, lambda data, tenant: QUOTED, SystemClock(), log).run(quotes)):
        for subject in (*FOREIGN[:-1], *FOREIGN[:4], f"ef.answer.lab.{POOL}.j2"):
            await bus.publish(subjects.quote("lab", POOL), request, reply=subject)
        answer = codec.decode(await bus.request(subjects.quote("lab", POOL), request, 30.0)).message
    assert isinstance(answer, DeadlineQuoted)
    assert await received(bus, answers, "ef.answer") == [f"ef.answer.lab.{POOL}.j2"]
    assert await received(bus, ledger, "ef.ledger") == []
    assert await bus.last_sequence(POOL) == 0
    assert log.subjects == list(FOREIGN[:-1]), "each once"


async def test_the_rejection_of_a_command_goes_to_the_answer_subject_of_its_job(bus: Bus) -> None:
    """Of the tenant that may publish it, although the command names another tenant, or is unreadable."""
    answers = await bus.subscribe("ef.answer.>")
    queue = CommandQueue(service_context(bus, POOL, log=SilentLog()), "admission", lambda: None, PoolState)
    forged = codec.encode(submit("j1", tenant="victim"), id="c", recorded_at_s=0.0)
    async with running(queue.run()):
        for number, data in enumerate((forged, b'{"payload": {"job_id": "j1", "tenant": "victim"}}')):
            await bus.append(SUBMIT, data, message_id=str(number), headers={ANSWER_TO: PLAN})
            answer = await next_of(answers)
            assert is_rejection(answer.data)
            assert answer.subject == subjects.answer("lab", POOL, "j1")
    assert await bus.last_sequence(POOL) == 0


async def received(bus: Bus, messages: Subscription, prefix: str) -> list[str]:
    """The subjects of all messages that were sent until now to a subscription to this prefix."""
    end = f"{prefix}.end.end"
    await bus.publish(end, b"")
    found: list[str] = []
    while (message := await next_of(messages)).subject != end:
        found.append(message.subject)
    return found


def is_rejection(data: bytes) -> bool:
    return isinstance(codec.decode(data).message, MessageRejected)

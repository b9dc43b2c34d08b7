"""Replies that reach a client which waits for the reply to one command."""

import asyncio
from collections.abc import AsyncGenerator

from elasticflow.client.ledger import LedgerEntry
from elasticflow.client.replies import follow_replies
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.events import AmendRejected
from elasticflow.shared.runtime.bus.memory.bus import MemoryBus

SUBJECT = subjects.answer("p", "a")


async def no_entries() -> AsyncGenerator[LedgerEntry, None]:
    await asyncio.Event().wait()
    yield  # pyright: ignore[reportReturnType]


async def test_a_reply_that_is_repeated_for_another_command_is_ignored() -> None:
    bus = MemoryBus()
    async with follow_replies(await bus.subscribe(SUBJECT), no_entries(), "a", "mine") as replies:
        for cause_id in ("another", "", "mine", "another"):
            rejected = AmendRejected(job_id="a", explanation=f"cause {cause_id!r}", at_s=0.0)
            data = codec.encode(rejected, id="answer", cause_id=cause_id, recorded_at_s=0.0)
            await bus.publish(SUBJECT, data)
        received = [await asyncio.wait_for(replies.next(), 30.0) for _ in range(2)]
    assert [getattr(reply, "explanation", "") for reply in received] == ["cause ''", "cause 'mine'"]

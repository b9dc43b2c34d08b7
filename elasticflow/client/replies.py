"""Replies about one job, from two sources.

Admission publishes every reply, rejections and repeats included, but a publication can be lost. The ledger loses
nothing, but holds only what changed.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.events import (
    AmendRejected,
    CancelRejected,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointUpToDate,
    CheckpointWritten,
    Event,
    GpuLimitsCleared,
    GpuLimitsRejected,
    GpuLimitsSet,
    JobAdmitted,
    JobAmended,
    JobCancelled,
    JobFailed,
    JobProfiled,
    JobRejected,
    LoadDecision,
    MessageRejected,
    ProfileRequested,
    QuoteRejected,
    QuoteReserved,
)
from elasticflow.shared.runtime.bus.contract import Subscription

Decision = JobAdmitted | JobRejected | JobCancelled | JobFailed
CheckpointReply = CheckpointWritten | CheckpointFailed | CheckpointUpToDate | CheckpointRejected
CommandReply = (
    JobCancelled
    | CancelRejected
    | QuoteReserved
    | QuoteRejected
    | JobAmended
    | AmendRejected
    | GpuLimitsSet
    | GpuLimitsRejected
    | GpuLimitsCleared
    | CheckpointReply
    | LoadDecision
)
ProfileReply = JobProfiled | JobRejected | JobCancelled | JobFailed
AnyReply = Decision | ProfileReply | ProfileRequested | CommandReply | MessageRejected


class ReplyStream:
    """Replies to one tenant in the order of arrival; most arrive twice."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._received: asyncio.Queue[AnyReply | Exception] = asyncio.Queue()

    async def next(self) -> AnyReply:
        """Raises the error that ended the reading of the ledger."""
        received = await self._received.get()
        if isinstance(received, Exception):
            raise received
        return received

    async def receive_from_admission(self, subscription: Subscription, command_id: str) -> None:
        """Admission names the command of a reply: that to an earlier command may come late."""
        async for message in subscription:
            with contextlib.suppress(codec.Undecodable):
                envelope = codec.decode(message.data)
                if envelope.cause_id in ("", command_id):
                    self._receive(envelope.message)

    async def receive_from_ledger(self, events: AsyncIterator[Event]) -> None:
        try:
            async for event in events:
                self._receive(event)
        except Exception as error:
            self._received.put_nowait(error)

    def _receive(self, message: object) -> None:
        """Other tenants may send commands about this job too; admission rejects those in the ledger."""
        if isinstance(message, AnyReply) and getattr(message, "tenant", "") in ("", self._tenant):
            self._received.put_nowait(message)


@contextlib.asynccontextmanager
async def follow_replies(
    subscription: Subscription, events: AsyncIterator[Event], tenant: str, command_id: str
) -> AsyncGenerator[ReplyStream, None]:
    """Replies to a tenant about a job, without those to its other commands. command_id: of the command's envelope.

    subscription: to admission's replies about this job; it is closed at the end. events: of the ledger about it.
    """
    replies = ReplyStream(tenant)
    receiving = [
        asyncio.create_task(replies.receive_from_admission(subscription, command_id)),
        asyncio.create_task(replies.receive_from_ledger(events)),
    ]
    try:
        yield replies
    finally:
        for task in receiving:
            task.cancel()
        await asyncio.gather(*receiving, return_exceptions=True)
        with contextlib.suppress(Retry):
            await subscription.close()

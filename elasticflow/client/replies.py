"""Replies about one job, from two sources.

Admission publishes every reply, rejections and repeats included, but a publication can be lost. The ledger loses
nothing, but holds only what changed.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple

from elasticflow.shared.errors import Retry
from elasticflow.shared.messages import codec
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
    JobWarned,
    LoadDecision,
    MessageRejected,
    ProfileRequested,
    QuoteRejected,
    QuoteReserved,
    ThroughputMeasured,
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
AnyReply = Decision | ProfileReply | ProfileRequested | JobWarned | CommandReply | MessageRejected


class CausedEvent(NamedTuple):
    """An event of the ledger, and the place in the work queue of the command that it decides on; 0: of none that is
    known."""

    event: Event
    queue_sequence: int


class ReplyStream:
    """Replies to one tenant in the order of arrival; most arrive twice. Measurements of the job tell how far its answer
    is."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._received: asyncio.Queue[tuple[AnyReply | ThroughputMeasured, int] | Exception] = asyncio.Queue()

    async def next(self, queue_sequence: int | None = None) -> AnyReply | ThroughputMeasured:
        """queue_sequence: of a command; events that decide on others are left out. None takes all.

        Raises the error that ended the reading of the ledger.
        """
        while True:
            received = await self._received.get()
            if isinstance(received, Exception):
                raise received
            reply, decides_on = received
            if queue_sequence is None or decides_on in (0, queue_sequence):
                return reply

    async def receive_from_admission(self, subscription: Subscription, command_id: str) -> None:
        """Admission names the command of a reply: that to an earlier command may come late."""
        async for message in subscription:
            with contextlib.suppress(codec.Undecodable):
                envelope = codec.decode(message.data)
                if envelope.cause_id in ("", command_id):
                    self._receive(envelope.message, 0)

    async def receive_from_ledger(self, events: AsyncIterator[CausedEvent]) -> None:
        try:
            async for event, queue_sequence in events:
                self._receive(event, queue_sequence)
        except Exception as error:
            self._received.put_nowait(error)

    def _receive(self, message: object, queue_sequence: int) -> None:
        """Other tenants may send commands about this job too; admission rejects those in the ledger."""
        if isinstance(message, AnyReply | ThroughputMeasured) and getattr(message, "tenant", "") in ("", self._tenant):
            self._received.put_nowait((message, queue_sequence))


@contextlib.asynccontextmanager
async def follow_replies(
    subscription: Subscription, events: AsyncIterator[CausedEvent], tenant: str, command_id: str
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

"""What is said about one job, from two sides: admission's own word, which alone tells of refusals and repeats, and the
ledger, which alone is never lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from elasticflow.ledger_view import LedgerEntry
from shared.errors import Retry
from shared.messages import codec
from shared.messages.events import (
    AmendRefused,
    BoundEnded,
    CancelRefused,
    CheckpointFailed,
    CheckpointKept,
    CheckpointRefused,
    CheckpointWritten,
    JobAdmitted,
    JobAmended,
    JobCancelled,
    JobFailed,
    JobMeasured,
    JobRejected,
    JobScaled,
    MessageRefused,
    PlanDecided,
    ProfileRequested,
    QuoteHeld,
    QuoteRefused,
    ScaleRefused,
)
from shared.runtime.bus import Subscription

Decision = JobAdmitted | JobRejected | JobCancelled | JobFailed
Checkpointing = CheckpointWritten | CheckpointFailed | CheckpointKept | CheckpointRefused
Reply = (
    JobCancelled
    | CancelRefused
    | QuoteHeld
    | QuoteRefused
    | JobAmended
    | AmendRefused
    | JobScaled
    | ScaleRefused
    | BoundEnded
    | Checkpointing
)
Measured = JobMeasured | JobRejected | JobCancelled | JobFailed
Answer = Decision | Measured | ProfileRequested | Reply | MessageRefused


class Answers:
    """In the order in which they come; most come twice."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[Answer | Exception] = asyncio.Queue()

    async def next(self) -> Answer:
        """Raises what ended the reading of the ledger."""
        said = await self._heard.get()
        if isinstance(said, Exception):
            raise said
        return said

    async def hear_admission(self, words: Subscription) -> None:
        async for message in words:
            with contextlib.suppress(codec.Undecodable):
                answer = codec.decode(message.data).message
                if isinstance(answer, Answer):
                    self._heard.put_nowait(answer)

    async def hear_ledger(self, entries: AsyncIterator[LedgerEntry], job_id: str) -> None:
        try:
            async for _, message in entries:
                for event in message.events if isinstance(message, PlanDecided) else (message,):
                    if isinstance(event, Answer) and getattr(event, "job_id", "") == job_id:
                        self._heard.put_nowait(event)
        except Exception as error:
            self._heard.put_nowait(error)


@contextlib.asynccontextmanager
async def listening(
    words: Subscription, entries: AsyncIterator[LedgerEntry], job_id: str
) -> AsyncIterator[Answers]:
    """Answers about a job while this lasts. words: of admission, to this job's subject; closed in the end."""
    answers = Answers()
    listeners = [
        asyncio.create_task(answers.hear_admission(words)),
        asyncio.create_task(answers.hear_ledger(entries, job_id)),
    ]
    try:
        yield answers
    finally:
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
        with contextlib.suppress(Retry):
            await words.close()

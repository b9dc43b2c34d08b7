"""Wishes into the pool's work queue, and the answers to them."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import TypeVar

from elasticflow.answers import Answers, Reply, listening
from elasticflow.endpoint import Endpoint
from elasticflow.errors import Undecided
from elasticflow.job import InvalidJob
from elasticflow.ledger_view import LedgerView
from elasticflow.patience import patiently
from shared.messages import codec, subjects
from shared.messages.commands import Command, QuoteDeadline
from shared.messages.events import MessageRefused
from shared.messages.job import SCRIPT, TORCHRUN, JobSpec
from shared.runtime.clock import Clock, fresh_id
from shared.runtime.nats_bus import NatsBus

SomeReply = TypeVar("SomeReply", bound=Reply)


class Asking(LedgerView):
    """One pool, and on whose behalf it is asked."""

    def __init__(self, bus: NatsBus, endpoint: Endpoint, tenant: str, clock: Clock) -> None:
        super().__init__(bus, endpoint.pool)
        self.endpoint, self.tenant, self._clock = endpoint, tenant, clock

    def now_s(self) -> float:
        return self._clock.now_s()

    async def _answered(
        self, wish: Command, replies: tuple[type[SomeReply], ...], timeout_s: float
    ) -> SomeReply:
        """Publish a wish and wait for one of its replies."""
        check(wish)
        async with self._listening(wish.job_id) as answers:
            await self._publish(wish)
            try:
                async with asyncio.timeout(timeout_s):
                    while True:
                        answer = await answers.next()
                        if isinstance(answer, replies):
                            return answer
                        if isinstance(answer, MessageRefused):
                            raise InvalidJob(*answer.problems)
            except TimeoutError:
                raise Undecided(wish.job_id, timeout_s) from None

    async def _publish(self, wish: Command) -> None:
        """Into the work queue, once: a repeat after a lost acknowledgement has the same id."""
        message_id = f"{type(wish).__name__}-{fresh_id()}"
        data = codec.encode(wish, id=message_id, recorded_at_s=self.now_s())
        subject = subjects.submit(self.tenant, self._pool)
        await patiently(self._bus.append, subject, data, message_id=message_id)

    @contextlib.asynccontextmanager
    async def _listening(self, job_id: str) -> AsyncIterator[Answers]:
        """Answers from now on."""
        after_sequence = await self.last_sequence()
        words = await self._bus.subscribe(subjects.answer(self._pool, job_id))
        async with listening(words, self.entries(after_sequence=after_sequence), job_id) as answers:
            yield answers


def check(message: Command | QuoteDeadline) -> None:
    """Raises InvalidJob, naming every bad field."""
    problems = codec.validate(message)
    if problems:
        raise InvalidJob(*problems)


def fresh_job_id(spec: JobSpec) -> str:
    """The name of the class or of the script, and something new: "digits-cnn-3f9a1c"."""
    module, _, name = spec.training_function.rpartition(":")
    if name in (SCRIPT, TORCHRUN):
        name = module.rpartition(".")[2]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", "-", name).lower()
    words = re.sub(r"[^a-z0-9-]+", "", words).strip("-")
    return f"{words[:50] or 'job'}-{fresh_id()[:6]}"

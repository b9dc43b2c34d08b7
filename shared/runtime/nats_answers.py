"""Which answer belongs to which request: all of a connection come to one subscription, told apart by a ticket."""

import asyncio
import contextlib
import itertools
from collections.abc import Generator

from nats.aio.msg import Msg

from shared.errors import RequestTimeout


class ConnectionBroke(Exception):
    """Between request and answer; inside this package only: what it means depends on the request."""


class Answers:
    """What is waited for. prefix: of the subjects to which answers are sent, "" before there is a connection."""

    def __init__(self) -> None:
        self.prefix = ""
        self._awaited: dict[str, asyncio.Future[Msg]] = {}
        self._tickets = itertools.count()

    @contextlib.contextmanager
    def expected(self, subject: str, timeout_s: float) -> Generator[tuple[str, asyncio.Future[Msg]]]:
        """Where an answer is to be sent, and the answer: RequestTimeout without one, ConnectionBroke."""
        loop = asyncio.get_running_loop()
        ticket = str(next(self._tickets))
        answer: asyncio.Future[Msg] = loop.create_future()
        self._awaited[ticket] = answer
        timer = loop.call_later(timeout_s, _fail, answer, RequestTimeout(subject, timeout_s))
        try:
            yield self.prefix + ticket, answer
        finally:
            timer.cancel()
            del self._awaited[ticket]

    async def on_message(self, message: Msg) -> None:
        answer = self._awaited.get(message.subject[len(self.prefix) :])
        if answer is not None and not answer.done():
            answer.set_result(message)

    def let_go(self) -> None:
        """None of them will come."""
        for answer in self._awaited.values():
            _fail(answer, ConnectionBroke())


def _fail(answer: asyncio.Future[Msg], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)

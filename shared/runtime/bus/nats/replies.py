"""Matches answers to requests: all answers of a connection come to one subscription, distinguished by a ticket.

Holds the messages of a subscription until they are taken, many at once.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Generator

from nats.aio.msg import Msg

from elasticflow.shared.errors import RequestTimeout
from elasticflow.shared.runtime.bus.contract import MAX_INBOX_BYTES


class ConnectionBroke(Exception):
    """The connection broke between request and answer. It stays in this package: its meaning depends on the request."""


class Answers:
    """What is waited for. prefix: of the subjects to which answers are sent, "" before there is a connection."""

    def __init__(self) -> None:
        self.prefix = ""
        self._awaited: dict[str, asyncio.Future[Msg]] = {}
        self._subjects: dict[str, str] = {}  # by ticket, where the request went
        self._tickets = itertools.count()

    @contextlib.contextmanager
    def expected(self, subject: str, timeout_s: float) -> Generator[tuple[str, asyncio.Future[Msg]]]:
        """Yield the subject for an answer, and the answer.

        The answer raises RequestTimeout if it does not come, or ConnectionBroke.
        """
        loop = asyncio.get_running_loop()
        ticket = str(next(self._tickets))
        answer: asyncio.Future[Msg] = loop.create_future()
        self._awaited[ticket], self._subjects[ticket] = answer, subject
        timer = loop.call_later(timeout_s, _fail, answer, RequestTimeout(subject, timeout_s))
        try:
            yield self.prefix + ticket, answer
        finally:
            timer.cancel()
            del self._awaited[ticket], self._subjects[ticket]

    async def on_message(self, message: Msg) -> None:
        answer = self._awaited.get(message.subject[len(self.prefix) :])
        if answer is not None and not answer.done():
            answer.set_result(message)

    def refuse(self, subject: str, error: Callable[[str], Exception]) -> None:
        """The server does not permit requests to this subject, which it names in lower case."""
        for ticket, asked in self._subjects.items():
            if asked.lower() == subject:
                _fail(self._awaited[ticket], error(asked))

    def let_go(self) -> None:
        """Fail all awaited answers: none of them will come."""
        for answer in self._awaited.values():
            _fail(answer, ConnectionBroke())


def _fail(answer: asyncio.Future[Msg], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


class ReplyInbox:
    """What has arrived on a subject and was not taken yet.

    max_messages: with it, later messages replace the oldest above it and above MAX_INBOX_BYTES, and only `take` and
    `clear` take them.
    """

    def __init__(self, max_messages: int | None) -> None:
        self.messages: deque[Msg] = deque()
        self._max_messages = max_messages
        self._num_bytes = 0
        self.closed = False
        self._something = asyncio.Event()

    async def on_message(self, message: Msg) -> None:
        self.messages.append(message)
        self._num_bytes += len(message.data)
        if self._max_messages is not None:
            while len(self.messages) > self._max_messages or self._num_bytes > MAX_INBOX_BYTES:
                self.take()
        self._something.set()

    def take(self) -> Msg:
        """The oldest."""
        message = self.messages.popleft()
        self._num_bytes -= len(message.data)
        return message

    def clear(self) -> None:
        self.messages.clear()
        self._num_bytes = 0

    def wake(self) -> None:
        """Let a waiter look around, although nothing may have arrived."""
        self._something.set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait until something arrives, or has since the last wait, or `wake` is called; False after timeout_s."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._something.wait()
        except TimeoutError:
            return False
        self._something.clear()
        return True


def status_of(message: Msg) -> str | None:
    """The status of a message that is one of the server's own words, None for others."""
    return message.headers.get("Status") if message.headers and not message.data else None

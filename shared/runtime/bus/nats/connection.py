"""One connection to NATS: its states, requests with their answers, and inboxes. JetStream is the caller's.

nats-py reconnects by itself. What it leaves open is closed here: a request fails as soon as the connection
breaks instead of running into its timeout; nothing is queued while disconnected, to be sent when its sender has
long given up; readers are woken on reconnection; cancellations are not swallowed; secrets stay out of messages.
"""

import asyncio
import contextlib
import itertools
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, TypeVar, cast

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from elasticflow.shared.errors import (
    BadSettings,
    BusClosed,
    NoResponder,
    NotPermitted,
    RequestTimeout,
    TooLarge,
    Unavailable,
)
from elasticflow.shared.runtime.bus.contract import MAX_INBOX_BYTES
from elasticflow.shared.runtime.bus.nats.client import ConnectionListener, check_url, connect_client, masked
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.runtime.process.nats_access import NatsAccess

# --- replies ------------------------------------------------------------------------------------------
# Matches answers to requests: all answers of a connection come to one subscription, distinguished by a ticket.
#
# Holds the messages of a subscription until they are taken, many at once.


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


# --- refusals ------------------------------------------------------------------------------------------
# What the server does not permit to a connection. It says so in an error that belongs to no request.

# Of the server's error; nats-py makes all letters small.
_REFUSED = re.compile(r'(?P<verb>publish|subscription) to "(?P<subject>[^"]+)"')


class Refusals:
    """url: without secrets."""

    def __init__(self, url: str, answers: Answers) -> None:
        self._url, self._answers = url, answers
        self._subscriptions = set[str]()

    def note(self, error: str) -> None:
        """Requests to the subject fail at once, without their timeout."""
        refused = _REFUSED.search(error)
        if refused is None:
            return
        if refused["verb"] == "publish":
            self._answers.refuse(refused["subject"], lambda subject: NotPermitted(self._url, subject))
        else:
            self._subscriptions.add(refused["subject"])

    def check_subscription(self, subject: str) -> None:
        """Raise NotPermitted if the server has refused the subscription. Call it after a flush."""
        if subject.lower() in self._subscriptions:
            raise NotPermitted(self._url, subject)


# --- connection ----------------------------------------------------------------------------------------

Result = TypeVar("Result")
OnState = Callable[[str], None]  # "connected", "disconnected", "reconnected" or "closed"

_API = "$JS.API"
API_OF_POOL = "ef.api"  # the same for a client of another account: there, NATS answers on $JS.API that JetStream is off
_NOT_ENABLED = (10035, 10039)
_HEADER_LINE_BYTES = 14  # "NATS/1.0\r\n", and the empty line at the end


class Connection:
    """epoch counts the connections made: whatever lives in the server's memory is gone when it changes."""

    def __init__(self, url: str, on_state: OnState | None) -> None:
        self.url = masked(url)
        self.epoch = 0
        self.client = Client()
        self._on_state = on_state
        self._closing = False
        self._connected = asyncio.Event()
        self._inboxes: dict[ReplyInbox, Any] = {}
        self._answers = Answers()
        self._api = _API
        self.refusals = Refusals(self.url, self._answers)

    async def open(
        self,
        url: str,
        *,
        name: str,
        wait_s: float,
        access: NatsAccess,
    ) -> None:
        """Connect within wait_s; raises BadSettings or BadCredentials (at once), or Unavailable."""
        check_url(url)  # this and the next before there is anything to close
        if problems := access.problems():
            raise BadSettings(problems)
        try:
            await connect_client(
                self.client,
                url,
                name=name,
                wait_s=wait_s,
                access=access,
                listener=ConnectionListener(
                    self.refusals.note, self._on_disconnected, self._on_reconnected, self._on_closed
                ),
            )
            self._answers.prefix = self.client.new_inbox() + "."
            await _heard(self.client.subscribe(self._answers.prefix + "*", cb=self._answers.on_message))
        except BaseException:
            await self.close()
            raise
        self._report_state("connected")

    # -- states

    @property
    def is_connected(self) -> bool:
        return self.client.is_connected

    def check_open(self) -> None:
        """Raises BusClosed once there is no way back."""
        if self._closing or self.client.is_closed:
            raise BusClosed("by us" if self._closing else str(self.client.last_error or "by the server"))

    async def wait_connected(self, timeout_s: float | None) -> bool:
        """False after timeout_s; raises BusClosed."""
        self.check_open()
        if not self.is_connected:
            self._connected.clear()  # nats-py knows of a break before it reports it: a retry must not busy-loop
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._connected.wait()
            self.check_open()
        return self.is_connected

    async def close(self) -> None:
        """Drain if connected, then close, which takes some seconds at most. Raises a cancellation afterwards."""
        if self._closing:
            return
        self._closing = True
        closing = asyncio.ensure_future(self._drain_and_close())  # a task of its own, which is never cancelled
        is_cancelled = False
        while not closing.done():
            try:
                await asyncio.wait({closing})
            except asyncio.CancelledError:
                is_cancelled = True
        closing.result()
        if is_cancelled:
            raise asyncio.CancelledError

    async def _drain_and_close(self) -> None:
        try:
            if self.is_connected:
                await self.client.drain()
        finally:
            await self.client.close()
            self._let_go()

    def _report_state(self, state: str) -> None:
        if state in ("connected", "reconnected"):
            self.epoch += 1
            self._connected.set()
        if self._on_state is not None:
            self._on_state(state)
        elif state == "disconnected":  # to open and to close was the caller's own doing
            log.warning("bus_disconnected", url=self.url)
        elif state == "reconnected":
            log.info("bus_reconnected", url=self.url)

    async def _on_disconnected(self) -> None:
        self._connected.clear()
        self._let_go()
        if not self._closing:
            self._report_state("disconnected")

    async def _on_reconnected(self) -> None:
        self._report_state("reconnected")
        for inbox in self._inboxes:
            inbox.wake()

    async def _on_closed(self) -> None:
        self._connected.set()  # waiters for a connection must learn that there will be none
        for inbox in self._inboxes:
            inbox.closed = True
        self._let_go()
        if self.epoch:
            self._report_state("closed")

    def _let_go(self) -> None:
        self._answers.let_go()
        for inbox in self._inboxes:
            inbox.wake()

    # -- messages

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Hand one message to the socket; raises Unavailable, TooLarge, BusClosed."""
        self.check_open()
        if not self.is_connected:
            raise Unavailable(self.url, "disconnected, reconnecting")
        num_bytes = len(data) + _header_bytes(headers)
        if num_bytes > self.client.max_payload:  # the server would close the connection
            raise TooLarge(subject, num_bytes, self.client.max_payload)
        try:
            await _heard(self.client.publish(subject, data, reply, dict(headers) if headers else None))
        except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError) as error:
            raise BusClosed(str(error)) from error

    async def flush(self, timeout_s: float) -> None:
        """Wait until the server has seen all that was handed over before; raises what request raises.

        An echo of our own: nats-py's ping overtakes a subscription that it has not written yet, and the first messages
        would be lost.
        """
        with self._answers.expected("an echo", timeout_s) as (reply, answer):
            await self.publish(reply, b"")
            await answer

    async def request(
        self, subject: str, data: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Msg:
        """Raises NoResponder, RequestTimeout, ConnectionBroke, and what publish raises."""
        with self._answers.expected(subject, timeout_s) as (reply, answer):
            await self.publish(subject, data, reply=reply, headers=headers)
            message = await answer
        if status_of(message) == "503":
            raise NoResponder(subject)
        return message

    async def api(self, call: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 5.0) -> dict[str, Any]:
        """Ask the JetStream API; its answer, which may hold an "error". Raises Unavailable."""
        answer = await self._ask_api(call, body, timeout_s)
        if self._api == _API and answer.get("error", {}).get("err_code") in _NOT_ENABLED:
            self._api = API_OF_POOL
            answer = await self._ask_api(call, body, timeout_s)
        return answer

    async def _ask_api(self, call: str, body: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        data = json.dumps(body).encode() if body else b""
        try:
            answer = await self.request(f"{self._api}.{call}", data, timeout_s=timeout_s)
        except NoResponder:
            raise Unavailable(self.url, "JetStream is off, or has no leader yet") from None
        except (RequestTimeout, ConnectionBroke) as error:
            raise Unavailable(self.url, str(error) or "connection broke") from None
        return cast(dict[str, Any], json.loads(answer.data))

    @property
    def server_version(self) -> str:
        """The version of the server that this process is connected to; "" if it is unknown."""
        return str(self.client._server_info.get("version", ""))

    # -- inboxes

    async def open_inbox(self, subject: str, queue: str = "", *, max_messages: int | None = None) -> ReplyInbox:
        """Collect what is sent to a subject until close_inbox. max_messages: None if the sender waits for us."""
        self.check_open()
        inbox = ReplyInbox(max_messages)
        self._inboxes[inbox] = await _heard(self.client.subscribe(subject, queue, cb=inbox.on_message))
        return inbox

    async def close_inbox(self, inbox: ReplyInbox) -> None:
        subscription = self._inboxes.pop(inbox, None)
        inbox.closed = True
        inbox.wake()
        if subscription is not None:
            with contextlib.suppress(nats.errors.Error):  # closed or draining: gone anyway
                await _heard(subscription.unsubscribe())

    def new_subject(self) -> str:
        """A subject that no other client uses."""
        return self.client.new_inbox()


async def _heard(call: Awaitable[Result]) -> Result:
    """nats-py swallows a cancellation that meets it while it flushes; a service would never stop."""
    task = asyncio.current_task()
    assert task is not None
    num_before = task.cancelling()
    result = await call
    if task.cancelling() > num_before:
        raise asyncio.CancelledError
    return result


def _header_bytes(headers: Mapping[str, str] | None) -> int:
    if not headers:
        return 0
    return _HEADER_LINE_BYTES + sum(len(key) + len(value.encode()) + 4 for key, value in headers.items())

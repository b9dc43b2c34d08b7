"""Commands into the pool's work queue, and the replies to them."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.client.pool_reader import PoolReader
from elasticflow.client.replies import AnyReply, ReplyStream, follow_replies
from elasticflow.client.tenant_view import TenantView
from elasticflow.errors import Undecided
from elasticflow.sdk.job import InvalidJob
from elasticflow.sdk.packaging import Package
from elasticflow.sdk.times import Duration, seconds_of
from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.commands import (
    AmendJob,
    CancelJob,
    Command,
    ProfileJob,
    QuoteDeadline,
    ReserveQuote,
    SetGpuLimits,
    SubmitJob,
    id_of,
)
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.events import MessageRejected, ProfileRequested
from elasticflow.shared.messages.job_spec import SCRIPT, SCRIPT_SUFFIX, TORCHRUN, JobSpec
from elasticflow.shared.messages.limits import MAX_SUBMISSION_BYTES
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.bus import NatsBus
from elasticflow.shared.runtime.bus.with_retry import with_retry
from elasticflow.shared.runtime.process.clock import Clock, fresh_id

SomeReply = TypeVar("SomeReply", bound=AnyReply)
# Of these, an event that decides on another one is no reply: two users may amend or cancel a job at the same time.
_CHANGES = (CancelJob, AmendJob, SetGpuLimits, ReserveQuote)


class CommandRequests(PoolReader):
    """Sends commands of one tenant to one pool."""

    def __init__(
        self, bus: NatsBus, endpoint: Endpoint, tenant: str, clock: Clock, view: TenantView | None = None
    ) -> None:
        super().__init__(bus, endpoint.pool, view)
        self.endpoint, self.tenant, self._clock = endpoint, tenant, clock

    def now_s(self) -> float:
        return self._clock.now_s()

    async def _reply_to(
        self,
        command: Command,
        kinds: tuple[type[SomeReply], ...],
        timeout: Duration,
        *,
        code: Package | None = None,
        on_undecided: Callable[[ProfileRequested], None] | None = None,
    ) -> SomeReply:
        """Publish a command and wait for a reply of one of these kinds. timeout: until the first reply.

        Raises InvalidJob, Undecided.
        """
        reply = await self._first_reply_to(command, kinds, timeout, code, on_undecided)
        if self.view is not None:
            await self.view.until_seen(id_of(command), reply)
        return reply

    async def _first_reply_to(
        self,
        command: Command,
        kinds: tuple[type[SomeReply], ...],
        timeout: Duration,
        code: Package | None,
        on_undecided: Callable[[ProfileRequested], None] | None,
    ) -> SomeReply:
        check(command)
        timeout_s = seconds_of(timeout)
        spec = command.spec if isinstance(command, SubmitJob | ProfileJob) else None
        message_id = fresh_message_id(command)
        async with self._replies_to(id_of(command), message_id) as replies:
            published = await self._publish(command, message_id, code)
            decided = published if isinstance(command, _CHANGES) else None
            deadline = asyncio.timeout(timeout_s)
            try:
                async with deadline:
                    while True:
                        match await replies.next(decided):
                            case reply if isinstance(reply, kinds) and _is_about(reply, spec):
                                return reply
                            case ProfileRequested() as undecided if spec is not None:
                                if on_undecided and deadline.when() is not None:  # it arrives twice
                                    on_undecided(undecided)
                                deadline.reschedule(None)
                            case MessageRejected(problems=problems):
                                raise InvalidJob(*problems)
                            case _:
                                pass
            except TimeoutError:
                raise Undecided(id_of(command), timeout_s) from None

    async def _publish(self, command: Command, message_id: str, code: Package | None = None) -> int:
        """Upload the code, then append to the work queue once: a retry has the same message id.

        Returns the place in the queue. Raises InvalidJob.
        """
        try:
            data = codec.encode(command, id=message_id, recorded_at_s=self.now_s(), max_bytes=MAX_SUBMISSION_BYTES)
        except TooLarge as error:
            raise InvalidJob(str(error)) from None
        if code is not None:
            bucket = streams.code_bucket(self._pool)
            name = streams.code_name(self.tenant, code.code_digest)
            await with_retry(self._bus.put_object, bucket, name, code.archive)
        subject = subjects.submit(self.tenant, self._pool)
        return await with_retry(self._bus.append, subject, data, message_id=message_id)

    @contextlib.asynccontextmanager
    async def _replies_to(self, job_id: str, message_id: str) -> AsyncGenerator[ReplyStream, None]:
        """Replies from now on."""
        events = await self._new_events(job_id)
        subscription = await self._bus.subscribe(subjects.answer(self.tenant, self._pool, job_id))
        async with (
            contextlib.aclosing(events),
            follow_replies(subscription, events, self.tenant, message_id) as replies,
        ):
            yield replies


def fresh_message_id(command: Command) -> str:
    """Of the message with this command, on the bus and in its envelope."""
    return f"{type(command).__name__}-{fresh_id()}"


def _is_about(reply: AnyReply, spec: JobSpec | None) -> bool:
    """Whether the reply does not decide on another submission under the same id. spec: None accepts any."""
    return spec is None or getattr(reply, "spec", None) in (None, spec)


def check(message: Command | QuoteDeadline) -> None:
    """Raises InvalidJob, naming every bad field."""
    problems = codec.validate(message)
    if problems:
        raise InvalidJob(*problems)


def fresh_job_id(spec: JobSpec) -> str:
    """The name of the class or script with a fresh suffix: "digits-cnn-3f9a1c"."""
    module, _, name = spec.training_function.rpartition(":")
    if name in (SCRIPT, TORCHRUN):
        is_file = module.endswith(SCRIPT_SUFFIX)
        name = module.removesuffix(SCRIPT_SUFFIX) if is_file else module.rpartition(".")[2]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()
    words = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    return f"{words[:50] or 'job'}-{fresh_id()[:6]}"

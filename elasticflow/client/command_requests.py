"""Commands into the pool's work queue, and the replies to them."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple, TypeVar

from elasticflow.client.ledger import LedgerEntry, LedgerView, archives_needed
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.client.replies import AnyReply, CausedEvent, ReplyStream, follow_replies
from elasticflow.client.tenant_view import TenantView
from elasticflow.errors import (
    InvalidJob,
    KeysUnusable,
    NoAdmission,
    NotEnded,
    NotQuoted,
    Undecided,
    UnknownJob,
)
from elasticflow.history.job_history import HistoryEntry, job_history
from elasticflow.shared.errors import NoResponder, TooLarge
from elasticflow.shared.messages import codec, subjects
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
from elasticflow.shared.messages.events import (
    ArtifactsStored,
    DeadlineQuoted,
    Event,
    JobWarned,
    MessageRejected,
    PlanDecided,
    ProfileRequested,
    ThroughputMeasured,
)
from elasticflow.shared.messages.job_spec import SCRIPT, SCRIPT_SUFFIX, TORCHRUN, JobSpec
from elasticflow.shared.messages.limits import MAX_SUBMISSION_BYTES
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus, with_retry
from elasticflow.shared.runtime.bus.nats.bus import NatsBus
from elasticflow.shared.runtime.process.clock import Clock, fresh_id
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState
from elasticflow.times import Duration, seconds_of


class Package(NamedTuple):
    training_function: str  # "package.module:Class"; for a script "module:__main__", or "my-train.py:__main__"
    code_digest: str  # SHA-256 of the archive
    archive: bytes  # zip
    import_folder: str = ""  # in the archive, of the module


# --- pool reader ---------------------------------------------------------------------------------------
# What a client reads of its pool: from the ledger, or with the key of a tenant from that tenant's view.


class PoolReader:
    """view: None reads the ledger."""

    def __init__(self, bus: NatsBus, pool: str, view: TenantView | None = None) -> None:
        self._bus, self._pool, self.view = bus, pool, view
        self._ledger = LedgerView(bus, pool)

    @property
    def is_connected(self) -> bool:
        """False while the connection to NATS is being made again."""
        return self._bus.is_connected

    @property
    def ledger(self) -> LedgerView:
        """All that happened in the pool. Raises KeysUnusable."""
        self.require_operator()
        return self._ledger

    def require_operator(self) -> None:
        """Raises KeysUnusable with the key of a tenant."""
        if self.view is not None:
            raise KeysUnusable(
                "operators_only",
                f"this reads what all tenants of pool {self._pool!r} do, which the key of a tenant does not permit: "
                "use the key of an operator in EF_NATS_CREDS",
            )

    def entries(self, *, after_sequence: int = 0, up_to: int | None = None) -> AsyncGenerator[LedgerEntry, None]:
        """The ledger, message by message, up to a sequence or without end. Raises KeysUnusable."""
        return self.ledger.entries(after_sequence=after_sequence, up_to=up_to)

    async def last_sequence(self) -> int:
        """The last sequence of the ledger. Raises KeysUnusable."""
        return await self.ledger.last_sequence()

    async def state(self) -> PoolState:
        """The pool now; for a tenant, without what others do."""
        return await (self._ledger if self.view is None else self.view).state()

    def states(self) -> AsyncGenerator[PoolState, None]:
        """The pool now and after every change, without end; a burst of changes counts as one."""
        return (self._ledger if self.view is None else self.view).states()

    async def history(self, name: str) -> tuple[HistoryEntry, ...]:
        """What happened to a job or padding load; () of an unknown one.

        Without archives it begins with the present epoch. Raises LedgerUnusable where nothing is in that one.
        """
        if self.view is not None:
            return await self.view.history(name)
        last, state = await self._ledger.last_sequence(), await self._ledger.beginning()
        async with contextlib.aclosing(self._ledger.entries(after_sequence=state.sequence, up_to=last)) as entries:
            read = [(stored.sequence, stored.stored_at_s, message) async for stored, message in entries]
        history = job_history(read, name, state)
        if not history and (state.job(name) is not None or name in state.loads):
            raise archives_needed(self._pool, state.sequence)
        return history

    async def known_history(self, name: str) -> tuple[HistoryEntry, ...]:
        """Return what `history` returns. Raises UnknownJob, with close names, if it is empty."""
        if not (history := await self.history(name)):
            raise UnknownJob(name, f"pool {self._pool}", (await self.state()).names)
        return history

    async def job(self, job_id: str) -> Job:
        """Raises UnknownJob."""
        return self._known(await self.state(), job_id)

    async def wait(self, job_id: str, *, timeout: Duration | None = None) -> Job:
        """The job, once it has ended. Raises UnknownJob, NotEnded."""
        timeout_s = None if timeout is None else seconds_of(timeout)
        try:
            async with asyncio.timeout(timeout_s), contextlib.aclosing(self.states()) as states:
                async for state in states:
                    job = self._known(state, job_id)
                    if not job.live:
                        return job
        except TimeoutError:
            raise NotEnded(job_id, timeout_s or 0.0) from None
        raise AssertionError("states() never ends")

    async def _new_events(self, name: str) -> AsyncGenerator[CausedEvent, None]:
        """The events about a job or load from now on, without end."""
        if self.view is not None:
            return await self.view.new_events(name)
        return self._events_after(name, await self._ledger.last_sequence())

    async def _events_after(self, name: str, sequence: int) -> AsyncGenerator[CausedEvent, None]:
        async with contextlib.aclosing(self._ledger.entries(after_sequence=sequence)) as entries:
            async for _, message in entries:
                is_decision = isinstance(message, PlanDecided)
                for event in message.events if is_decision else (message,):
                    if isinstance(event, Event) and id_of(event) == name:
                        yield CausedEvent(event, message.queue_sequences().get(name, 0) if is_decision else 0)

    async def _stored_files(self, job: Job) -> ArtifactsStored | None:
        """The newest event that names the stored files of a job; None if it cannot be found."""
        if self.view is not None:
            first = job.artifacts.sequence  # older ones are of an earlier job of the name
            events = [kept.event for kept in await self.view.events(job.job_id) if kept.sequence >= first]
            return next((event for event in reversed(events) if isinstance(event, ArtifactsStored)), None)
        after = job.artifacts.sequence - 1
        async with contextlib.aclosing(self._ledger.entries(after_sequence=after, up_to=after + 1)) as entries:
            return await anext((message async for _, message in entries if isinstance(message, ArtifactsStored)), None)

    def _known(self, state: PoolState, job_id: str) -> Job:
        job = state.job(job_id)
        if job is None:
            raise UnknownJob(job_id, f"pool {self._pool}", state.names)
        return job


# --- command requests ----------------------------------------------------------------------------------

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
        self.on_sent: Callable[[str], object] = lambda name: None  # gets the job or load of each command, as it is sent
        self.on_warning: Callable[[str], object] = lambda warning: None  # gets what arrives before a reply, once each
        self.on_measured: Callable[[ThroughputMeasured], object] = lambda measured: None  # of a profiling run
        self.on_earlier: Callable[[Job, bool], object] = lambda job, is_replaced: None  # gets the job that has a name

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
        message_id, warned = fresh_message_id(command), set[str]()
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
                            case JobWarned(warning=warning) if warning not in warned:
                                warned.add(warning)
                                self.on_warning(warning)
                            case ThroughputMeasured(source="profile") as measured:
                                self.on_measured(measured)
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
        self.on_sent(id_of(command))
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
    """A new id of the message with this command, on the bus and in its envelope."""
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


# --- Asking admission for a quote: one replica after another, until one can tell -----------------------

MAX_TRIES = 6  # NATS chooses the replica: with one of two that cannot answer, 1 request in 64 fails
_FIRST_WAIT_S = 0.05


async def ask_quote(bus: Bus, pool: str, request: QuoteDeadline, *, timeout_s: float, now_s: float) -> DeadlineQuoted:
    """timeout_s: of each attempt. Raises InvalidJob, NoAdmission, NotQuoted, RequestTimeout."""
    data = codec.encode(request, id=f"quote-{fresh_id()}", recorded_at_s=now_s)
    wait_s, reason = _FIRST_WAIT_S, ""
    for attempt in range(MAX_TRIES):
        if attempt:
            await asyncio.sleep(wait_s)
            wait_s *= 2
        try:
            reply = await bus.request(subjects.quote(request.tenant, pool), data, timeout_s)
        except NoResponder:
            raise NoAdmission(pool) from None
        match codec.decode(reply).message:
            case DeadlineQuoted() as quoted:
                return quoted
            case MessageRejected(problems=problems, ask_again=True):
                reason = "; ".join(problems)
            case MessageRejected(problems=problems):
                raise InvalidJob(*problems)
            case other:
                raise codec.Undecodable(f"{type(other).__name__} is not a reply to QuoteDeadline")
    raise NotQuoted(pool, reason)

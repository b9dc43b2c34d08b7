"""Commands from the work queue: pulled, read, kept until they are decided on, dead-lettered if unreadable.

The queue may deliver a command again after its decision, because an acknowledgement was lost. The decision names its
position in the queue, so the folded state tells such a repeat from a command that waits for its decision.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from elasticflow.shared.errors import ElasticFlowError, Retry
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.codec import Envelope, Undecodable
from elasticflow.shared.messages.commands import CancelJob, CancelLoad, Command, SealLoad, SubmitJob, id_of, owned
from elasticflow.shared.messages.events import MessageRejected, QueuePosition
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES, MAX_SUBMISSION_BYTES
from elasticflow.shared.messages.pool_config import DAY_S
from elasticflow.shared.runtime.bus.contract import Bus, WorkItem, WorkQueue, until_available
from elasticflow.shared.runtime.bus.streams import state_bucket
from elasticflow.shared.runtime.process.logs import RefusalLog
from elasticflow.shared.runtime.service.ledger_encoding import dead_letter_headers
from elasticflow.shared.runtime.service.service_context import ServiceContext
from elasticflow.shared.runtime.service.turns import Turns
from elasticflow.shared.state.pool import PoolState

# --- answer sender -------------------------------------------------------------------------------------
# Answers on subjects that tenants chose: each goes to an inbox or to an answer subject of that tenant, or nowhere.

MAX_WARNINGS = 100  # one for each subject; a flood of subjects must not flood the log
MAX_LOGGED_LENGTH = 300


class AnswerSender:
    """Sends the answers of one service of one pool."""

    def __init__(self, bus: Bus, pool: str, log: Any) -> None:
        self._bus, self._pool, self._log = bus, pool, log
        self._warned_of: set[str] = set()

    async def send(self, tenant: str, subject: str, data: bytes) -> None:
        """Publish an answer to this tenant. subject: "" if it awaits none. Raises what the bus raises."""
        if not subject:
            return
        if subjects.may_be_answered(tenant, self._pool, subject):
            await self._bus.publish(subject, data)
            return
        shown = subject[:MAX_LOGGED_LENGTH]
        if shown not in self._warned_of and len(self._warned_of) < MAX_WARNINGS:
            self._warned_of.add(shown)
            why = f"no inbox (_INBOX.>) and no subject of {subjects.answer(tenant, self._pool, '*')}"
            self._log.warning("answer not sent", subject=shown, why=why)


# --- attempts ------------------------------------------------------------------------------------------
# How often replicas began to decide on a command and died: what kills one replica would kill the next one too.
#
# The process that counts an attempt may not survive it, so the number is kept on the bus.

_KEPT_S = 86_400
_MAX_DIGITS = 9


class Attempts:
    """The attempts at the commands of one pool that were not survived. Each call raises Retry without a server."""

    def __init__(self, bus: Bus, pool: str) -> None:
        self._bus, self._bucket = bus, state_bucket(pool)

    async def begin(self, position: QueuePosition) -> int:
        """Count one more attempt. Returns the number of earlier ones."""
        value = await self._bus.get_value(self._bucket, _key(position))
        num_earlier = _number(value.data) if value is not None else 0
        await self._write(position, num_earlier + 1)
        return num_earlier

    async def survived(self, position: QueuePosition) -> None:
        """This attempt ended, so the command does no harm: no attempt at it counts any more."""
        await self._write(position, 0)

    async def _write(self, position: QueuePosition, number: int) -> None:
        await self._bus.put_value(self._bucket, _key(position), b"%d" % number, ttl_s=_KEPT_S)


def _number(data: bytes) -> int:
    """0 if the value is damaged: then a command may have more attempts, but no service ends."""
    return int(data) if data.isdigit() and len(data) <= _MAX_DIGITS else 0


def _key(position: QueuePosition) -> str:
    return f"attempts.{position.sequence}-{int(position.stored_at_s)}"


# --- command budgets -----------------------------------------------------------------------------------
# How many bytes of commands each tenant may send: the ledger keeps what admission decides on, rejections included.
#
# Each replica of admission counts for itself, from its start: after a pause a tenant may send a part of a day's bytes
# at once, and the rest becomes free evenly over a day. So no 24 hours have more than the bytes of a day.

AT_ONCE = 0.5  # of a day's bytes
LEAST_BYTES = 1024  # that a command counts: its answer takes space, too
MAX_TENANTS = 10_000  # whose use is known; of more, the one that sent longest ago counts as unused


class CommandBudgets:
    """bytes_per_day: of each tenant, by its name."""

    def __init__(self, bytes_per_day: Callable[[str], int]) -> None:
        self._bytes_per_day = bytes_per_day
        self._used: dict[str, tuple[float, float]] = {}  # bytes, and at what time; who sent last is at the end

    def use(self, tenant: str, num_bytes: int, now_s: float) -> str | None:
        """Count a command, or say why it is not taken now, and when it would be."""
        num_bytes, per_day = max(num_bytes, LEAST_BYTES), self._bytes_per_day(tenant)
        at_once = per_day * AT_ONCE
        freed_per_s = (per_day - at_once) / DAY_S
        before, at_s = self._used.pop(tenant, (0.0, now_s))
        used = max(before - (now_s - at_s) * freed_per_s, 0.0)
        fits = used + num_bytes <= at_once
        self._used[tenant] = used + num_bytes * fits, now_s
        if len(self._used) > MAX_TENANTS:
            del self._used[next(iter(self._used))]
        if fits:
            return None
        return (
            f"tenant {tenant} has sent as many bytes of commands as it may ({per_day:,} in a day, {at_once:,.0f} of "
            f"them at once); retry in {(used + num_bytes - at_once) / freed_per_s:.0f} s, or ask the operator for a "
            f"larger max_command_bytes_per_day"
        )


# --- command queue -------------------------------------------------------------------------------------

ANSWER_TO = "Ef-Answer-To"  # header: the inbox in which the sender awaits a refusal
MAX_PENDING = 1024  # more than one decision takes, and more than two tenants may have in the queue
MAX_DECISION_BYTES = MAX_MESSAGE_BYTES // 8  # of its commands: each returns in an event, with schedules
MAX_DECISION_S = 0.5  # as expected: another tenant may send its first command in a while
MAX_SHARED_DECISION_S = 0.02  # where several tenants send commands, or one whose commands have no known cost yet
UNKNOWN_COMMAND_S = MAX_SHARED_DECISION_S / 8  # that a decision on the first command of a tenant takes, as expected
LEAST_COMMAND_S = 0.0002
MAX_COMMAND_S = 10.0  # a clock that was set is no work
BYTE_S = 2e-8  # to read and to store one
YIELD_BYTES = 256 * 1024  # that are read at once: decisions must not wait for a queue full of large commands
MAX_ATTEMPTS = 4  # at one command that no replica survived, before it is dead-lettered
MAX_UNCOUNTED_DELIVERIES = 2  # so that one dead replica does not slow down the commands that it had pulled
PULL_TIMEOUT_S = 20.0
ACK_WAIT_S = 5.0  # after a replica's death, others get the commands that it had pulled
HOLD_S = ACK_WAIT_S / 3  # between two messages that it still has them, or may not decide on them


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """One command that waits for its decision; item settles it."""

    command: Command
    envelope_id: str
    item: WorkItem

    @property
    def position(self) -> QueuePosition:
        return QueuePosition(self.item.sequence, self.item.stored_at_s)


class CommandQueue:
    """The work queue of one pool, as one replica of admission sees it.

    is_fit(): False if this replica must not decide: then it leaves its commands to others, and takes no more.
    """

    def __init__(
        self,
        context: ServiceContext,
        service: str,
        on_news: Callable[[], None],
        folded: Callable[[], PoolState],
        is_fit: Callable[[], bool] = lambda: True,
    ) -> None:
        self._bus, self._pool, self._service = context.bus, context.pool, service
        self._folded, self._is_fit = folded, is_fit
        self._clock, self._log, self._metrics = context.clock, context.log, context.metrics
        self._on_news = on_news
        self._refusals = RefusalLog(context.log.warning)
        self._answers = AnswerSender(context.bus, context.pool, context.log)
        self._attempts = Attempts(context.bus, context.pool)
        self._pending: list[Pending] = []
        self._turns = Turns()
        self._budgets = CommandBudgets(lambda tenant: folded().config.quota(tenant).max_command_bytes_per_day)
        self._command_s: dict[str, float] = {}  # of a decision, by tenant: the last one counts half
        self._has_space = asyncio.Event()
        self._has_space.set()

    async def run(self) -> None:
        """Pull, and keep what was pulled, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pull(), name="pull")
                tasks.create_task(self._hold(), name="hold")
        finally:
            self._refusals.close()

    async def _pull(self) -> None:
        """Unreadable messages are dead-lettered here."""
        queue = await until_available(self._open, self._log, "commands")
        while True:
            await self._has_space.wait()
            if not self._is_fit():
                await self._clock.sleep_until(self._clock.now_s() + HOLD_S)
                continue
            num_bytes = 0
            for item in await queue.pull(MAX_PENDING - len(self._pending), PULL_TIMEOUT_S):
                await self._receive(item)
                num_bytes += len(item.data)
                if num_bytes > YIELD_BYTES:
                    num_bytes = 0
                    await asyncio.sleep(0)
            if len(self._pending) >= MAX_PENDING:
                self._has_space.clear()

    async def _open(self) -> WorkQueue:
        return await self._bus.work(self._pool, self._service, ack_wait_s=ACK_WAIT_S)

    async def _hold(self) -> None:
        """While this replica runs and may decide, the broker delivers no command that waits here to another replica."""
        while True:
            await self._clock.sleep_until(self._clock.now_s() + HOLD_S)
            self._refusals.write_counts(self._clock.now_s())
            if self._is_fit():
                for pending in self._pending:
                    await pending.item.in_progress()
            else:
                await self._leave_all()

    async def _leave_all(self) -> None:
        left, self._pending = self._pending, []
        self._has_space.set()
        for pending in left:
            await pending.item.nak()

    def take(self, max_commands: int) -> tuple[Pending, ...]:
        """Commands without a decision, as many as fit into one, the oldest of each tenant first.

        Tenants take turns by the work that their commands were and will be. Where several send commands, each waits for
        the decision on others, so there are no more than a short decision takes.
        One decision takes one command about each job, so that each of its events decides on a known command.
        A command that was delivered before and not settled is decided on alone: it may be what made a replica fail.
        """
        taken: list[Pending] = []
        about: set[str] = set()
        num_bytes, expected_s = 0, 0.0
        undecided = [pending for pending in self._pending if self._decision_on(pending) is None]
        tenants = set(map(_tenant, undecided))
        is_short = self._turns.are_shared(tenants) or not tenants <= self._command_s.keys()
        max_s = MAX_SHARED_DECISION_S if is_short else MAX_DECISION_S
        for pending in self._turns.in_turns(undecided, _tenant, self._work_s):
            if (name := id_of(pending.command)) in about:
                continue
            about.add(name)
            num_bytes += len(pending.item.data)
            expected_s += self._work_s(pending)
            is_too_much = num_bytes > MAX_DECISION_BYTES or expected_s > max_s
            if taken and (pending.item.num_delivered > 1 or is_too_much):
                break
            taken.append(pending)
            if pending.item.num_delivered > 1 or len(taken) == max_commands:
                break
        return tuple(taken)

    def _work_s(self, pending: Pending) -> float:
        return self._command_s.get(_tenant(pending), UNKNOWN_COMMAND_S) + BYTE_S * len(pending.item.data)

    def took(self, taken: Sequence[Pending], decision_s: float) -> None:
        """A decision on these took so long: each tenant's part is as its commands were expected to take."""
        if not taken:
            return
        tenants = list(map(_tenant, taken))
        before_s = {tenant: self._command_s.pop(tenant, None) for tenant in dict.fromkeys(tenants)}
        expected_s = sum(before_s[tenant] or UNKNOWN_COMMAND_S for tenant in tenants)
        for tenant, command_s in before_s.items():
            measured_s = (command_s or UNKNOWN_COMMAND_S) / expected_s * min(decision_s, MAX_COMMAND_S)
            mean_s = measured_s if command_s is None else (command_s + measured_s) / 2
            self._command_s[tenant] = max(mean_s, LEAST_COMMAND_S)
        for tenant in list(self._command_s)[: max(len(self._command_s) - MAX_TENANTS, 0)]:
            del self._command_s[tenant]

    @contextlib.asynccontextmanager
    async def attempt(self) -> AsyncGenerator[None, None]:
        """Around a decision on the first commands: one that replicas do not survive is dead-lettered in the end.

        Deliveries alone do not count: the replicas may have been paused, or the server away.
        """
        suspect = await self._suspect()
        try:
            yield
        except Retry:  # the decision could not be stored, but this replica lives
            await self._survived(suspect)
            raise
        await self._survived(suspect)

    async def _survived(self, suspect: Pending | None) -> None:
        if suspect is not None:
            await self._attempts.survived(suspect.position)

    async def _suspect(self) -> Pending | None:
        """The first command if it was delivered repeatedly, with one attempt more counted."""
        while first := self.take(1):
            (pending,) = first
            if pending.item.num_delivered <= MAX_UNCOUNTED_DELIVERIES:
                break
            if await self._attempts.begin(pending.position) < MAX_ATTEMPTS:
                return pending
            await self.dead_letter(pending.item, f"{self._service} died {MAX_ATTEMPTS} times while it decided on this")
            self.settled(first)
        return None

    def repeats(self) -> dict[int, list[Pending]]:
        """The commands that have a decision already, by its sequence in the ledger."""
        found: dict[int, list[Pending]] = {}
        for pending in self._pending:
            if (sequence := self._decision_on(pending)) is not None:
                found.setdefault(sequence, []).append(pending)
        return found

    def _decision_on(self, pending: Pending) -> int | None:
        return self._folded().decision_on(pending.position)

    def settled(self, taken: Iterable[Pending]) -> None:
        """These are decided on and acknowledged."""
        taken = tuple(taken)
        self._turns.had((_tenant(pending), self._work_s(pending)) for pending in taken)
        done = {id(pending) for pending in taken}
        self._pending = [pending for pending in self._pending if id(pending) not in done]
        self._has_space.set()
        if self._pending:
            self._on_news()

    async def _receive(self, item: WorkItem) -> None:
        """A flood costs little: what is beyond the budget of its sender is read only if it may end something."""
        why_not = self._beyond_budget(item)
        if why_not is not None and len(item.data) > LEAST_BYTES:
            await self._refuse(item, why_not)
            return
        try:
            envelope = codec.decode(item.data, max_bytes=MAX_SUBMISSION_BYTES)
            command = self._command_in(envelope, item)
        except Undecodable as error:
            if why_not is not None:
                await self._refuse(item, why_not)
                return
            await self.dead_letter(item, *error.problems)
            return
        pending = Pending(command=command, envelope_id=envelope.id, item=item)
        is_new = self._decision_on(pending) is None
        if is_new and why_not is not None and not self._ends_something(command):
            await self._refuse(item, why_not)
            return
        if is_new and isinstance(command, SubmitJob) and await self._ended_long_ago(command.job_id):
            why = f"job_id: {command.job_id} names a job that ended long ago; choose another"
            await self.dead_letter(item, why)
            return
        self._pending.append(pending)
        self._on_news()

    def _beyond_budget(self, item: WorkItem) -> str | None:
        """Count a command, or say why it is not taken now. One that comes again was counted."""
        if item.num_delivered > 1:
            return None
        return self._budgets.use(subjects.sender(item.subject), len(item.data), self._clock.now_s())

    def _ends_something(self, command: Command) -> bool:
        """Whether this short command is the first one that waits to end what the tenant has: it is always taken.

        Of what does not exist or has ended, a tenant could send any number, and each would stay in the ledger.
        """
        if not isinstance(command, CancelJob | CancelLoad | SealLoad):
            return False
        waiting = [
            type(pending.command)
            for pending in self._pending
            if id_of(pending.command) == id_of(command) and _tenant(pending) == command.tenant
        ]
        if type(command) in waiting:
            return False
        job = self._folded().live_jobs.get(id_of(command))
        load = self._folded().loads.get(id_of(command))
        exists = job if isinstance(command, CancelJob) else load if load is not None and load.live else None
        return bool(waiting) or (exists is not None and exists.tenant == command.tenant)

    async def _ended_long_ago(self, job_id: str) -> bool:
        """The state keeps the newest ended jobs only (decision record 0010); the ledger holds the events of all others.

        Events after the folded sequence are of new jobs: the state will know them before the decision.
        """
        folded = self._folded()
        if not folded.num_forgotten or folded.job(job_id) is not None:
            return False
        of_services = await self._bus.last_subject_sequence(subjects.job(self._pool, job_id))
        last = of_services or await self._bus.last_subject_sequence(subjects.job(self._pool, job_id, "*"))
        return 0 < last <= folded.sequence and self._folded().job(job_id) is None

    def _command_in(self, envelope: Envelope, item: WorkItem) -> Command:
        command = envelope.message
        if not isinstance(command, Command):
            commands = ", ".join(command.__name__ for command in get_args(Command))
            raise Undecodable(f"type: {type(command).__name__} is not a command; publish one of {commands}")
        tenant = subjects.sender(item.subject)
        if command.tenant != tenant:
            raise Undecodable(f"tenant: {command.tenant!r} may not publish on the subject of {tenant!r}")
        return owned(command)

    async def _refuse(self, item: WorkItem, problem: str) -> None:
        """Reply to the sender, and keep nothing."""
        self._metrics.refused_total.inc()
        self._note_refusal("CommandRefused", item, problem=problem)
        with contextlib.suppress(Retry):  # it comes again
            await self._reply(item, (problem,))
            await item.term()

    async def dead_letter(self, item: WorkItem, *problems: str) -> None:
        """Store the bytes on the dead-letter subject with the reason, and reply to the sender."""
        self._metrics.refused_total.inc()
        self._note_refusal("MessageRejected", item, problems=problems)
        headers = dead_letter_headers(item.subject, problems)
        try:
            await self._bus.append(
                subjects.dead_letter(self._pool, self._service),
                item.data,
                message_id=f"dead-{self._pool}-{item.sequence}",
                headers=headers,
            )
            await self._reply(item, problems)
            await item.term()
        except Retry as error:  # it stays in the queue and comes again
            self._note_refusal("refusal postponed", item, error=str(error))

    def _note_refusal(self, kind: str, item: WorkItem, **why: Any) -> None:
        tenant, now_s = subjects.sender(item.subject), self._clock.now_s()
        self._refusals.write(kind, tenant, now_s, subject=item.subject, sequence=item.sequence, **why)

    async def _reply(self, item: WorkItem, problems: tuple[str, ...]) -> None:
        refusal = MessageRejected(problems=tuple(problem[:2000] for problem in problems[:50]))
        answer = codec.encode(refusal, id=f"refused-{item.sequence}", recorded_at_s=self._clock.now_s())
        tenant = subjects.sender(item.subject)
        for subject in (item.headers.get(ANSWER_TO, ""), self._answer_subject(tenant, item.data)):
            with contextlib.suppress(ElasticFlowError):  # best effort
                await self._answers.send(tenant, subject, answer)

    def _answer_subject(self, tenant: str, data: bytes) -> str:
        """A subject of this tenant, whatever the data say: unreadable data may name a job of another tenant."""
        id = codec.id_in(data)
        return subjects.answer(tenant, self._pool, id) if id else ""


def _tenant(pending: Pending) -> str:
    return pending.command.tenant

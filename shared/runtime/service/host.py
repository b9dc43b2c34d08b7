"""The one loop of every service: read, decode, fold, decide, append, acknowledge.

The host follows the ledger from a snapshot or from its start (`LedgerProjection`). At each change the policy decides on
the folded state (`Decider`). The host appends decisions to the plan by compare-and-set and events to their own
subjects, and hands actions to the service's action handler. It acknowledges a command only after the decision is in the
ledger, and decides only after it has folded its own last messages: a crash at any point leads to the same decision or
to none.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic

from elasticflow.shared.errors import CannotStart, Retry, TooLarge
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.events import Event, PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.process.logs import BackoffLogger
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.command_queue import CommandQueue, Pending
from elasticflow.shared.runtime.service.decision_problems import (
    ClockCheck,
    chain_problem,
    clock_problem,
    plan_problem,
    version_problem,
)
from elasticflow.shared.runtime.service.ledger_appender import LedgerAppender, ReplyPublisher
from elasticflow.shared.runtime.service.ledger_encoding import fitted, split
from elasticflow.shared.runtime.service.ledger_projection import LedgerProjection
from elasticflow.shared.runtime.service.service_context import ServiceContext
from elasticflow.shared.runtime.service.snapshot_store import Snapshot
from elasticflow.shared.state.ledger_chain import LedgerChain
from elasticflow.shared.state.policy import Policy, State
from elasticflow.shared.state.pool import PoolState

# --- decider -------------------------------------------------------------------------------------------
# One result of a policy: on how many commands at once, and the decision, events and actions that follow.

MAX_COMMANDS = 256  # in one decision: they share the cost of one plan, and of one lost race
PATIENT_LOSSES = 4  # in a row: the allocator and placement each answer a decision of admission with one of theirs
FEW_COMMANDS = 64  # fewer cost more each


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideResult:
    """taken: the commands that are decided on; decision: None if there is nothing to decide.

    too_large: the decision on the one command taken is larger than a message, and it has none.
    """

    taken: tuple[Pending, ...]
    decision: PlanDecided | None = None
    message_id: str = ""  # of the decision
    reported: tuple[Event, ...] = ()
    actions: tuple[Any, ...] = ()
    too_large: TooLarge | None = None


class Decider(Generic[State]):
    """Lets a policy decide on as many commands at once as one message of the ledger can hold.

    One command may change thousands of promised schedules. If one message cannot hold the decision, the policy decides
    on half as many commands; the number grows again with each decision that fits. If it cannot hold the decision on one
    command, however shortened, the policy first decides what is due without it. A decision holds the answers to all its
    commands.
    """

    def __init__(self, policy: Policy[State], instance: str, waiting: Callable[[int], tuple[Pending, ...]]) -> None:
        self._policy, self._instance, self._waiting = policy, instance, waiting
        self._max_commands = MAX_COMMANDS
        self._num_lost = 0  # decisions in a row

    def won(self) -> None:
        """The last decision is in the ledger."""
        self._num_lost = 0

    def lost(self) -> None:
        """The plan changed before the last decision was in it. Where it changes too often, decisions become shorter."""
        self._num_lost += 1
        if self._num_lost > PATIENT_LOSSES:
            self._max_commands = max(self._max_commands // 2, min(self._max_commands, FEW_COMMANDS))

    def decide(self, state: State, chain: str, now_s: float) -> Generator[None, None, DecideResult]:
        """Returns the result; pauses where the policy does. chain: of the ledger up to the state.

        Raises TooLarge if one message cannot hold what is due without a command, however much it is shortened.
        """
        while True:
            taken = self._waiting(self._max_commands)
            try:
                result = yield from self._decided(state, chain, taken, now_s)
            except TooLarge as error:
                if not taken:
                    raise
                if len(taken) == 1:
                    others = yield from self._decided(state, chain, (), now_s)
                    return others if others.decision is not None else DecideResult(taken=taken, too_large=error)
                self._max_commands = len(taken) // 2
            else:
                self._max_commands = min(MAX_COMMANDS, self._max_commands + self._max_commands // 4 + 1)
                return result

    def _decided(
        self, state: State, chain: str, taken: tuple[Pending, ...], now_s: float
    ) -> Generator[None, None, DecideResult]:
        commands = tuple(pending.command for pending in taken)
        if self._policy.decide_in_steps is None:
            outputs = self._policy.decide(state, commands, now_s)
        else:
            outputs = yield from self._policy.decide_in_steps(state, commands, now_s)
        plan, reported, actions = split(outputs)
        decision, message_id = None, ""
        if plan or taken:  # without an event too, the decision says that the commands are decided
            decision = PlanDecided(
                service=self._policy.service,
                based_on=self._policy.pool(state).sequence,
                now_s=now_s,
                commands=commands,
                queue_positions=tuple(pending.position for pending in taken),
                chain=chain,
                events=plan,
            )
            decision, message_id = fitted(decision, self._instance, self._policy)
        return DecideResult(taken=taken, decision=decision, message_id=message_id, reported=reported, actions=actions)


# --- decision guard ------------------------------------------------------------------------------------
# What keeps a planner from deciding: a plan that it cannot read, a changed ledger, a wrong clock, a decision that no
# message can hold.
#
# The planner goes on folding, and decides again by itself once the cause is gone. Meanwhile it says why: in its log,
# on its health page (`unwell`) and as a metric.

FIRST_WAIT_S = 1.0  # between two attempts of a planner that must not decide
LONGEST_WAIT_S = 8.0

READER_VERSION_REASON, PLAN_REASON, CHAIN_REASON = "reader_version", "unreadable_plan", "changed_ledger"
CLOCK_REASON, SIZE_REASON = "clock", "decision_size"


class DecisionGuard:
    """The reasons for which one planner takes no decisions."""

    def __init__(self, clock_check: ClockCheck, log: Any, metrics: Metrics) -> None:
        self._clock_check = clock_check
        self._log, self._metrics = log, metrics
        self._problems: dict[str, str] = {}
        self._wait_s = FIRST_WAIT_S

    @property
    def problem(self) -> str | None:
        """Why the planner takes no decisions, in a sentence; None if it may."""
        return "takes no decisions: " + "; ".join(self._problems.values()) if self._problems else None

    @property
    def is_fit(self) -> bool:
        """Whether this replica may decide. A decision that is too large is so for every replica."""
        return not self._problems.keys() - {SIZE_REASON}

    def next_wait_s(self) -> float:
        """The wait until the next attempt; each is longer than the one before, up to LONGEST_WAIT_S."""
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
        return wait_s

    async def may_decide(self, folded: Callable[[], PoolState], chain: LedgerChain) -> bool:
        """Whether this planner knows the time, and reads all of the plan that is folded by then, unchanged.

        Raises Retry.
        """
        await self._check_clock(folded().config.deadline_slack_s)
        self._check_plan(folded(), chain)  # without another wait before the decision: the state changes meanwhile
        return self.is_fit  # only an attempt shows whether a decision has become smaller

    async def _check_clock(self, slack_s: float) -> None:
        await self._clock_check.refresh(slack_s)
        self._metrics.clock_offset.set(self._clock_check.offset_s)
        self._note(CLOCK_REASON, clock_problem(self._clock_check, slack_s))

    def _check_plan(self, pool: PoolState, chain: LedgerChain) -> None:
        self._note(READER_VERSION_REASON, version_problem(pool))
        self._note(PLAN_REASON, plan_problem(pool))
        self._note(CHAIN_REASON, chain_problem(chain, pool))

    def too_large(self, error: TooLarge) -> None:
        """The decision was not stored."""
        advice = "check max_payload of NATS, or reduce the jobs of the pool"
        self._note(SIZE_REASON, f"its decision is too large: {error}; {advice}")

    def fits(self) -> None:
        """The decision is stored, or there was none."""
        self._note(SIZE_REASON, None)

    def _note(self, reason: str, problem: str | None) -> None:
        known = self._problems.get(reason)
        if problem is None:
            self._problems.pop(reason, None)
        else:
            self._problems[reason] = problem
        if (problem is None) != (known is None):
            self._metrics.blocked.set(reason, problem is not None)
            if problem is None:
                self._log.info("decides again", reason=reason)
            else:
                self._log.error("takes no decisions", reason=reason, problem=problem)
        if not self._problems:
            self._wait_s = FIRST_WAIT_S


RETRY_S = 0.1
SHORTEST_WAIT_S = 0.005  # between two decisions without news: a wake-up that is overdue must not busy-loop


class Host(Generic[State]):
    """Runs one policy over one pool.

    act(action): the action handler; None if the policy takes no actions.
    leads(): False keeps a standby replica folding without decisions.
    """

    def __init__(
        self,
        context: ServiceContext,
        policy: Policy[State],
        *,
        act: Callable[[Any], None] | None = None,
        leads: Callable[[], bool] = lambda: True,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._bus, self._pool, self._policy, self._clock = context.bus, context.pool, policy, context.clock
        self._log, self._metrics = context.log, context.metrics
        self._act, self._leads = act, leads
        self._news = asyncio.Event()
        self._clock_check = ClockCheck(context.bus, context.pool, context.clock)
        self._guard = DecisionGuard(self._clock_check, context.log, context.metrics)
        self._projection = LedgerProjection(context, policy, self._news.set, self._clock_check.received, snapshot)
        self._replies = ReplyPublisher(context, policy, self._projection)
        self._appender = LedgerAppender(context, self._projection, self._clock_check, self._replies, self._news.set)
        self._local_events: list[Any] = []
        self._command_queue = (
            CommandQueue(context, policy.service, self._news.set, lambda: self.folded, is_fit=lambda: self.is_fit)
            if policy.takes_commands
            else None
        )
        take = self._command_queue.take if self._command_queue else lambda _: ()
        self._decider = Decider(policy, context.instance, take)
        self._caught_up_at: int | None = None
        self.ready = asyncio.Event()  # set once the ledger is folded up to the end that it had at the start

    # -- for the service around it -----------------------------------------------------------------------

    def note(self, local_event: Any) -> None:
        """Let the policy observe a local event before it decides next."""
        self._local_events.append(local_event)
        self._news.set()

    def wake(self) -> None:
        """Decide again soon: something changed that is neither in the ledger nor a local event."""
        self._news.set()

    @property
    def state(self) -> State:
        return self._projection.state

    @property
    def folded(self) -> PoolState:
        return self._projection.folded

    @property
    def newest_record(self) -> LedgerRecord | None:
        """The last folded message; None if there is none after the snapshot."""
        return self._projection.newest

    def snapshot(self) -> Snapshot | None:
        return self._projection.snapshot()

    def unwell(self) -> str | None:
        """Why the service is not healthy; None if it is."""
        if self._caught_up_at is None:
            return "has not asked the ledger for its end yet"
        if self.folded.sequence < self._caught_up_at:
            return f"is at sequence {self.folded.sequence} of {self._caught_up_at}"
        return self._guard.problem

    @property
    def leads(self) -> bool:
        """Whether this replica decides now."""
        return self._leads()

    @property
    def is_fit(self) -> bool:
        """Whether it may lead: a planner reads the whole plan, and its clock is right."""
        return self._guard.is_fit

    async def why_not_now(self) -> str:
        """Why this replica may tell nothing that rests on its state and clock now; "" if it may.

        Asks for the server's time if the last comparison is too old for a decision.
        """
        try:
            may_decide = await self._guard.may_decide(lambda: self.folded, self._projection.chain)
        except Retry as error:
            return f"cannot compare its clock with that of NATS: {error}"
        return "" if may_decide else str(self.unwell())

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._projection.follow(), name="follow")
            if self._command_queue is not None:
                tasks.create_task(self._take_commands(self._command_queue), name="commands")
            tasks.create_task(self._decide_repeatedly(), name="decide")

    async def _take_commands(self, command_queue: CommandQueue) -> None:
        """Start once the ledger is folded: until then other replicas may take the commands."""
        await self.ready.wait()
        await command_queue.run()

    # -- decide ------------------------------------------------------------------------------------------

    async def _decide_repeatedly(self) -> None:
        await self._catch_up()
        backoff = BackoffLogger(self._log, "decision postponed")
        while True:
            await self._news_or_wake()
            try:
                await self._round()
            except Retry as error:
                backoff.goes_on(error)
                await asyncio.sleep(RETRY_S)
                self._news.set()
            else:
                backoff.is_over()

    async def _catch_up(self) -> None:
        """Fold the ledger up to its present end: no decision rests on a part of the history. Raises CannotStart."""
        backoff = BackoffLogger(self._log, "catching up postponed")
        while self._caught_up_at is None:
            try:
                self._caught_up_at = (await self._clock_check.ask()).sequence
            except Retry as error:
                backoff.goes_on(error)
                await asyncio.sleep(RETRY_S)
        await self._projection.up_to(self._caught_up_at)
        if (minimum := self.folded.config.minimum_reader_version) > codec.READER_VERSION:
            raise CannotStart(
                "reader_too_old",
                f"this service reads messages up to version {codec.READER_VERSION}, but pool {self._pool} has "
                f"minimum_reader_version = {minimum}; upgrade the service",
            )
        self.ready.set()
        self._log.info("caught up", sequence=self.folded.sequence)
        self._news.set()

    async def _news_or_wake(self) -> None:
        """Wait for news or for the policy's time; while the guard forbids decisions, until the next attempt."""
        if self._guard.problem is not None:
            await asyncio.sleep(self._guard.next_wait_s())
            self._news.clear()
            return
        wake_at_s = self._policy.wake_at_s(self.state) if self._leads() else None
        wait_s = None if wake_at_s is None else max(wake_at_s - self._clock.now_s(), SHORTEST_WAIT_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        self._news.clear()

    async def _round(self) -> None:
        now_s = self._clock.now_s()
        local_events, self._local_events = self._local_events, []
        for local_event in local_events:
            self._observe(local_event, now_s)
        if self._command_queue is None:
            await self._decide()
            return
        await self._settle_repeats(self._command_queue)
        async with self._command_queue.attempt():
            await self._decide()

    async def _decide(self) -> None:
        """Decide at one instant, then append, act and settle. A decision whose plan changes meanwhile is given up."""
        if self._policy.plans and not await self._guard.may_decide(lambda: self.folded, self._projection.chain):
            return
        if not self._leads():
            return
        now_s = self._clock.now_s()
        try:
            with self._metrics.decide_seconds.time():
                result = await self._decided(now_s)
        except TooLarge as error:
            self._guard.too_large(error)
            return
        if result is None:
            return
        if self._command_queue is not None:
            self._command_queue.took(result.taken, self._clock.now_s() - now_s)
        if result.too_large is not None:
            await self._dead_letter(result.taken, f"the decision on it is larger than one message: {result.too_large}")
            return
        for action in result.actions:
            assert self._act is not None, f"{self._policy.service} has no action handler for {action!r}"
            self._act(action)
            self._observe(action, now_s)
        if await self._append(result):
            self._guard.fits()
            await self._appender.append_events(result.reported)
            await self._settle(result)

    async def _decided(self, now_s: float) -> DecideResult | None:
        """The result of deciding; None once another replica or service has changed the plan. Raises TooLarge."""
        plan_end = self.folded.plan_sequence
        steps = self._decider.decide(self.state, self._projection.chain.digest, now_s)
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                result: DecideResult = ended.value
                return result
            await asyncio.sleep(0)  # messages that have arrived are folded
            if self.folded.plan_sequence != plan_end:
                self._metrics.conflicts_total.inc()
                self._decider.lost()
                return None

    async def _append(self, result: DecideResult) -> bool:
        """Whether the decision is in the ledger now, or there is none."""
        if result.decision is None:
            return True
        cause_id = result.taken[0].envelope_id if result.taken else f"sequence-{self.folded.sequence}"
        try:
            is_stored = await self._appender.append_decision(result.decision, result.message_id, cause_id)
        except TooLarge as error:  # a server with a smaller limit than at the start
            self._guard.too_large(error)
            return False
        if is_stored:
            self._decider.won()
        else:
            self._decider.lost()
        return is_stored

    def _observe(self, local_event: Any, now_s: float) -> None:
        self._projection.state = self._policy.observe(self.state, local_event, now_s)

    async def _dead_letter(self, taken: tuple[Pending, ...], why: str) -> None:
        assert self._command_queue is not None, "only a command is dead-lettered"
        for pending in taken:
            await self._command_queue.dead_letter(pending.item, why)
        self._command_queue.settled(taken)
        self._news.set()

    # -- settle ------------------------------------------------------------------------------------------

    async def _settle(self, result: DecideResult) -> None:
        """Acknowledge the commands whose decision is in the ledger, then reply to their users."""
        if self._command_queue is None:
            return
        for pending in result.taken:
            await pending.item.ack()
        self._command_queue.settled(result.taken)
        self._metrics.commands_total.inc(len(result.taken))
        await self._replies.reply(result.taken, result.decision.events if result.decision is not None else ())

    async def _settle_repeats(self, command_queue: CommandQueue) -> None:
        """Reply again to commands that were delivered after their decision, and acknowledge them."""
        for sequence, repeats in command_queue.repeats().items():
            await self._replies.reply_again(sequence, repeats)
            for pending in repeats:
                await pending.item.ack()
            command_queue.settled(repeats)

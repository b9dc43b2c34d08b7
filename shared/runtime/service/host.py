"""The one loop of every service: read, decode, fold, decide, append, acknowledge.

The ledger is followed from a snapshot or from its start (`folding`). Whenever something new is known the policy
decides on the folded state (`judge`); decisions go to the plan by compare-and-set, facts to their own subjects,
actions to the shell. Nothing is acknowledged before it is in the ledger, and nothing is decided before the host has
folded its own last words: so a crash at any point leads to the same decision or to none.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Generic

from elasticflow.shared.errors import MaybeStored, Retry, TooLarge, WrongExpectedSequence
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.event_summary import summary
from elasticflow.shared.messages.events import AdmissionEvent, Event, JobFailed, PlanDecided
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.logs import BackoffLogger
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.command_queue import CommandQueue
from elasticflow.shared.runtime.service.decider import Decider, DecideResult
from elasticflow.shared.runtime.service.ledger_encoding import admission_events, event_id, subject_of
from elasticflow.shared.runtime.service.ledger_projection import LedgerProjection
from elasticflow.shared.state.idempotent_replies import idempotent_reply
from elasticflow.shared.state.policy import Policy, State
from elasticflow.shared.state.pool import PoolState

RETRY_S = 0.1
SHORTEST_WAIT_S = 0.005  # between two looks at the clock: an instant that has passed is no reason to spin


class Host(Generic[State]):
    """Runs one policy over one pool.

    act(action): called for each output that is neither decision nor fact; may be None where there are none.
    leads(): False keeps a standby replica folding but silent.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        pool: str,
        policy: Policy[State],
        clock: Clock,
        instance: str,
        log: Any,
        metrics: Metrics,
        takes_commands: bool = False,
        act: Callable[[Any], None] | None = None,
        leads: Callable[[], bool] = lambda: True,
        snapshot: PoolState | None = None,
    ) -> None:
        self._bus, self._pool, self._policy, self._clock = bus, pool, policy, clock
        self._instance, self._log, self._metrics = instance, log, metrics
        self._act, self._leads = act, leads
        self._news = asyncio.Event()
        self._projection = LedgerProjection(bus, pool, policy, log, metrics, self._news.set, snapshot)
        self._notes: list[Any] = []
        self._command_queue = (
            CommandQueue(bus, pool, policy.service, clock, log, metrics, self._news.set, lambda: self.folded)
            if takes_commands
            else None
        )
        self._decider = Decider(
            policy, instance, self._command_queue.take if self._command_queue else lambda _: ()
        )
        self._caught_up_at: int | None = None
        self.ready = asyncio.Event()  # set once the ledger is folded up to the end that it had at the start
        self._plan_end = 0  # of the plan, where its last message is no decision but something unreadable

    # -- what the shell may do ---------------------------------------------------------------------------

    def note(self, note: Any) -> None:
        """Something local happened: the policy observes it before it decides next."""
        self._notes.append(note)
        self._news.set()

    def wake(self) -> None:
        """Decide again soon: something changed that is neither in the ledger nor a note."""
        self._news.set()

    @property
    def state(self) -> State:
        return self._projection.state

    @property
    def folded(self) -> PoolState:
        return self._projection.folded

    def unwell(self) -> str | None:
        """Why the service should not be trusted right now; None if it should."""
        if self._caught_up_at is None:
            return "has not asked the ledger for its end yet"
        if self.folded.sequence < self._caught_up_at:
            return f"is at sequence {self.folded.sequence} of {self._caught_up_at}"
        return None

    async def run(self) -> None:
        """For ever, or until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._projection.follow(), name="follow")
            if self._command_queue is not None:
                tasks.create_task(self._take_wishes(self._command_queue), name="inbox")
            tasks.create_task(self._decide_for_ever(), name="decide")

    async def _take_wishes(self, inbox: CommandQueue) -> None:
        """Not before the ledger is known: until then other replicas may take them."""
        await self.ready.wait()
        await inbox.run()

    # -- decide ------------------------------------------------------------------------------------------

    async def _decide_for_ever(self) -> None:
        await self._catch_up()
        trouble = BackoffLogger(self._log, "decision postponed")
        while True:
            await self._news_or_wake()
            try:
                await self._round()
            except Retry as error:
                trouble.goes_on(error)
                await asyncio.sleep(RETRY_S)
                self._news.set()
            else:
                trouble.is_over()

    async def _catch_up(self) -> None:
        """Reach the end that the ledger has now: nobody judges on half a history."""
        trouble = BackoffLogger(self._log, "catching up postponed")
        while self._caught_up_at is None:
            try:
                self._caught_up_at = await self._bus.last_sequence(self._pool)
            except Retry as error:
                trouble.goes_on(error)
                await asyncio.sleep(RETRY_S)
        await self._projection.up_to(self._caught_up_at)
        self.ready.set()
        self._log.info("caught up", sequence=self.folded.sequence)
        self._news.set()

    async def _news_or_wake(self) -> None:
        wake_at_s = self._policy.wake_at_s(self.state) if self._leads() else None
        wait_s = None if wake_at_s is None else max(wake_at_s - self._clock.now_s(), SHORTEST_WAIT_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        self._news.clear()

    async def _round(self) -> None:
        now_s = self._clock.now_s()
        notes, self._notes = self._notes, []
        for note in notes:
            self._observe(note, now_s)
        if not self._leads():
            return
        try:
            with self._metrics.decide_seconds.time():
                result = self._decider.judge(self.state, now_s)
        except TooLarge as error:
            await self._refuse_oldest(error)
            return
        for action in result.actions:
            assert self._act is not None, f"{self._policy.service} has no hands for {action!r}"
            self._act(action)
            self._observe(action, now_s)
        if result.decision is not None and not await self._decided(result, result.decision):
            return
        await self._tell(result.facts)
        await self._settle(result)

    def _observe(self, note: Any, now_s: float) -> None:
        self._projection.state = self._policy.observe(self.state, note, now_s)

    async def _refuse_oldest(self, error: TooLarge) -> None:
        """One wish alone leads to more than a message holds. Without a wish there is nobody to tell: stop."""
        taken = self._command_queue.take(1) if self._command_queue else ()
        if self._command_queue is None or not taken:
            raise error
        await self._command_queue.dead_letter(
            taken[0].item, f"what follows from it cannot be said at once: {error}"
        )
        self._command_queue.settled(taken)
        self._news.set()

    async def _decided(self, result: DecideResult, decision: PlanDecided) -> bool:
        """Append the decision; False if a rival was first, then everything is judged again."""
        folded, message_id = self.folded, result.message_id
        cause_id = result.taken[0].envelope_id if result.taken else f"sequence-{folded.sequence}"
        data = codec.encode(decision, id=message_id, cause_id=cause_id, recorded_at_s=decision.now_s)
        try:
            with self._metrics.append_seconds.time():
                sequence = await self._bus.append(
                    subjects.plan(self._pool),
                    data,
                    message_id=message_id,
                    expected_last_subject_sequence=max(folded.plan_sequence, self._plan_end),
                )
        except WrongExpectedSequence as rival:
            self._metrics.conflicts_total.inc()
            await self._rival_folded(rival.found)
            return False
        except MaybeStored:
            if not await self._was_stored(message_id):
                return False
            sequence = self.folded.sequence
        await self._projection.own(decision, message_id, sequence)
        self._metrics.decisions_total.inc()
        for event in decision.events:
            self._log_decision(event, cause_id, sequence)
        return True

    async def _rival_folded(self, end: int | None) -> None:
        """Catch up with whoever wrote to the plan, be it something that nobody can read. end: of the plan, if told."""
        if end is None:
            end = await self._bus.last_subject_sequence(subjects.plan(self._pool))
        await self._projection.up_to(end)
        self._plan_end = end
        self._news.set()

    async def _was_stored(self, message_id: str) -> bool:
        """After an append without an answer: read to the ledger's end and look."""
        await self._projection.up_to(await self._bus.last_sequence(self._pool))
        stored = self._projection.last_decision_id == message_id
        if not stored:
            self._news.set()
        return stored

    async def _tell(self, facts: tuple[Event, ...]) -> None:
        """Append facts side by side, in order; go on when they are folded."""
        if not facts:
            return
        sequences = await asyncio.gather(*(self._append_fact(fact) for fact in facts))
        await self._projection.up_to(max(sequences))

    async def _append_fact(self, fact: Event) -> int:
        message_id = event_id(fact)
        data = codec.encode(fact, id=message_id, recorded_at_s=self._clock.now_s())
        with self._metrics.append_seconds.time():
            sequence = await self._bus.append_event(subject_of(self._pool, fact), data, message_id=message_id)
        self._metrics.facts_total.inc()
        self._log_decision(fact, message_id, sequence)
        if isinstance(fact, JobFailed):  # in its pre-run, perhaps: its user waits for a decision
            await self._answer(fact)
        return sequence

    # -- answer ------------------------------------------------------------------------------------------

    async def _settle(self, result: DecideResult) -> None:
        """Acknowledge what is in the ledger, then tell who asked."""
        if self._command_queue is None:
            return
        taken, decision = result.taken, result.decision
        for pending in taken:
            await pending.item.ack()
        self._command_queue.settled(taken)
        self._metrics.commands_total.inc(len(taken))
        answers = admission_events(decision.events) if decision is not None else []
        told = {answer.job_id for answer in answers}
        again = (idempotent_reply(self.folded, p.command) for p in taken if p.command.job_id not in told)
        for answer in (*answers, *again):
            await self._answer(answer)

    async def _answer(self, answer: AdmissionEvent | JobFailed) -> None:
        id = f"answer-{type(answer).__name__}-{answer.job_id}"
        data = codec.encode(answer, id=id, recorded_at_s=self._clock.now_s())
        await self._bus.publish(subjects.answer(self._pool, answer.job_id), data)

    def _log_decision(self, event: Event, cause_id: str, sequence: int) -> None:
        """One full line for each decision, under the name that it has on the bus."""
        self._log.info(type(event).__name__, cause=cause_id, sequence=sequence, **summary(event))

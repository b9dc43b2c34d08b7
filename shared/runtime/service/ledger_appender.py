"""Appends one service's messages to the ledger: decisions by compare-and-set, events to their own subjects."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic

from elasticflow.shared.errors import MaybeStored, WrongExpectedSequence
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import id_of
from elasticflow.shared.messages.event_summary import summary
from elasticflow.shared.messages.events import Event, PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.service.command_queue import Pending
from elasticflow.shared.runtime.service.decision_problems import ClockCheck
from elasticflow.shared.runtime.service.ledger_encoding import event_id, subject_of
from elasticflow.shared.runtime.service.ledger_projection import LedgerProjection
from elasticflow.shared.runtime.service.service_context import ServiceContext
from elasticflow.shared.state.idempotent_replies import recipient
from elasticflow.shared.state.policy import Policy, Reply, State
from elasticflow.shared.state.tenant_view import without_other_jobs

# --- reply publisher -----------------------------------------------------------------------------------
# Replies to tenants: each is published once on the answer subject of its job, and again for a repeated command.


class ReplyPublisher:
    """Publishes what the policy replies. Its methods raise what the bus raises."""

    def __init__(self, context: ServiceContext, policy: Policy[Any], projection: LedgerProjection[Any]) -> None:
        self._bus, self._pool, self._clock = context.bus, context.pool, context.clock
        self._policy, self._projection = policy, projection

    async def reply(self, taken: Sequence[Pending], events: tuple[Event, ...]) -> None:
        """Reply to the users of these commands, on which the events decide.

        The envelope names the command: the reply may be late, as a repeated one.
        """
        commands = tuple(pending.command for pending in taken)
        cause_ids = {(pending.command.tenant, id_of(pending.command)): pending.envelope_id for pending in taken}
        for reply in self._policy.user_replies.replies(self._projection.folded, commands, events):
            to = (recipient(self._projection.folded, reply), id_of(reply))
            await self._publish((reply,), cause_ids.get(to, ""))

    async def reply_again(self, decided_sequence: int, repeats: list[Pending]) -> None:
        """Reply to the users of commands that were delivered after the decision at this sequence of the ledger.

        The envelope names the command: its user may wait for the reply to a later one by now.
        """
        decision = await self._projection.decision_at(decided_sequence)
        events = () if decision is None else decision.events
        for pending in repeats:
            replies = self._policy.user_replies.replies_again(self._projection.folded, pending.command, events)
            await self._publish(replies, pending.envelope_id)

    async def _publish(self, replies: tuple[Reply, ...], cause_id: str = "") -> None:
        for reply in replies:
            id = f"answer-{type(reply).__name__}-{id_of(reply)}"
            if not (tenant := recipient(self._projection.folded, reply)):
                continue  # the state has forgotten the job meanwhile; the ledger has the event
            seen = without_other_jobs(self._projection.folded, tenant, reply)
            data = codec.encode(seen, id=id, cause_id=cause_id, recorded_at_s=self._clock.now_s())
            await self._bus.publish(subjects.answer(tenant, self._pool, id_of(reply)), data)


# --- ledger appender -----------------------------------------------------------------------------------


class LedgerAppender(Generic[State]):
    """Each message is folded when its append returns. Methods raise what the bus raises."""

    def __init__(
        self,
        context: ServiceContext,
        projection: LedgerProjection[State],
        clock_check: ClockCheck,
        replies: ReplyPublisher,
        on_news: Callable[[], None],
    ) -> None:
        self._bus, self._pool, self._clock = context.bus, context.pool, context.clock
        self._log, self._metrics = context.log, context.metrics
        self._projection, self._clock_check, self._replies = projection, clock_check, replies
        self._on_news = on_news

    # -- decisions ---------------------------------------------------------------------------------------

    async def append_decision(self, decision: PlanDecided, message_id: str, cause_id: str) -> bool:
        """False if another replica or service was first: then decide again. Raises TooLarge."""
        folded = self._projection.folded
        assert decision.based_on >= folded.plan_sequence, "the plan has changed since the decision"
        data = codec.encode(decision, id=message_id, cause_id=cause_id, recorded_at_s=decision.now_s)
        subject = subjects.plan(self._pool)
        self._clock_check.sent(message_id)
        try:
            with self._metrics.append_seconds.time():
                sequence = await self._bus.append(
                    subject,
                    data,
                    message_id=message_id,
                    expected_last_subject_sequence=self.plan_end(),
                )
        except WrongExpectedSequence as conflict:
            self._metrics.conflicts_total.inc()
            await self._fold_plan(conflict.found)
            return False
        except MaybeStored:
            if not await self._was_stored(message_id):
                return False
            sequence = self._projection.folded.sequence
        own = LedgerRecord(
            sequence=sequence, subject=subject, message_id=message_id, stored_at_s=decision.now_s, data=data
        )
        await self._projection.fold_own(decision, own)
        self._metrics.decisions_total.inc()
        for event in decision.events:
            self._log_event(event, cause_id, sequence)
        return True

    def plan_end(self) -> int:
        """The last message of the plan that a decision rests on."""
        return self._projection.folded.plan_sequence

    async def _fold_plan(self, end: int | None) -> None:
        """Fold the plan up to its end. end: its last sequence, if known."""
        if end is None:
            end = await self._bus.last_subject_sequence(subjects.plan(self._pool))
        await self._projection.up_to(end)
        assert self.plan_end() >= end, f"plan message {end} is folded, but not as one: delete the snapshot"
        self._on_news()

    async def _was_stored(self, message_id: str) -> bool:
        """Fold the ledger up to its end, and look whether it holds what was appended without an acknowledgement."""
        await self._projection.up_to(await self._bus.last_sequence(self._pool))
        stored = self._projection.last_decision_id == message_id
        if not stored:
            self._on_news()
        return stored

    # -- events ------------------------------------------------------------------------------------------

    async def append_events(self, events: tuple[Event, ...]) -> None:
        """Concurrently, in order; then fold them."""
        if events:
            sequences = await asyncio.gather(*(self._append_event(event) for event in events))
            await self._projection.up_to(max(sequences))

    async def _append_event(self, event: Event) -> int:
        message_id = event_id(event)
        data = codec.encode(event, id=message_id, recorded_at_s=self._clock.now_s())
        with self._metrics.append_seconds.time():
            sequence = await self._bus.append_event(subject_of(self._pool, event), data, message_id=message_id)
        self._metrics.events_total.inc()
        self._log_event(event, message_id, sequence)
        await self._replies.reply((), (event,))
        return sequence

    def _log_event(self, event: Event, cause_id: str, sequence: int) -> None:
        """One full line, under the event's name on the bus."""
        self._log.info(type(event).__name__, cause=cause_id, sequence=sequence, **summary(event))

"""Replies to tenants: each is published once on the answer subject of its job, and again for a repeated command."""

from collections.abc import Sequence
from typing import Any

from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import id_of
from elasticflow.shared.messages.events import Event
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.service.command_queue import Pending
from elasticflow.shared.runtime.service.ledger_projection import LedgerProjection
from elasticflow.shared.state.idempotent_replies import recipient
from elasticflow.shared.state.policy import Policy, Reply
from elasticflow.shared.state.tenant_view import without_other_jobs


class ReplyPublisher:
    """Publishes what the policy replies. Its methods raise what the bus raises."""

    def __init__(
        self, bus: Bus, pool: str, policy: Policy[Any], clock: Clock, projection: LedgerProjection[Any]
    ) -> None:
        self._bus, self._pool, self._policy = bus, pool, policy
        self._clock, self._projection = clock, projection

    async def reply(self, taken: Sequence[Pending], events: tuple[Event, ...]) -> None:
        """To the users of these commands, on which the events decide.

        The envelope names the command: the reply may be late, as a repeated one.
        """
        commands = tuple(pending.command for pending in taken)
        cause_ids = {(pending.command.tenant, id_of(pending.command)): pending.envelope_id for pending in taken}
        for reply in self._policy.replies(self._projection.folded, commands, events):
            to = (recipient(self._projection.folded, reply), id_of(reply))
            await self._publish((reply,), cause_ids.get(to, ""))

    async def reply_again(self, decided_sequence: int, repeats: list[Pending]) -> None:
        """To the users of commands that were delivered after the decision at this sequence of the ledger.

        The envelope names the command: its user may wait for the reply to a later one by now.
        """
        decision = await self._projection.decision_at(decided_sequence)
        events = () if decision is None else decision.events
        for pending in repeats:
            replies = self._policy.replies_again(self._projection.folded, pending.command, events)
            await self._publish(replies, pending.envelope_id)

    async def _publish(self, replies: tuple[Reply, ...], cause_id: str = "") -> None:
        for reply in replies:
            id = f"answer-{type(reply).__name__}-{id_of(reply)}"
            if not (tenant := recipient(self._projection.folded, reply)):
                continue  # the state has forgotten the job meanwhile; the ledger has the event
            seen = without_other_jobs(self._projection.folded, tenant, reply)
            data = codec.encode(seen, id=id, cause_id=cause_id, recorded_at_s=self._clock.now_s())
            await self._bus.publish(subjects.answer(tenant, self._pool, id_of(reply)), data)

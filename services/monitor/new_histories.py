"""What the ledger adds to the histories of jobs and padding loads, and is not stored for their tenants so far. Pure."""

from dataclasses import dataclass, replace
from typing import cast

from elasticflow.history.job_history import EventsInWords, HistoryEntry
from elasticflow.history.stored_history import StoredHistory, is_kept, kept_bytes
from elasticflow.shared.messages.commands import id_of
from elasticflow.shared.messages.events import Event, LoadEvent, PlanDecided
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.tenant_view import without_other_jobs

REPORTS_WAIT_S = 15.0  # reports of progress are stored so much later, unless another entry follows


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHistory:
    """first_sequence: of the oldest message in it; since_s: its time in the ledger. is_report: nothing but reports."""

    first_sequence: int
    since_s: float
    is_report: bool
    added: StoredHistory


class NewHistories:
    """Folds the ledger. state: where to start; histories_to: what is stored up to this sequence is no news."""

    def __init__(self, state: PoolState, histories_to: int) -> None:
        self._words = EventsInWords(for_tenants=True, state=state)
        self._histories_to = histories_to
        self._new: dict[str, dict[str, NewHistory]] = {}  # by tenant, and by name of the job or load

    @property
    def state(self) -> PoolState:
        return self._words.state

    @property
    def stored_to(self) -> int:
        """The sequence up to which all histories are stored."""
        firsts = (new.first_sequence for jobs in self._new.values() for new in jobs.values())
        oldest = min(firsts, default=self.state.sequence + 1) - 1
        return max(oldest, self._histories_to)

    def fold(self, sequence: int, at_s: float, message: LedgerMessage) -> None:
        said = self._words.fold(sequence, at_s, message)
        if sequence <= self._histories_to or isinstance(message, Unreadable):
            return
        for name, entry, tenant in said:
            if tenant:
                self._add(tenant, name, sequence, at_s, entry=entry)
        is_decision = isinstance(message, PlanDecided)
        queue_sequences = message.queue_sequences() if is_decision else {}
        for event in message.events if is_decision else (message,):
            if (kept := self._reply(event, queue_sequences.get(id_of(event), 0))) is not None:
                self._add(*kept[:2], sequence, at_s, kept=kept[2])

    def due(self, tenant: str, now_s: float) -> list[tuple[str, NewHistory]]:
        """The jobs and loads of a tenant whose histories must be stored now, the one with the newest message first."""
        found = [
            (name, new)
            for name, new in self._new.get(tenant, {}).items()
            if not new.is_report or now_s - new.since_s >= REPORTS_WAIT_S
        ]
        return sorted(found, key=lambda each: (-each[1].added.sequence, each[0]))

    def tenants(self) -> frozenset[str]:
        """With anything that is not stored."""
        return frozenset(self._new)

    def stored(self, tenant: str, name: str) -> None:
        """What was due of it is stored now. The caller has folded nothing meanwhile."""
        del self._new[tenant][name]
        if not self._new[tenant]:
            del self._new[tenant]

    def _add(
        self,
        tenant: str,
        name: str,
        sequence: int,
        at_s: float,
        *,
        entry: HistoryEntry | None = None,
        kept: bytes = b"",
    ) -> None:
        of_tenant = self._new.setdefault(tenant, {})
        new = of_tenant.get(name)
        if new is None:
            new = NewHistory(first_sequence=sequence, since_s=at_s, is_report=True, added=StoredHistory())
        added = replace(new.added, sequence=sequence - 1)  # several entries may come of one message
        added = added.extended(sequence, () if entry is None else (entry,), ((sequence, kept),) if kept else ())
        is_report = new.is_report and not kept and entry is not None and entry.is_report
        of_tenant[name] = replace(new, added=added, is_report=is_report)

    def _reply(self, event: Event, queue_sequence: int) -> tuple[str, str, bytes] | None:
        """The tenant, the job or load and the event as this tenant may see it; None if no client waits for such."""
        name = id_of(event)
        if not name or not is_kept(event):
            return None
        of = self.state.loads.get(name) if isinstance(event, LoadEvent) else self.state.job(name)
        tenant = cast(str, getattr(event, "tenant", "")) or (of.tenant if of is not None else "")
        if not tenant:
            return None
        return tenant, name, kept_bytes(without_other_jobs(self.state, tenant, event), queue_sequence)

"""The events of a ledger's messages as flat values, for tables and JSON. Pure."""

from collections.abc import Iterator
from typing import Any

from elasticflow.shared.messages.event_summary import summary
from elasticflow.shared.messages.events import EpochBegan, Event, PlanDecided, SnapshotSaved
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable


def event_rows(stored: LedgerRecord, message: LedgerMessage, job_id: str = "") -> Iterator[dict[str, Any]]:
    """The events of one message as flat values; with job_id only those that concern it."""
    parts: tuple[Event, ...] = ()
    if not isinstance(message, Unreadable):
        parts = message.events if isinstance(message, PlanDecided) else (message,)
    source = message.service if isinstance(message, PlanDecided) else stored.subject.rsplit(".", 2)[-2]
    source = "operator" if isinstance(message, EpochBegan) else source
    source = "monitor" if isinstance(message, SnapshotSaved) else source
    if isinstance(message, Unreadable) and not job_id:
        yield {"sequence": stored.sequence, "at_s": stored.stored_at_s, "from": source, "type": "unreadable"}
    for event in parts:
        if not job_id or concerns(event, job_id):
            yield {
                "sequence": stored.sequence,
                "at_s": stored.stored_at_s,
                "from": source,
                "type": type(event).__name__,
                **({"based_on": message.based_on} if isinstance(message, PlanDecided) else {}),
                "fields": summary(event),
            }


def concerns(event: Event, job_id: str) -> bool:
    """Whether the event names the job: as its subject, in an allocation, a placement or a replanned schedule."""
    if getattr(event, "job_id", "") == job_id:
        return True
    placed = (placement.job_id for placement in getattr(event, "placements", ()))
    return (
        job_id in placed or job_id in getattr(event, "num_gpus_by_job", ()) or job_id in getattr(event, "replanned", ())
    )

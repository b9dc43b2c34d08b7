"""Output of `replay`: events as lines, and decisions that differ when they are retaken."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from elasticflow.shared.messages.event_summary import summary
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.state.fold.ledger_fold import Unreadable
from elasticflow.simulator.replay.recorded_ledger import Entry
from elasticflow.simulator.replay.retaken_decisions import Difference
from elasticflow.simulator.replay.state_tables import clock_time


def event_rows(entry: Entry, job_id: str | None = None) -> Iterator[dict[str, Any]]:
    """The events of one ledger message, one row each; only those of the job if job_id is given."""
    place = {"sequence": entry.sequence, "at": clock_time(entry.stored_at_s)}
    message = entry.message
    if isinstance(message, Unreadable):
        if job_id is None:
            yield place | {"event": "unreadable", "service": "", "keys": {"problems": message.problems}}
        return
    events = message.events if isinstance(message, PlanDecided) else (message,)
    service = message.service if isinstance(message, PlanDecided) else ""
    for event in events:
        if job_id is None or _names(event, job_id):
            yield place | {"event": type(event).__name__, "service": service, "keys": summary(event)}


def _names(event: Any, job_id: str) -> bool:
    return (
        getattr(event, "job_id", None) == job_id
        or job_id in getattr(event, "num_gpus_by_job", ())
        or job_id in getattr(event, "replanned", ())
        or any(placed.job_id == job_id for placed in getattr(event, "placements", ()))
    )


def line(row: Mapping[str, Any]) -> Text:
    """A row of `event_rows` as one line."""
    text = Text()
    text.append(f"{row['sequence']:>7} ", style="dim")
    text.append(f"{row['at'][11:]} ")
    text.append(row["event"], style="bold")
    if row["service"]:
        text.append(f" by {row['service']}", style="cyan")
    for key, value in row["keys"].items():
        text.append(f" {key}=", style="dim")
        text.append(str(value))
    return text


def difference_lines(difference: Difference) -> Iterator[Text]:
    """The first decision that differs when retaken, field by field."""
    yield Text(
        f"the decision of {difference.service} at sequence {difference.sequence} "
        f"(based on {difference.based_on}, at {clock_time(difference.now_s)}) differs when retaken:",
        style="red",
    )
    for field in difference.fields:
        yield Text(f"  {field.path}: recorded {field.recorded!r:.300}, now {field.again!r:.300}")

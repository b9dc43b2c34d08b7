"""The jobs and padding loads that an event concerns. Pure."""

from collections.abc import Iterator
from typing import Any

from elasticflow.shared.messages import events
from elasticflow.shared.messages.event_summary import summary
from elasticflow.shared.messages.events import EpochBegan, Event, LoadEvent, NodeLost, PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState

_ON_THE_POOL = (
    events.NodeJoined,
    events.NodeLost,
    events.NodeEndAnnounced,
    events.NodeEndNoticed,
    events.NodeDrainStarted,
    events.PoolConfigured,
)


def names_concerned(event: Event, before: PoolState, after: PoolState) -> tuple[str, ...]:
    """Their names, each once; the name "" for an event on a node or on the whole pool."""
    match event:
        case events.AllocationDecided():
            names = (*event.num_gpus_by_job, *before.num_gpus_by_job)
            return tuple(name for name in dict.fromkeys(names) if _share(before, name) != _share(after, name))
        case events.PlacementDecided():
            return tuple(placed.job_id for placed in event.placements)
        case events.ThroughputMeasured() | events.ProfileCompleted():
            key = event.profile_key
            return tuple(name for name, job in after.live_jobs.items() if is_profile_of(job, key))
        case events.JobAdmitted():
            return (event.job_id, *(name for name in event.replanned if name != event.job_id))
        case events.NodeLost() | events.NodeJoined():
            return ("", *(name for name, job in before.live_jobs.items() if event.node_id in job.nodes))
        case _ if isinstance(event, _ON_THE_POOL):
            return ("",)
        case _ if isinstance(event, LoadEvent):
            return (event.load_id,)
        case _:
            name = getattr(event, "job_id", "")
            return (name,) if name else ()


def names_changed(message: Event | PlanDecided, before: PoolState, after: PoolState) -> set[str]:
    """The jobs and padding loads that a message of the ledger concerns, or whose plan it changes."""
    parts = message.events if isinstance(message, PlanDecided) else (message,)
    names = {name for event in parts for name in names_concerned(event, before, after)}
    if isinstance(message, PlanDecided):  # a plan may change the schedules of any jobs
        names |= {name for name, job in before.live_jobs.items() if after.live_jobs.get(name) is not job}
    return names - {""}


def is_profile_of(job: Job, profile_key: str) -> bool:
    """Whether the live job waits for this scaling curve, or trains by it."""
    return job.live and job.spec is not None and profile_key in (job.spec.profile_key, job.spec.measured_key)


def _share(state: PoolState, name: str) -> int:
    job = state.job(name)
    return 0 if job is None else job.num_gpus


# --- The events of a ledger's messages as flat values, for tables and JSON -----------------------------


def event_rows(stored: LedgerRecord, message: LedgerMessage, job_id: str = "") -> Iterator[dict[str, Any]]:
    """The events of one message as flat values; with job_id only those that concern it."""
    parts: tuple[Event, ...] = ()
    if not isinstance(message, Unreadable):
        parts = message.events if isinstance(message, PlanDecided) else (message,)
    source = _writer(stored.subject, message)
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


def _writer(subject: str, message: LedgerMessage) -> str:
    """The service that wrote the message; the node, if that is its executor."""
    if isinstance(message, PlanDecided):
        return message.service
    if isinstance(message, EpochBegan):
        return "operator"
    kind, *names = subject.split(".")[3:]  # behind ef.ledger.POOL
    if kind == "job" and len(names) > 1:  # ef.ledger.POOL.job.JOB.NODE
        return names[1]
    if kind == "node" and not (isinstance(message, NodeLost) and message.reason == "silent"):
        return names[0]
    return kind if isinstance(message, Unreadable) else "monitor"


def concerns(event: Event, job_id: str) -> bool:
    """Whether the event names the job: as its subject, in an allocation, a placement or a replanned schedule."""
    if getattr(event, "job_id", "") == job_id:
        return True
    placed = (placement.job_id for placement in getattr(event, "placements", ()))
    return (
        job_id in placed or job_id in getattr(event, "num_gpus_by_job", ()) or job_id in getattr(event, "replanned", ())
    )

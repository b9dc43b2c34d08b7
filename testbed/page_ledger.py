"""A recorded ledger with every kind of promise and with hostile texts, for tests of the page. Its time is virtual."""

import json
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from elasticflow.client.ledger import LedgerEntry
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.messages.export import ExportWriter, LedgerRecord
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.runtime.service.ledger_encoding import read_message, subject_of
from testbed.histories import NOW_S, History, pool, submit

POOL = "default"
HOSTILE = "<img src=x onerror=\"document.title='broken in'\"></script><script>alert(1)</script>"
RATE = 4.0  # iterations/s on four GPUs


def page_history() -> History:
    """Two nodes of four GPUs, and five jobs: kept ended in time, rejected has offers, crashed failed with a hostile
    text, running trains, and risky is at risk."""
    history = pool(4, 4)
    _plan(history, submit("kept"), now_s=NOW_S + 1.0)
    _train(history, "kept", seconds=24, from_s=NOW_S + 2.0)
    history.finished("kept", at_s=NOW_S + 30.0)
    _plan(history, submit("rejected", max_iterations=100_000), now_s=NOW_S + 31.0)
    _plan(history, submit("crashed", description=HOSTILE, hyperparameters={"note": HOSTILE}), now_s=NOW_S + 32.0)
    _train(history, "crashed", seconds=3, from_s=NOW_S + 33.0)
    _fail(history, "crashed", at_s=NOW_S + 37.0)
    _plan(history, submit("running", max_iterations=150, deadline_s=NOW_S + 200.0), now_s=NOW_S + 38.0)
    _plan(history, submit("risky", max_iterations=60, deadline_s=NOW_S + 160.0), now_s=NOW_S + 39.0)
    _train(history, "running", seconds=8, from_s=NOW_S + 40.0)
    _train(history, "risky", seconds=8, from_s=NOW_S + 49.0)
    generation = history.state.live_jobs["risky"].generation
    risk = events.JobAtRisk(
        job_id="risky",
        generation=generation,
        projected_finish_s=NOW_S + 170.0,
        deadline_s=NOW_S + 160.0,
        at_s=NOW_S + 58.0,
    )
    return history.then(risk)


def with_node_ends(history: History) -> History:
    """The operator has announced the end of both nodes; that of node-1 is so near that its jobs move."""
    for event in (
        events.NodeEndAnnounced(node_id="node-0", incarnation="first-0", until_s=NOW_S + 7300.0, at_s=NOW_S + 59.0),
        events.NodeEndAnnounced(node_id="node-1", incarnation="first-1", until_s=NOW_S + 90.0, at_s=NOW_S + 59.0),
        events.NodeDrainStarted(node_id="node-1", incarnation="first-1", at_s=NOW_S + 60.0),
    ):
        decision = events.PlanDecided(
            service="operator", based_on=history.state.sequence, now_s=event.at_s, events=(event,)
        )
        history.then(decision)
    return history


def with_failed_best_effort(history: History) -> History:
    """A job without a promise has failed."""
    _plan(history, submit("free", job_class=JobClass.BEST_EFFORT, deadline_s=None), now_s=NOW_S + 166.0)
    _train(history, "free", seconds=1, from_s=NOW_S + 167.0)
    _fail(history, "free", at_s=NOW_S + 169.0)
    return history


def recorded(history: History) -> tuple[LedgerEntry, ...]:
    """The messages as a pool stores them."""
    return tuple((record, read_message(record)) for record in records(history))


def write_export(history: History, file: Path) -> None:
    file.write_bytes(exported(history))


def exported(history: History, *newer: LedgerRecord) -> bytes:
    """newer: records after those of the history."""
    out = BytesIO()
    writer = ExportWriter(out)
    for record in (*records(history), *newer):
        writer.add(record)
    writer.finish()
    return out.getvalue()


def of_newer_eflow(history: History) -> tuple[LedgerRecord, LedgerRecord]:
    """Append to a history an event of an unknown type, and a known one of a version that does not exist yet."""
    last = list(records(history))[-1]
    told = ({"type": "JobDreamed", "version": 1}, {"type": "JobAtRisk", "version": 99})
    first, second = (
        replace(last, sequence=last.sequence + number, message_id=f"newer-{number}", data=json.dumps(envelope).encode())
        for number, envelope in enumerate(({**each, "id": "newer", "payload": {}} for each in told), start=1)
    )
    return first, second


def records(history: History) -> Iterator[LedgerRecord]:
    for sequence, message in enumerate(history.messages, start=1):
        at_s = message.now_s if isinstance(message, events.PlanDecided) else message.at_s
        if isinstance(message, events.PoolConfigured):  # on the plan, readers accept decisions only
            message = events.PlanDecided(service="operator", based_on=sequence - 1, now_s=at_s, events=(message,))
        data = codec.encode(message, id=f"message-{sequence}", recorded_at_s=at_s)
        yield LedgerRecord(
            sequence=sequence, subject=subject(message), message_id=f"message-{sequence}", stored_at_s=at_s, data=data
        )


def subject(message: Any) -> str:
    return subjects.plan(POOL) if isinstance(message, events.PlanDecided) else subject_of(POOL, message)


def _plan(history: History, *commands: Any, now_s: float) -> None:
    history.decided(ADMISSION, *commands, now_s=now_s)
    history.decided(ALLOCATOR, now_s=now_s)
    history.decided(PLACEMENT, now_s=now_s)


def _train(history: History, job_id: str, *, seconds: int, from_s: float) -> None:
    """A report each second."""
    history.started(job_id, at_s=from_s)
    for second in range(1, seconds + 1):
        history.then(
            events.JobProgressed(
                job_id=job_id,
                generation=history.state.live_jobs[job_id].generation,
                iteration=int(RATE * second),
                iterations_per_s=RATE,
                metrics={"loss": 1.0 / second},
                at_s=from_s + second,
            )
        )


def _fail(history: History, job_id: str, *, at_s: float) -> None:
    generation = history.state.live_jobs[job_id].generation
    history.then(
        events.JobFailed(
            job_id=job_id, generation=generation, error=HOSTILE, traceback=f"Traceback: {HOSTILE}", at_s=at_s
        )
    )

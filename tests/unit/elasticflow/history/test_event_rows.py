"""Each row of the events names who wrote it: a service, a node for its executor, or the operator."""

import pytest

from elasticflow.history.event_text import event_rows
from elasticflow.shared.messages import events, subjects
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable

AT_S = 1_700_000_000.0
PROGRESSED = events.JobProgressed(job_id="a", generation=1, iteration=5, iterations_per_s=2.0, at_s=AT_S)
STOPPED = events.WorkersStopped(job_id="a", generation=1, node_id="n-1", at_s=AT_S)
SILENT, LEFT = (
    events.NodeLost(node_id="n-1", incarnation="1", reason=reason, at_s=AT_S) for reason in ("silent", "left")
)


@pytest.mark.parametrize(
    ("subject", "message", "writer"),
    [
        (subjects.job("pool", "a"), PROGRESSED, "monitor"),
        (subjects.job("pool", "a", "n-1"), STOPPED, "n-1"),
        (subjects.node("pool", "n-1"), SILENT, "monitor"),
        (subjects.node("pool", "n-1"), LEFT, "n-1"),
        (
            subjects.plan("pool"),
            events.PlanDecided(service="admission", based_on=1, now_s=AT_S, events=(LEFT,)),
            "admission",
        ),
        (subjects.plan("pool"), Unreadable(on_plan=False), "plan"),
        (subjects.job("pool", "a", "n-1"), Unreadable(on_plan=False), "n-1"),
    ],
)
def test_a_row_names_its_writer(subject: str, message: LedgerMessage, writer: str) -> None:
    record = LedgerRecord(sequence=7, subject=subject, message_id="", data=b"", stored_at_s=AT_S)
    (row,) = event_rows(record, message)
    assert row["from"] == writer

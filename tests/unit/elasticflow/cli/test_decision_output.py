"""The output of `eflow submit` for each decision."""

import pytest

from elasticflow.cli.command_options import SubmissionOptions
from elasticflow.cli.decision_output import show_decision
from elasticflow.shared.messages.events import JobAdmitted
from tests.support.histories import NOW_S, spec


@pytest.mark.parametrize(
    ("later_s", "deadline", "finish"),
    [(0.0, "(in 5m 00s)", "(in 1m 00s)"), (90.0, "(in 3m 30s)", "(30.0s ago)")],
)
def test_an_answer_given_before_counts_from_now(
    later_s: float, deadline: str, finish: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admitted = JobAdmitted(
        job_id="j1",
        tenant="lab",
        spec=spec(),
        deadline_s=NOW_S + 300.0,
        minimum_satisfactory_share=(NOW_S, NOW_S + 60.0, 2),
        gpu_seconds=120.0,
        at_s=NOW_S,
    )
    show_decision(admitted, SubmissionOptions(target="line.py"), now_s=NOW_S + later_s)
    shown = capsys.readouterr().out
    assert deadline in shown
    assert finish in shown

"""The output of `eflow submit` for each decision."""

from dataclasses import replace

import pytest

from elasticflow.cli.decision_output import note_replaced, show_decision, show_quote
from elasticflow.cli.job_options import SubmissionOptions
from elasticflow.errors import UnknownJob
from elasticflow.shared.messages.commands import DeadlineQuoted
from elasticflow.shared.messages.events import JobAdmitted
from elasticflow.shared.messages.limits import next_name
from elasticflow.shared.state.job import Job, Phase
from elasticflow.times import clock_time
from testbed.histories import NOW_S, spec
from tests.support.worker_events import admitted, rejected


@pytest.mark.parametrize(
    ("later_s", "deadline", "finish"),
    [(0.0, "(in 5m 00s)", "(in 1m 00s)"), (90.0, "(in 3m 30s)", "(30.0s ago)")],
)
def test_an_answer_given_before_counts_from_now(
    later_s: float, deadline: str, finish: str, capsys: pytest.CaptureFixture[str]
) -> None:
    promised = JobAdmitted(
        job_id="j1",
        tenant="lab",
        spec=spec(),
        deadline_s=NOW_S + 300.0,
        minimum_satisfactory_share=(NOW_S, NOW_S + 60.0, 2),
        gpu_seconds=120.0,
        at_s=NOW_S,
    )
    show_decision(promised, SubmissionOptions(target="line.py"), now_s=NOW_S + later_s)
    shown = capsys.readouterr().out
    assert deadline in shown
    assert finish in shown


def test_an_answer_names_the_gpu_type(capsys: pytest.CaptureFixture[str]) -> None:
    options = SubmissionOptions(target="line.py")
    show_decision(admitted("j1", gpu_type="P100"), options, now_s=NOW_S)
    quoted = DeadlineQuoted(earliest_deadline_s=NOW_S + 50.0, gpu_seconds=9.0, gpu_type="V100", at_s=NOW_S)
    show_quote(quoted, NOW_S + 50.0, options)
    words = capsys.readouterr().out.split()
    assert " ".join(words[words.index("GPU") :][:3]) == "GPU type P100"
    assert "9 GPU-seconds of type V100" in " ".join(words)


@pytest.mark.parametrize(
    ("wanted_s", "first"),
    [
        (NOW_S + 60.0, "would be promised  {} (in 1m 00s)"),
        (NOW_S + 20.0, "not promised: {} (in 20.0s) is 30.0s too early"),
    ],
)
def test_a_quote_answers_whether_a_deadline_would_be_promised(
    wanted_s: float, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quoted = DeadlineQuoted(earliest_deadline_s=NOW_S + 50.0, at_s=NOW_S)
    show_quote(quoted, NOW_S + 50.0, SubmissionOptions(target="a.py", deadline="1m"), wanted_s)
    assert capsys.readouterr().out.splitlines()[0] == first.format(clock_time(wanted_s, now_s=NOW_S))


BEFORE = Job(job_id="j1", tenant="t", spec=spec(), phase=Phase.ADMITTED, decided_at_s=NOW_S, decided_sequence=1)


@pytest.mark.parametrize(
    ("phase", "ended_at_s", "said"),
    [
        (Phase.ADMITTED, None, "; nothing was submitted now"),
        (
            Phase.FAILED,
            NOW_S + 5.0,
            ", and failed at {} (5.0s ago); nothing was submitted now; to run it again: --again",
        ),
    ],
)
def test_a_second_submission_says_that_it_is_one(
    phase: Phase, ended_at_s: float | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = replace(BEFORE, phase=phase, ended_at_s=ended_at_s)
    now_s = NOW_S + 10.0
    show_decision(admitted("j1"), SubmissionOptions(target="a.py", name="j1"), now_s=now_s, earlier=earlier)
    first = capsys.readouterr().out.splitlines()[0]
    end = said.format(clock_time(NOW_S + 5.0, now_s=now_s))
    assert first == f"j1 was admitted already at {clock_time(NOW_S, now_s=now_s)} (10.0s ago){end}"


def test_an_earlier_rejection_is_said_to_be_one_and_its_offers_are_over(capsys: pytest.CaptureFixture[str]) -> None:
    earlier = replace(BEFORE, phase=Phase.REJECTED, explanation="does not fit", ended_at_s=NOW_S)
    again = rejected(job_id="j1", explanation="does not fit", earliest_deadline_s=NOW_S + 30.0, deadline_s=NOW_S + 5.0)
    now_s = NOW_S + 60.0
    show_decision(again, SubmissionOptions(target="a.py", name="j1"), now_s=now_s, earlier=earlier)
    assert capsys.readouterr().out.splitlines() == [
        f"j1 was rejected already at {clock_time(NOW_S, now_s=now_s)} (1m 00s ago); nothing was submitted now; "
        "to ask again: --again",
        "rejected  j1: does not fit",
    ]
    show_decision(replace(again, at_s=now_s), SubmissionOptions(target="a.py"), now_s=now_s, earlier=earlier)
    assert "earliest deadline" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("phase", "iteration", "said"),
    [
        (Phase.FAILED, 40, "j1 failed at iteration 40; this job asks for its name"),
        (Phase.CANCELLED, 0, "j1 was cancelled; this job asks for its name"),
    ],
)
def test_a_job_that_takes_the_name_of_an_ended_one_is_new(
    phase: Phase, iteration: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = replace(BEFORE, phase=phase, iteration=iteration, ended_at_s=NOW_S + 5.0)
    note_replaced(earlier, True)
    assert capsys.readouterr().err == f"{said}\n"
    note_replaced(earlier, False)
    options = SubmissionOptions(target="a.py", name="j1")
    show_decision(replace(admitted("j1"), at_s=NOW_S + 9.0), options, now_s=NOW_S + 9.0, earlier=earlier)
    shown = capsys.readouterr()
    assert (shown.err, shown.out.splitlines()[0]) == ("", "admitted  j1")
    refused = rejected(job_id="j1", explanation="does not fit", replaces="0123456789abcdef", at_s=NOW_S + 9.0)
    show_decision(refused, options, now_s=NOW_S + 9.0, earlier=earlier)
    assert capsys.readouterr().out.splitlines()[-1] == "  the name j1 stays that of the job that had it"
    show_decision(replace(refused, earliest_deadline_s=NOW_S + 30.0), options, now_s=NOW_S + 9.0, earlier=earlier)
    assert "--name j1\n" in capsys.readouterr().out.replace(" \n", "\n")


def test_a_job_that_was_rejected_before_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    earlier = replace(BEFORE, phase=Phase.REJECTED)
    show_decision(admitted("j1"), SubmissionOptions(target="a.py"), now_s=NOW_S, earlier=earlier)
    assert capsys.readouterr().out.startswith("admitted  j1")


@pytest.mark.parametrize(
    ("name", "following"),
    [("j", "j-2"), ("j-2", "j-3"), ("run-2026", "run-2026-2"), ("j-3f9a1c", "j-3f9a1c-2"), ("x" * 64, f"{'x' * 59}-2")],
)
def test_the_next_name_counts(name: str, following: str) -> None:
    assert next_name(name) == following


def test_an_unknown_job_is_said_with_close_names() -> None:
    known = ("hans", "greta", "digits-3f9a1c")
    assert str(UnknownJob("han", "pool default", known)) == (
        "unknown job 'han' in pool default; did you mean hans? `eflow jobs --all` lists its jobs"
    )
    assert "did you mean digits-3f9a1c?" in str(UnknownJob("digits", "pool default", known))
    assert str(UnknownJob("x", "pool default", known)).endswith("default; `eflow jobs --all` lists its jobs")

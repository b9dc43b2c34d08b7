"""What the demo says of its padding load follows from the folded pool and the results of the tasks."""

from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.messages.load_spec import LoadSpec
from examples.demo.cast import REJECTED_ON_PURPOSE
from examples.demo.padding import LOAD_ID, NUM_TASKS
from examples.demo.performance import Performance
from examples.demo.report import (
    busy_line,
    draw,
    load_is_complete,
    load_line,
    num_gpus_taken,
    padding_gpus_over_time,
    rows,
)
from examples.pi import estimate, points_in_circle
from testbed.histories import NOW_S, pool, spec
from tests.support.worker_events import admitted, finished, placed, profile_requested

OPENED = events.LoadOpened(
    load_id=LOAD_ID, tenant="lab", spec=LoadSpec(task_function="pi:points", task_s=0.03), at_s=NOW_S
)
SEALED = events.LoadSealed(load_id=LOAD_ID, num_tasks=NUM_TASKS, at_s=NOW_S)


def performed(*messages: object, results: list[int | BaseException]) -> Performance:
    """Two nodes of four GPUs; the state after each message, a second apart."""
    history = pool(4, 4)
    states = [history.state, *(history.then(message).state for message in messages)]
    return Performance(NOW_S, [(NOW_S + second, state) for second, state in enumerate(states)], results)


@pytest.fixture
def performance() -> Performance:
    """A job grows from one GPU to four and ends; the load is there from its growth on, and ends after it."""
    ended = events.LoadFinished(load_id=LOAD_ID, num_results=NUM_TASKS, at_s=NOW_S + 60.0)
    grown = placed(2, "node-0:0", "node-0:1", "node-0:2", "node-0:3")
    messages = (admitted(), placed(1, "node-0:0"), OPENED, SEALED, grown, finished(2), ended)
    return performed(*messages, results=[3_930_000] * NUM_TASKS)


def test_idle_gpus_are_of_padding_only_while_the_load_is_live(performance: Performance) -> None:
    assert padding_gpus_over_time(performance) == [0, 0, 0, 7, 7, 4, 8, 0]


def test_gpus_that_a_job_takes_from_the_load_are_counted_and_those_of_its_end_are_not(performance: Performance) -> None:
    assert num_gpus_taken(performance) == 3


def test_the_load_is_complete_if_each_task_has_its_result(performance: Performance) -> None:
    assert load_is_complete(performance)
    assert load_line(performance) == (
        f"padding load pi: {NUM_TASKS} of {NUM_TASKS} tasks have their result; "
        "jobs took 3 GPUs from it; pi is about 3.144"
    )


def test_a_task_without_result_makes_the_demo_fail_with_its_error(performance: Performance) -> None:
    performance.task_results[5] = RuntimeError("no such sample")
    assert not load_is_complete(performance)
    line = load_line(performance)
    assert f" {NUM_TASKS - 1} of {NUM_TASKS} tasks " in line
    assert line.endswith("; no such sample")


def test_a_result_that_the_ledger_does_not_count_makes_the_demo_fail() -> None:
    fewer = events.LoadFinished(load_id=LOAD_ID, num_results=NUM_TASKS - 1, at_s=NOW_S + 60.0)
    for last in (fewer, SEALED):
        assert not load_is_complete(performed(OPENED, last, results=[1] * NUM_TASKS))
    assert not load_is_complete(performed(results=[1] * NUM_TASKS))


def test_the_picture_names_the_padding_load(performance: Performance, tmp_path: Path) -> None:
    draw(performance, rows(performance), tmp_path / "gpus.svg")
    assert "padding load" in (tmp_path / "gpus.svg").read_text()


def test_only_the_job_that_asks_too_much_may_be_rejected_and_measurements_are_no_jobs() -> None:
    def rejected(job_id: str) -> events.JobRejected:
        return events.JobRejected(
            job_id=job_id,
            tenant="lab",
            spec=spec(),
            reason="deadline",
            explanation="",
            deadline_s=NOW_S + 9.0,
            at_s=NOW_S,
        )

    measured = replace(profile_requested("profile-1"), profile_only=True)
    shown = rows(performed(measured, rejected(REJECTED_ON_PURPOSE), rejected("text"), results=[]))
    assert {row.job_id: row.kept for row in shown} == {REJECTED_ON_PURPOSE: True, "text": False}
    admitted_instead = rows(performed(admitted(REJECTED_ON_PURPOSE), placed(1, "node-0:0"), finished(1), results=[]))
    assert {row.job_id: row.kept for row in shown + admitted_instead}[REJECTED_ON_PURPOSE] is False


def test_the_tasks_estimate_pi_and_a_repeated_one_returns_the_same() -> None:
    counts = [points_in_circle(seed) for seed in (1, 2)]
    assert counts[0] != counts[1]
    assert points_in_circle(1) == counts[0]
    assert estimate(counts) == pytest.approx(3.1416, abs=0.003)


def test_a_busy_machine_is_said_before_anything_is_promised() -> None:
    assert busy_line(load=1.9, num_cores=2) == ""
    assert busy_line(load=14.64, num_cores=2).startswith("this machine is busy (load 14.6 on 2 cores)")

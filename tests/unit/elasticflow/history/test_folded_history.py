"""The generations of a profiling run are one line of a history."""

from dataclasses import replace

import pytest

from elasticflow.history.job_history import HistoryEntry
from elasticflow.history.stored_history import folded

STEP = ("AllocationDecided", "PlacementDecided", "GenerationStarted", "ThroughputMeasured", "WorkersStopped")


def entries(*types: str) -> tuple[HistoryEntry, ...]:
    return tuple(
        HistoryEntry(sequence=number, at_s=float(number), type=kind, text=kind) for number, kind in enumerate(types)
    )


def test_a_profiling_run_is_a_line_with_its_duration() -> None:
    shown = [
        entry.text for entry in folded(entries("ProfileRequested", *STEP, *STEP, "ProfileCompleted", "JobAdmitted"))
    ]
    run = "its profiling run took 9.0s and 2 generations (--all shows each step)"
    assert shown == ["ProfileRequested", run, "ProfileCompleted", "JobAdmitted"]


def test_a_profiling_run_that_goes_on_is_not_told_as_over() -> None:
    shown = [entry.text for entry in folded(entries("ProfileRequested", *STEP))]
    assert shown == [
        "ProfileRequested",
        "its profiling run goes on, after 4.0s and 1 generation (--all shows each step)",
    ]


@pytest.mark.parametrize("said", ["WorkerCrashed", "JobWarned", "MemoryExceeded", "ProfilingFailed"])
def test_what_is_said_in_a_profiling_run_is_kept_and_does_not_divide_it(said: str) -> None:
    for num_steps in (1, 5, 9):
        steps = (*STEP, *STEP)
        shown = [*folded(entries("ProfileRequested", *steps[:num_steps], said, *steps[num_steps:], "JobFailed"))]
        assert [entry.type for entry in shown] == ["ProfileRequested", said, "WorkersStopped", "JobFailed"]
        assert "took 10.0s and 2 generations" in shown[2].text


def test_a_short_profiling_run_stays_in_its_order() -> None:
    history = entries("ProfileRequested", *STEP[:2], "JobWarned", "GenerationStarted", "JobFailed")
    assert tuple(folded(history)) == history


def test_a_second_profiling_run_is_a_line_of_its_own() -> None:
    run = ("ProfileRequested", *STEP, "JobRejected")
    kinds = [entry.type for entry in folded(entries(*run, *run))]
    assert kinds == 2 * ["ProfileRequested", "WorkersStopped", "JobRejected"]


def test_steps_after_the_decision_are_kept() -> None:
    history = entries("JobAdmitted", *STEP, "JobFinished")
    assert tuple(folded(history)) == history
    history = entries("ProfileRequested", "ThroughputMeasured", "ProfileCompleted", "JobAdmitted", *STEP)
    assert tuple(folded(history)) == history


def test_a_profiling_run_that_ends_after_the_decision_belongs_to_it() -> None:
    placed = "JobAdmitted", "AllocationDecided", "PlacementDecided"
    history = entries("ProfileRequested", *STEP, *placed, "WorkersStopped", "GenerationStarted", "WorkersStopped")
    kinds = [entry.type for entry in folded(history)]
    assert kinds == ["ProfileRequested", "WorkersStopped", *placed, "GenerationStarted", "WorkersStopped"]


def test_whose_gpus_were_lent_is_kept_beside_the_line_on_the_run() -> None:
    requested, allocated, *others = entries("ProfileRequested", *STEP, *STEP, "JobAdmitted")
    lent = replace(allocated, text="its share starts with 1 GPU: lent by p3 for its profiling run")
    shown = [*folded((requested, lent, *others))]
    assert [entry.type for entry in shown] == ["ProfileRequested", "AllocationDecided", "WorkersStopped", "JobAdmitted"]
    assert shown[1] is lent

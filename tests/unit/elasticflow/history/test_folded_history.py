"""The generations of a profiling run are one line of a history."""

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


def test_what_went_wrong_in_a_profiling_run_is_kept() -> None:
    history = entries("ProfileRequested", *STEP, "WorkerCrashed", *STEP, "JobFailed")
    kinds = [entry.type for entry in folded(history)]
    assert kinds == ["ProfileRequested", "WorkersStopped", "WorkerCrashed", "WorkersStopped", "JobFailed"]


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

"""A history as a person reads it first: the generations of a profiling run are one line. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from elasticflow.history.job_history import HistoryEntry
from elasticflow.sdk.times import duration_in_words
from elasticflow.shared.messages import events

_ENOUGH = 4  # entries: fewer are shown as they are
_STEPS = {
    kind.__name__
    for kind in (
        events.AllocationDecided,
        events.PlacementDecided,
        events.GenerationStarted,
        events.WorkersStopped,
        events.ThroughputMeasured,
    )
}
_DECISIONS = {
    kind.__name__
    for kind in (
        *(events.JobAdmitted, events.JobRejected, events.JobProfiled),
        *(events.JobCancelled, events.JobFailed, events.JobFinished),
    )
}


def folded(history: Iterable[HistoryEntry]) -> Iterator[HistoryEntry]:
    """What is neither a step of a profiling run nor another report is kept: crashes, warnings, decisions.

    The workers of the last profiling run may end after the decision: no other generation starts before.
    """
    is_profiling, is_ending, steps = False, False, list[HistoryEntry]()
    for entry in history:
        if is_profiling and entry.type in _STEPS:
            steps.append(entry)
            continue
        if is_ending and entry.type == events.WorkersStopped.__name__:
            continue
        is_ending = (is_ending or len(steps) >= _ENOUGH) and entry.type != events.GenerationStarted.__name__
        yield from _in_a_line(steps)
        steps = []
        yield entry
        is_profiling = entry.type == events.ProfileRequested.__name__ or (is_profiling and entry.type not in _DECISIONS)
    yield from _in_a_line(steps)


def _in_a_line(steps: list[HistoryEntry]) -> Iterator[HistoryEntry]:
    if len(steps) < _ENOUGH:
        yield from steps
        return
    num_runs = sum(step.type == events.PlacementDecided.__name__ for step in steps)
    took = duration_in_words(steps[-1].at_s - steps[0].at_s)
    generations = f"{num_runs} generation{'s' if num_runs != 1 else ''}"
    yield replace(steps[-1], text=f"its profiling run took {took} and {generations} (--all shows each step)", lines=())

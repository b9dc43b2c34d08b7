"""A result as tables: jobs.csv, events.csv and windows.csv with a row for each job, event and idle window."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from elasticflow.simulator.padding.windows import write_windows
from elasticflow.simulator.trace.result import Fate, Result

JOB_COLUMNS = (
    "job_id",
    "model_name",
    "batch_size",
    "job_class",
    "submitted_at_s",
    "deadline_s",
    "decision",
    "finished_at_s",
    "met",
    "gpu_seconds",
    "stops",
)
EVENT_COLUMNS = ("at_s", "event", "subject", "num_gpus")

Row = tuple[object, ...]
# order within one instant: jobs leave GPUs before others take them
_ORDER = ("lost", "joined", "submitted", "admitted", "rejected", "left", "finished", "placed", "trains")


def write_tables(result: Result, folder: Path) -> None:
    """Overwrites the tables of an earlier run."""
    _write(folder / "jobs.csv", JOB_COLUMNS, (_job_row(fate) for fate in result.fates))
    _write(folder / "events.csv", EVENT_COLUMNS, sorted(_event_rows(result), key=_in_time))
    if result.idle_time is not None:
        write_windows(folder / "windows.csv", result.idle_time.windows)


def _write(file: Path, columns: tuple[str, ...], rows: Iterable[Row]) -> None:
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(tuple("" if value is None else value for value in row) for row in rows)


def _job_row(fate: Fate) -> Row:
    job = fate.job
    return (
        job.job_id,
        job.model_name,
        job.global_batch_size,
        job.job_class.value,
        job.submitted_at_s,
        job.deadline_s,
        "" if fate.decided_at_s is None else "admitted" if fate.admitted else f"rejected: {fate.rejection}",
        fate.finished_at_s,
        "" if job.deadline_s is None else int(fate.met),
        round(fate.gpu_seconds, 3),
        len(fate.occupancies),
    )


def _event_rows(result: Result) -> Iterator[Row]:
    for outage in result.outages:
        yield (outage.from_s, "lost", outage.node_id, None)
        if outage.to_s is not None:
            yield (outage.to_s, "joined", outage.node_id, None)
    for fate in result.submitted:
        job_id = fate.job.job_id
        yield (fate.job.submitted_at_s, "submitted", job_id, None)
        if fate.decided_at_s is not None:
            yield (fate.decided_at_s, "admitted" if fate.admitted else "rejected", job_id, None)
        for occupancy in fate.occupancies:
            yield (occupancy.placed_at_s, "placed", job_id, occupancy.num_gpus)
            if occupancy.starts_s < occupancy.left_at_s:
                yield (occupancy.starts_s, "trains", job_id, occupancy.num_gpus)
            if occupancy.left_at_s != fate.finished_at_s:
                yield (occupancy.left_at_s, "left", job_id, 0)
        if fate.finished_at_s is not None:
            yield (fate.finished_at_s, "finished", job_id, 0)


def _in_time(row: Row) -> tuple[object, ...]:
    at_s, event, subject, _ = row
    return at_s, _ORDER.index(str(event)), subject

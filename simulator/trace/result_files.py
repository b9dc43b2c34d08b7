"""A result as tables: jobs.csv, events.csv and windows.csv with a row for each job, event and idle window."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from elasticflow.simulator.padding.windows_and_loads import write_windows
from elasticflow.simulator.trace.result import Fate, Result
from elasticflow.times import duration_in_words

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


# --- shown result --------------------------------------------------------------------------------------
# The numbers of a simulation as a person reads them, a line for each question; `--json` has all by name. Pure.

Numbers = Mapping[str, Any]
_IDLE = "idle_gpu_hours_"


def result_table(numbers: Numbers) -> Table:
    """Two columns; a question without an answer in this run has no row."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, answer in _rows(numbers):
        table.add_row(name, answer)
    return table


def _rows(n: Numbers) -> Iterator[tuple[str, str]]:
    partial = ", interrupted: the numbers so far" if n["partial"] else ""
    yield "run", f"{n['trace']} on {n['num_gpus']:,} GPUs, policy {n['policy']}, overhead {n['overhead']}{partial}"
    unfinished = f", {n['unfinished']:,} not finished" if n["unfinished"] else ""
    yield "jobs", f"{n['jobs']:,} submitted: {n['admitted']:,} admitted, {n['rejected']:,} rejected{unfinished}"
    ratio = n["deadline_satisfactory_ratio"]
    of_all = "" if ratio is None else f"; {ratio:.1%} of all, with rejected jobs"
    yield "deadlines", f"{n['met']:,} met, {n['late']:,} promised and missed{of_all}"
    if n["soft_met"] or n["soft_late"]:
        yield "soft deadlines", f"{n['soft_met']:,} met, {n['soft_late']:,} missed"
    yield from _bound(n)
    yield from _times(n)
    in_use = "" if n["utilization"] is None else f", {n['utilization']:.1%} of the time held"
    yield "GPUs", f"{n['gpu_hours']:,.1f} GPU-hours{in_use}, cluster efficiency {n['cluster_efficiency']:.1%}"
    yield from _idle(n)
    changes = f"{n['resizes']:,} resizes, {n['migrations']:,} migrations, {n['outages']:,} nodes lost"
    every_s = n["scheduling_interval_s"]
    yield "changes", changes + ("" if every_s is None else f"; GPUs change hands every {duration_in_words(every_s)}")
    if n["certificates_checked"] is not None:
        failed, unproven = n["certificate_failures"], n["unproven"]
        checked = f"{n['certificates_checked']:,} checked, {failed:,} wrong"
        yield "certificates", f"{checked}; {unproven:,} rejections without a proof"
        yield "places", f"{n['placements_checked']:,} of promised jobs checked, {n['promised_apart']:,} apart"
        if found := n["packings_checked"] + n["packings_missing"]:
            yield "packings", f"{n['packings_checked']:,} of {found:,} plans with all migrations paid"
    yield "computed in", f"{n['wall_s']:,.1f} s, {n['peak_rss_mb']:,.0f} MB of memory; --json has every number"


def _bound(n: Numbers) -> Iterator[tuple[str, str]]:
    """What any scheduler could do at most."""
    if n["bound"] is None:
        return
    exact = "" if n["bound_exact"] else " or fewer"
    part = "" if n["fraction_of_bound"] is None else f"; this run met {n['fraction_of_bound']:.1%} of that"
    yield (
        "any scheduler",
        f"meets at most {n['bound']:,.6g}{exact} deadlines, in {n['bound_gpu_hours']:,.1f} GPU-hours{part}",
    )
    yield "each job alone", f"{n['feasible_alone']:,} of them could meet their deadlines on an empty cluster"


def _times(n: Numbers) -> Iterator[tuple[str, str]]:
    yield "makespan", duration_in_words(n["makespan_s"])
    kinds = {
        "a job takes": "jct",
        "a small job": "jct_small",
        "a medium job": "jct_medium",
        "a large job": "jct_large",
        "a job waits": "queueing",
    }
    for name, key in kinds.items():
        if n[f"mean_{key}_s"] is not None:
            mean, median = (duration_in_words(n[f"{kind}_{key}_s"]) for kind in ("mean", "median"))
            yield name, f"{mean} (median {median})"
    if n["mean_jct_best_effort_s"] is not None:
        yield "best effort", duration_in_words(n["mean_jct_best_effort_s"])


def _idle(n: Numbers) -> Iterator[tuple[str, str]]:
    if n.get("idle_gpu_hours") is None:
        return
    causes = [
        f"{hours:,.3g} {name.removeprefix(_IDLE).replace('_', ' ')}"
        for name, hours in n.items()
        if name.startswith(_IDLE) and hours
    ]
    why = f": {', '.join(causes)}" if causes else ""
    yield "idle", f"{n['idle_gpu_hours']:,.3g} GPU-hours{why}"
    if n.get("idle_windows"):
        lengths = [n[f"idle_window_p{part}_s"] for part in (10, 50, 90)]
        words = ", ".join("-" if length_s is None else duration_in_words(length_s) for length_s in lengths)
        yield "idle windows", f"{n['idle_windows']:,}; their percentiles 10, 50 and 90: {words}"

"""The result of a simulation: the fate of each job, and the numbers computed from all of them.

Everything counts what happened on the simulated cluster, never a plan.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from elasticflow.shared.messages.events import (
    JobAdmitted,
    JobRejected,
    PlacementDecided,
    PlanEvent,
    RejectionReason,
)
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.allocation.allocation import IdleCause, idle_gpus
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.state.pool import CARRIES_A_JOB, PoolState
from elasticflow.simulator.padding.windows_and_loads import IdleWindow, write_windows
from elasticflow.simulator.trace.cluster_state import Occupancy, Outage
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload
from elasticflow.times import duration_in_words

# --- idle time ----------------------------------------------------------------------------------------
# The idle time of a simulated cluster: GPU-seconds by cause, and the idle windows of each GPU.

QUANTILES = (10, 50, 90)
HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTime:
    """windows: in the order of their ends; those of one instant by GPU. The last ones end with the simulation."""

    gpu_seconds: Mapping[IdleCause, float]
    windows: tuple[IdleWindow, ...]

    def numbers(self) -> Mapping[str, object]:
        """Idle GPU-hours by cause, and the distribution of the lengths of windows."""
        lengths_s = [window.length_s for window in self.windows]
        quantiles_s = np.percentile(lengths_s, QUANTILES).tolist() if lengths_s else [None] * len(QUANTILES)
        return {
            "idle_gpu_hours": sum(self.gpu_seconds.values()) / HOUR_S,
            **{f"idle_gpu_hours_{cause}": self.gpu_seconds[cause] / HOUR_S for cause in IdleCause},
            "idle_windows": len(lengths_s),
            **{f"idle_window_p{part}_s": length for part, length in zip(QUANTILES, quantiles_s, strict=True)},
        }


class IdleTimeMeter:
    """Measures while a simulation runs."""

    def __init__(self) -> None:
        self._gpu_seconds = dict.fromkeys(IdleCause, 0.0)
        self._windows = list[IdleWindow]()
        self._idle: Mapping[IdleCause, int] = {}
        self._since_s: Mapping[str, tuple[float, ...]] = {}
        self._at_s = 0.0

    def settled(self, state: PoolState, now_s: float) -> None:
        """All events and decisions of this instant are in the state."""
        self._advance(now_s)
        self._idle = idle_gpus(state)
        if state.idle_since_s is not self._since_s:
            self._end_windows(state.idle_since_s, now_s)
            self._since_s = state.idle_since_s

    def idle_time(self, ended_at_s: float) -> IdleTime:
        """The idle time of the simulation that ends now."""
        self._advance(ended_at_s)
        self._end_windows({}, ended_at_s)
        return IdleTime(gpu_seconds=self._gpu_seconds, windows=tuple(self._windows))

    def _advance(self, now_s: float) -> None:
        for cause, num_gpus in self._idle.items():
            self._gpu_seconds[cause] += num_gpus * (now_s - self._at_s)
        self._at_s = now_s

    def _end_windows(self, since_s: Mapping[str, tuple[float, ...]], now_s: float) -> None:
        """A window ends when its GPU is no longer idle since the same instant."""
        for node_id in sorted(self._since_s):
            before, after = self._since_s[node_id], since_s.get(node_id)
            if after is before:
                continue
            for gpu, start_s in enumerate(before):
                is_over = after is None or gpu >= len(after) or after[gpu] != start_s
                if is_over and start_s < CARRIES_A_JOB and start_s < now_s:
                    self._windows.append(IdleWindow(f"{node_id}:{gpu}", start_s, now_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The outcome of one job. Neither admitted nor rejected: undecided when the simulation stopped.

    decided_at_s: later than its submission if it waited for a node to rejoin.
    """

    job: TraceJob
    admitted: bool
    admitted_on: str | None  # GPU type; "" if all GPUs are equal
    rejection: RejectionReason | None
    decided_at_s: float | None
    finished_at_s: float | None
    occupancies: tuple[Occupancy, ...]

    @property
    def met(self) -> bool:
        """Whether it had a deadline and ended by then."""
        if self.job.deadline_s is None or self.finished_at_s is None:
            return False
        return self.finished_at_s <= self.job.deadline_s

    @property
    def gpu_seconds(self) -> float:
        return sum(occupancy.gpu_seconds for occupancy in self.occupancies)


class JobLog:
    """Admissions, rejections, ends and migrations of one simulation, recorded as they happen.

    The ledger's fold forgets jobs that ended long ago.
    """

    def __init__(self, first_type: str) -> None:
        """first_type: of the pool; the ledger records it as ""."""
        self._first_type = first_type
        self.admitted: dict[str, str] = {}  # with the type
        self.rejected: dict[str, RejectionReason] = {}
        self.decided_at_s: dict[str, float] = {}
        self.finished_at_s: dict[str, float] = {}
        self.num_migrations = 0

    @property
    def num_settled(self) -> int:
        """Jobs that were rejected or have ended."""
        return len(self.rejected) + len(self.finished_at_s)

    def record(self, event: PlanEvent, now_s: float) -> None:
        """Note an admission, a rejection or the migrations of a placement."""
        match event:
            case JobAdmitted():
                self.admitted[event.job_id] = event.gpu_type or self._first_type
                self.decided_at_s[event.job_id] = now_s
            case JobRejected():
                self.rejected[event.job_id] = event.reason
                self.decided_at_s[event.job_id] = now_s
            case PlacementDecided():
                self.num_migrations += len(event.migrated)
            case _:
                pass

    def fates(self, workload: Workload, occupancies: Iterable[Occupancy]) -> tuple[Fate, ...]:
        """The fates of the jobs so far, in the order of the workload."""
        by_job = defaultdict[str, list[Occupancy]](list)
        for occupancy in occupancies:
            by_job[occupancy.job_id].append(occupancy)
        return tuple(self._fate(job, by_job[job.job_id]) for job in workload.jobs)

    def _fate(self, job: TraceJob, occupancies: Iterable[Occupancy]) -> Fate:
        return Fate(
            job=job,
            admitted=job.job_id in self.admitted,
            admitted_on=self.admitted.get(job.job_id),
            rejection=self.rejected.get(job.job_id),
            decided_at_s=self.decided_at_s.get(job.job_id),
            finished_at_s=self.finished_at_s.get(job.job_id),
            occupancies=tuple(occupancies),
        )


@dataclass(frozen=True, kw_only=True)  # not slotted: cached properties
class Result:
    """partial: the simulation was stopped at ended_at_s; jobs that had not ended then have no finish.

    idle_time: None if it was not measured.
    """

    workload: Workload
    cluster: ClusterShape
    fates: tuple[Fate, ...]  # in the order of the workload
    outages: tuple[Outage, ...]  # in the order of their beginning
    num_migrations: int
    ended_at_s: float
    partial: bool
    idle_time: IdleTime | None = None

    @property
    def submitted(self) -> tuple[Fate, ...]:
        """Fates of the jobs that had arrived when the simulation ended."""
        return tuple(fate for fate in self.fates if not self.partial or fate.job.submitted_at_s <= self.ended_at_s)

    @property
    def num_slo(self) -> int:
        """Jobs of class slo that were submitted."""
        return sum(fate.job.job_class is JobClass.SLO for fate in self.submitted)

    @property
    def num_admitted(self) -> int:
        return sum(fate.admitted for fate in self.fates)

    @property
    def num_rejected(self) -> int:
        return sum(fate.rejection is not None for fate in self.fates)

    def num_met(self, job_class: JobClass = JobClass.SLO) -> int:
        """Jobs of this class that ended by their deadline."""
        return sum(fate.met for fate in self.fates if fate.job.job_class is job_class)

    def num_late(self, job_class: JobClass = JobClass.SLO) -> int:
        """Admitted jobs of this class whose deadline passed before they ended: of class slo, broken promises."""
        return sum(self.is_late(fate) for fate in self.fates if fate.job.job_class is job_class)

    def is_late(self, fate: Fate) -> bool:
        """Whether it was admitted and its deadline passed before it ended."""
        deadline_s = fate.job.deadline_s
        if not fate.admitted or fate.met or deadline_s is None:
            return False
        return fate.finished_at_s is not None or not self.partial or deadline_s < self.ended_at_s

    @property
    def num_unfinished(self) -> int:
        return sum(fate.admitted and fate.finished_at_s is None for fate in self.fates)

    @property
    def deadline_satisfactory_ratio(self) -> float | None:
        """Jobs of class slo that met their deadline over all of them, rejected ones included."""
        return self.num_met() / self.num_slo if self.num_slo else None

    @cached_property
    def makespan_s(self) -> float:
        """Seconds from the first submission to the last end."""
        ends_s = [fate.finished_at_s for fate in self.fates if fate.finished_at_s is not None]
        if self.partial:
            ends_s.append(self.ended_at_s)
        return max(ends_s) - self.workload.jobs[0].submitted_at_s if ends_s else 0.0

    @property
    def cluster_efficiency(self) -> float:
        """The mean of equation 8 (ElasticFlow, section 6.1) over the makespan.

        Each GPU counts its part of its job's throughput, relative to the throughput of one GPU.
        """
        if not self.makespan_s:
            return 0.0
        alone_s = sum(
            occupancy.iterations / rate_alone(fate.job, occupancy)
            for fate in self.fates
            for occupancy in fate.occupancies
        )
        return alone_s / (self.cluster.num_gpus * self.makespan_s)

    @property
    def mean_jct_best_effort_s(self) -> float | None:
        """The mean time from submission to end, over the best-effort jobs that ended."""
        times_s = [
            fate.finished_at_s - fate.job.submitted_at_s
            for fate in self.fates
            if fate.job.job_class is JobClass.BEST_EFFORT and fate.finished_at_s is not None
        ]
        return sum(times_s) / len(times_s) if times_s else None

    @property
    def num_resizes(self) -> int:
        """Changes of GPUs after each job's first placement, migrations excluded."""
        return sum(max(len(fate.occupancies) - 1, 0) for fate in self.fates) - self.num_migrations

    @property
    def num_outages(self) -> int:
        """Losses of a node."""
        return len(self.outages)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours held by jobs, stops included."""
        return sum(fate.gpu_seconds for fate in self.fates) / HOUR_S

    def numbers(self) -> Mapping[str, object]:
        """Counts and sums of this run, by name; times by job and idle time have their own files."""
        return {
            "jobs": len(self.submitted),
            "admitted": self.num_admitted,
            "rejected": self.num_rejected,
            "met": self.num_met(),
            "late": self.num_late(),
            "soft_met": self.num_met(JobClass.SOFT),
            "soft_late": self.num_late(JobClass.SOFT),
            "unfinished": self.num_unfinished,
            "deadline_satisfactory_ratio": self.deadline_satisfactory_ratio,
            "cluster_efficiency": self.cluster_efficiency,
            "makespan_s": self.makespan_s,
            "mean_jct_best_effort_s": self.mean_jct_best_effort_s,
            "resizes": self.num_resizes,
            "migrations": self.num_migrations,
            "outages": self.num_outages,
            "gpu_hours": self.gpu_hours,
        }


def rate_alone(job: TraceJob, occupancy: Occupancy) -> float:
    """Iterations/s on one GPU; if the job needs more, one GPU's part at its smallest level. On GPUs of several types
    the mean of one of each."""
    by_type = occupancy.num_gpus_by_type
    rates = [(num, _rate_of_one(curve)) for name, num in by_type.items() if (curve := job.curve_on(name)) is not None]
    return rates[0][1] if len(rates) == 1 else sum(num * rate for num, rate in rates) / sum(num for num, _ in rates)


def _rate_of_one(curve: ScalingCurve) -> float:
    return curve.iterations_per_s_L[0] / curve.num_gpus_L[0]


# --- tables --------------------------------------------------------------------------------------------
# A result as tables: jobs.csv, events.csv and windows.csv with a row for each job, event and idle window.

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

"""Traces: CSV files with one job a row. The header decides between two forms.

    job_id, submission_time, num_iteration, model_name, deadline, batch_size, num_gpu, duration
    job_id, submission_time, num_gpu, duration                       (raw: see raw_trace.py)

Times are seconds on the clock of the trace; deadlines are absolute. Without a job_id column, ids are line numbers.
In the first form num_gpu and duration may be empty or absent (only rigid baselines read them); min_gpus and max_gpus
limit the numbers of GPUs; state_bytes is the size of the state that a resize moves (for measured overheads, see
overhead.py); priority is the weight of the job beside others without a promise (1 unless given), and for the baselines
`static-priority` and `weighted-fair-sharing` (without it, that of its class); tenant is the job's owner;
gpus_per_replica is how many GPUs of one node hold the model together (1 unless given; baselines take it for the fewest
GPUs of the job, anywhere). In both
forms one of three more columns may say 1: `best_effort` (its deadline is ignored), `soft_deadline` and `padding`. Other
columns are ignored.
"""

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from elasticflow.shared.messages.gpus import GpuRange, gang_range_problems, range_problem
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.limits import (
    MAX_BATCH,
    MAX_GPUS,
    MAX_GPUS_PER_REPLICA,
    MAX_ITERATIONS,
    MAX_TIME_S,
    PATTERNS_IN_WORDS,
    TOKEN_PATTERN,
)
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.workload.csv_table import BadInput, BadRow, Row, bad_input, columns_of, read_lines, rows_of
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.workload import TENANT, TraceJob, Workload, job_class_of, within

# --- raw trace -----------------------------------------------------------------------------------------
# Raw traces have the submission, GPUs and duration of each job; the rest is drawn at random here.
#
# Source: ElasticFlow, section 6.1: a model and batch size from those with a throughput table, the iterations that the
# duration allows at that throughput, and a deadline of lambda times the duration, lambda uniform in [0.5, 1.5].

TIGHTNESS = (0.5, 1.5)  # the range of lambda
MIN_DURATION_S = 1e-3
MAX_DURATION_S = 1e9  # thirty years; more is a mistake in units


@dataclass(frozen=True, slots=True)
class Setting:
    """A model at a global batch size."""

    model_name: str
    global_batch_size: int
    curve: ScalingCurve
    curve_by_type: Mapping[str, ScalingCurve]  # empty for a pool of one type

    def completed_job(
        self,
        *,
        job_id: str,
        submitted_at_s: float,
        duration_s: float,
        num_gpus: int,
        deadline_s: float | None,
        job_class: JobClass = JobClass.SLO,
    ) -> TraceJob:
        """A job of duration_s seconds on num_gpus GPUs, of one iteration at least."""
        iterations = int(duration_s * self.curve.throughput(num_gpus))
        return TraceJob(
            job_id=job_id,
            submitted_at_s=submitted_at_s,
            num_iterations=max(iterations, 1),
            model_name=self.model_name,
            global_batch_size=self.global_batch_size,
            deadline_s=deadline_s,
            job_class=job_class,
            num_gpus=num_gpus,
            duration_s=duration_s,
            curve=self.curve,
            measured_by_type=self.curve_by_type,
        )


def settings_at(throughputs: Throughputs, num_gpus: int) -> tuple[Setting, ...]:
    """All settings that run on num_gpus GPUs, by model name and batch size."""
    return tuple(
        Setting(model, batch_size, curve, throughputs.curve_by_type(model, batch_size))
        for model in throughputs.models
        for batch_size in throughputs.batch_sizes(model)
        if (curve := throughputs.curve(model, batch_size)).throughput(num_gpus) > 0
    )


class RawReader:
    """Makes jobs of raw rows, one draw after another: the same rows and seed give the same jobs.

    A number of GPUs is rounded up to a power of two.
    """

    def __init__(self, throughputs: Throughputs, chance: np.random.Generator) -> None:
        self._throughputs, self._chance = throughputs, chance
        self._settings: dict[int, tuple[Setting, ...]] = {}  # by number of GPUs

    def __call__(self, row: Row, job_id: str) -> TraceJob:
        submitted_at_s = row.number("submission_time", 0, MAX_TIME_S)
        duration_s = row.number("duration", MIN_DURATION_S, MAX_DURATION_S)
        num_gpus = 1 << (row.whole("num_gpu", 1, MAX_GPUS) - 1).bit_length()
        if num_gpus not in self._settings:
            self._settings[num_gpus] = settings_at(self._throughputs, num_gpus)
        settings = self._settings[num_gpus]
        if not settings:
            raise row.bad_input("num_gpu", f"no model of {self._throughputs.source} runs on {num_gpus} GPUs")
        setting, job_class = settings[self._chance.integers(len(settings))], job_class_of(row)
        deadline_s = submitted_at_s + duration_s * self._chance.uniform(*TIGHTNESS)
        return setting.completed_job(
            job_id=job_id,
            submitted_at_s=submitted_at_s,
            duration_s=duration_s,
            num_gpus=num_gpus,
            deadline_s=deadline_s if job_class.has_deadline else None,
            job_class=job_class,
        )


# --- trace ---------------------------------------------------------------------------------------------

COLUMNS = (
    "job_id",
    "submission_time",
    "num_iteration",
    "model_name",
    "deadline",
    "batch_size",
    "num_gpu",
    "duration",
    "best_effort",
    "soft_deadline",
    "padding",
    "min_gpus",
    "max_gpus",
    "state_bytes",
    "priority",
    "tenant",
    "gpus_per_replica",
)
REQUIRED = ("submission_time", "num_iteration", "model_name", "deadline", "batch_size")
REQUIRED_RAW = ("submission_time", "num_gpu", "duration")
SPELLINGS = {name: name for name in COLUMNS} | {
    "submit_time": "submission_time",
    "iteration": "num_iteration",
    "ddl": "deadline",
    "global_batch_size": "batch_size",
    "num_gpus": "num_gpu",
}
MAX_ID_CHARS = 200
MAX_STATE_BYTES = 1 << 50
PRIORITIES = (1e-3, 1e6)  # the least and the greatest
ADVICE = "correct these rows, or skip them with --skip-bad"


def read_trace(file: Path, throughputs: Throughputs, skip_bad: bool = False, seed: int = 0) -> Workload:
    """The jobs of a file in either form; seed: for what a raw trace leaves open.

    BadInput names every bad row, or with skip_bad they are in `skipped`; a file without a valid row is an error.
    """
    (_, header), *lines = read_lines(file)
    columns = columns_of(file, header, SPELLINGS, ignores_others=True)
    read_job = _reader(file, columns, throughputs, seed)
    jobs: list[TraceJob] = []
    bad: list[BadRow] = []
    lines_by_id: dict[str, int] = {}
    for row in rows_of(file, columns, lines):
        try:
            if isinstance(row, BadInput):
                raise row
            job = read_job(row, _job_id(row))
            first = lines_by_id.setdefault(job.job_id, row.line)
            if first != row.line:
                raise row.bad_input("job_id", f"is in line {first} already; every job needs its own")
            jobs.append(job)
        except BadInput as error:
            bad.extend(error.problems)
    if bad and not (skip_bad and jobs):
        raise BadInput(tuple(bad), ADVICE if jobs else "no row is valid")
    if not jobs:
        raise bad_input(file, "has a header, but no job below it")
    known = set(SPELLINGS.values())
    return Workload.of(file.stem, jobs, bad, (name for name in columns if name not in known))


def write_trace(workload: Workload, file: Path) -> None:
    """Write a file that `read_trace` reads back to the same jobs, given the same throughputs."""
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        has_gangs = any(job.gpus_per_replica > 1 for job in workload.jobs)
        writer.writerow(COLUMNS if has_gangs else COLUMNS[:-1])
        for job in workload.jobs:
            writer.writerow(
                (
                    job.job_id,
                    _plain(job.submitted_at_s),
                    job.num_iterations,
                    job.model_name,
                    "" if job.deadline_s is None else _plain(job.deadline_s),
                    job.global_batch_size,
                    job.num_gpus or "",
                    _plain(job.duration_s) if job.duration_s else "",
                    int(job.job_class is JobClass.BEST_EFFORT),
                    int(job.job_class is JobClass.SOFT),
                    int(job.job_class is JobClass.PADDING),
                    job.min_gpus if job.min_gpus > 1 else "",
                    job.max_gpus or "",
                    job.state_bytes or "",
                    "" if job.priority is None else _plain(job.priority),
                    "" if job.tenant == TENANT else job.tenant,
                    *((job.gpus_per_replica,) if has_gangs else ()),
                )
            )


def _plain(value: float) -> str:
    """Exact; whole numbers without a fraction."""
    return str(int(value)) if value.is_integer() else repr(value)


def _reader(file: Path, columns: list[str], throughputs: Throughputs, seed: int) -> Callable[[Row, str], TraceJob]:
    """The reader for the form in the header: a trace with more columns than a raw one needs is complete."""
    is_raw = set(REQUIRED).isdisjoint(set(columns) - set(REQUIRED_RAW))
    missing = [name for name in (REQUIRED_RAW if is_raw else REQUIRED) if name not in columns]
    if missing:
        forms = f"a trace has {', '.join(REQUIRED)}, a raw one {', '.join(REQUIRED_RAW)}"
        others = [name for name in columns if name not in COLUMNS]
        unknown = f"; unknown here: {', '.join(others)}" if others else ""
        advice = f"the known columns are {', '.join(COLUMNS)}"
        raise bad_input(file, f"no column {', '.join(missing)}; {forms}{unknown}", line=1, advice=advice)
    if is_raw:
        return RawReader(throughputs, np.random.default_rng(seed))
    return partial(_complete_job, throughputs)


def _complete_job(throughputs: Throughputs, row: Row, job_id: str) -> TraceJob:
    submitted_at_s = row.number("submission_time", 0, MAX_TIME_S)
    model_name, batch_size = row.text("model_name"), row.whole("batch_size", 1, MAX_BATCH)
    job_class = job_class_of(row)
    min_gpus = row.whole("min_gpus", 1, MAX_GPUS) if row.has("min_gpus") else 1
    max_gpus = row.whole("max_gpus", 1, MAX_GPUS) if row.has("max_gpus") else None
    gpus_per_replica = _gpus_per_replica(row, min_gpus, max_gpus)
    measured = _curve(throughputs, row, model_name, batch_size)
    curve = _curve_within(measured, row, max(min_gpus, gpus_per_replica), max_gpus)
    return TraceJob(
        job_id=job_id,
        submitted_at_s=submitted_at_s,
        num_iterations=_num_iterations(row, curve),
        model_name=model_name,
        global_batch_size=batch_size,
        deadline_s=_deadline_s(row, submitted_at_s) if job_class.has_deadline else None,
        job_class=job_class,
        num_gpus=row.whole("num_gpu", 1, MAX_GPUS) if row.has("num_gpu") else 0,
        duration_s=row.number("duration", 0, MAX_DURATION_S) if row.has("duration") else 0.0,
        priority=row.number("priority", *PRIORITIES) if row.has("priority") else None,
        tenant=_tenant(row) if row.has("tenant") else TENANT,
        state_bytes=row.whole("state_bytes", 0, MAX_STATE_BYTES) if row.has("state_bytes") else 0,
        curve=curve,
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        gpus_per_replica=gpus_per_replica,
        measured=None if curve == measured else measured,
        measured_by_type=throughputs.curve_by_type(model_name, batch_size),
    )


def _gpus_per_replica(row: Row, min_gpus: int, max_gpus: int | None) -> int:
    if not row.has("gpus_per_replica"):
        return 1
    number = row.whole("gpus_per_replica", 1, MAX_GPUS_PER_REPLICA)
    if number & (number - 1):
        raise row.bad_input("gpus_per_replica", f"must be 1, 2, 4, 8, ..., not {number}")
    if problems := gang_range_problems(number, min_gpus, max_gpus):
        raise row.bad_input("gpus_per_replica", "; ".join(problems))
    return number


def _job_id(row: Row) -> str:
    if "job_id" not in row.cells:
        return f"job-{row.line:06d}"
    job_id = row.text("job_id")
    if not job_id.isprintable() or len(job_id) > MAX_ID_CHARS:
        raise row.bad_input("job_id", f"must be 1 to {MAX_ID_CHARS} printable characters")
    return job_id


def _tenant(row: Row) -> str:
    tenant = row.text("tenant")
    if re.fullmatch(TOKEN_PATTERN, tenant) is None:
        raise row.bad_input("tenant", PATTERNS_IN_WORDS[TOKEN_PATTERN])
    return tenant


def _num_iterations(row: Row, curve: ScalingCurve) -> int:
    num_iterations = row.whole("num_iteration", 1, MAX_ITERATIONS)
    alone_s = num_iterations / max(curve.iterations_per_s_L)
    if alone_s > MAX_DURATION_S:
        raise row.bad_input("num_iteration", f"takes {alone_s:.3g} s at its fastest, more than {MAX_DURATION_S:g} s")
    return num_iterations


def _deadline_s(row: Row, submitted_at_s: float) -> float:
    if not row.has("deadline"):
        raise row.bad_input("deadline", "is missing; give one, or mark the job with best_effort 1")
    deadline_s = row.number("deadline", 0, MAX_TIME_S)
    if deadline_s <= submitted_at_s:
        raise row.bad_input("deadline", f"must come after the submission at {submitted_at_s:.15g} s (it is absolute)")
    return deadline_s


def _curve(throughputs: Throughputs, row: Row, model_name: str, batch_size: int) -> ScalingCurve:
    known = throughputs.batch_sizes(model_name)
    if not known:
        models = ", ".join(throughputs.models)
        raise row.bad_input("model_name", f"has no throughput table; {throughputs.source} knows {models}")
    if batch_size not in known:
        sizes = ", ".join(map(str, known))
        raise row.bad_input("batch_size", f"is not in the table of {model_name}, which knows {sizes}")
    return throughputs.curve(model_name, batch_size)


def _curve_within(measured: ScalingCurve, row: Row, min_gpus: int, max_gpus: int | None) -> ScalingCurve:
    """The part of a model's curve within a job's range."""
    column = next((name for name in ("min_gpus", "max_gpus") if row.has(name)), "gpus_per_replica")
    if (wrong := range_problem(min_gpus, max_gpus)) is not None:
        raise row.bad_input(column, wrong)
    curve = within(measured, GpuRange.of(min_gpus, max_gpus))
    if curve is None:
        levels = ", ".join(map(str, measured.num_gpus_L))
        raise row.bad_input(column, f"leaves no number of GPUs on which the model runs; it does on {levels}")
    return curve

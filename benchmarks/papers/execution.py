"""Makes the workloads of runs from the given folders, runs them, and stores the numbers of each.

A run has a file of its own, written as soon as the run ends, so that a benchmark can be resumed. Traces in the folder
of --traces that no claim names get the rows of Figure 8(b), without a published value.
"""

import hashlib
import json
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from benchmarks.papers.claims import Claim, Figure, Setup, part_of_linear_scaling, run_numbers, share_with_time_enough
from benchmarks.papers.published_jobs import GeneratorSettings, Seeds, published_jobs
from benchmarks.papers.runs import BOUND, Jobs, Run
from benchmarks.scheduling.workloads import cluster_of
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.report.figures import due_after, mixed
from elasticflow.simulator.timing.training_time import PUBLISHED_SLOWDOWN
from elasticflow.simulator.trace.simulated_run import SimulatedRun, execute
from elasticflow.simulator.workload.throughput_tables import Throughputs, read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import Workload, bundled_throughputs

Numbers = Mapping[str, float | None]
_REPOSITORY = Path(__file__).parents[2]
_CODE = ("shared", "services", "simulator", "benchmarks/papers")


@dataclass(frozen=True, slots=True)
class Inputs:
    """traces: None without a folder. throughputs: None for the project's own tables. slowdown_apart: see `Places`."""

    traces: Path | None
    throughputs: Path | None
    generator: GeneratorSettings
    slowdown_apart: float = PUBLISHED_SLOWDOWN

    @property
    def tables(self) -> Throughputs:
        return _tables(self.throughputs or bundled_throughputs())

    @property
    def in_words(self) -> str:
        """The inputs as options of the command, with a space behind each."""
        given: dict[str, object] = {"--traces": self.traces, "--throughputs": self.throughputs}
        if self.slowdown_apart != PUBLISHED_SLOWDOWN:
            given["--slowdown-apart"] = f"{self.slowdown_apart:g}"
        return "".join(f"{option} {shlex.quote(str(value))} " for option, value in given.items() if value is not None)

    @property
    def places_in_words(self) -> str:
        """What the runs assume about the speed of a job by the nodes that its GPUs are on."""
        if self.slowdown_apart <= 1:
            return "all places are equally fast"
        return (
            f"on eight nodes instead of one a job of any model takes {self.slowdown_apart:g} times as long, a third of "
            "the extra time for each doubling beyond the fewest nodes that fit; all policies place by the same rules, "
            "but only ElasticFlow and ours migrate jobs with a deadline for whole blocks; the others know one speed "
            "for each number of GPUs; the bound has the fastest places"
        )

    def has(self, jobs: Jobs) -> bool:
        """Whether these jobs can be made."""
        return not jobs.trace or (self.traces is not None and self._file(jobs).is_file())

    def workload(self, jobs: Jobs) -> Workload:
        if jobs.trace:
            workload = _trace(self._file(jobs), self.throughputs or bundled_throughputs())
        else:
            seeds = Seeds(jobs=jobs.seed, deadlines=jobs.deadline_seed)
            workload = published_jobs(
                self.generator, self.tables, num_jobs=jobs.num_jobs, mean_gap_s=jobs.mean_gap_s, seeds=seeds
            )
        if (times := jobs.deadline_over_duration) is not None:
            workload = due_after(workload, times)
        if jobs.best_effort_share is not None:
            workload = mixed(workload, jobs.best_effort_share, jobs.deadline_seed)
        return workload

    def num_jobs(self, jobs: Jobs) -> int:
        """Small workloads are run first, so that an interrupted report has many rows."""
        return len(self.workload(replace(jobs, best_effort_share=None)).jobs) if jobs.trace else jobs.num_jobs

    def digest(self) -> str:
        """The digest of all files and settings that results depend on."""
        traces = csv_files(self.traces) if self.traces is not None else []
        files = [*csv_files(self.throughputs or bundled_throughputs()), *traces]
        return _digest(files, begin=f"{self.generator!r}{self.slowdown_apart}{code_digest()}")

    def _file(self, jobs: Jobs) -> Path:
        assert self.traces is not None
        return self.traces / f"{jobs.trace}.csv"


def csv_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.csv") if file.is_file())


@cache
def code_digest() -> str:
    """The digest of the code that simulations and live runs execute."""
    files = (file for package in _CODE for file in sorted((_REPOSITORY / package).rglob("*.py")))
    return _digest(files, begin="")


def _digest(files: Iterable[Path], *, begin: str) -> str:
    hashed = hashlib.sha256(begin.encode())
    for file in files:
        hashed.update(file.name.encode())
        hashed.update(file.read_bytes())
    return hashed.hexdigest()[:16]


def alone(name: str) -> str:
    """Options that run one figure or analogue, and keep other reports."""
    return f"--only {shlex.quote(name)} --out {shlex.quote(f'report-{name}')}"


@lru_cache
def _tables(folder: Path) -> Throughputs:
    return read_throughputs(folder)


@lru_cache
def _trace(file: Path, throughputs: Path) -> Workload:
    return read_trace(file, _tables(throughputs), True, 0)  # bad rows are left out; see Workload.skipped


def execute_run(run: Run, inputs: Inputs) -> dict[str, object]:
    """Its numbers, by name, and the CPU time that they took."""
    began_s = time.process_time()
    numbers = _numbers(run, inputs)
    return {"run": run.run_id, "numbers": dict(numbers), "cpu_s": round(time.process_time() - began_s, 2)}


def _numbers(run: Run, inputs: Inputs) -> Numbers:
    workload = inputs.workload(run.jobs)
    counted = {"jobs": len(workload.jobs), "skipped": len(workload.skipped)}
    if run.contestant is None:
        return {**counted, "share_with_time_enough": share_with_time_enough(workload)}
    simulated = SimulatedRun(
        workload=workload,
        cluster=cluster_of(run.num_gpus),
        policy="first-come" if run.contestant == BOUND else run.contestant.policy,
        overhead=run.contestant.overhead,
        slowdown_apart=inputs.slowdown_apart,
    )
    if run.contestant == BOUND:
        num_slo = sum(job.job_class is JobClass.SLO for job in workload.jobs)
        met = simulated.bound().jobs_met
        return {**counted, "met": met, "deadline_satisfactory_ratio": met / num_slo if num_slo else None}
    result = execute(simulated, simulated.simulation(), None).result
    return {**counted, **run_numbers(result)}


def curve_number(inputs: Inputs, model: str, batch_size: int, num_gpus: int) -> float | None:
    """The number of a claim about a scaling curve."""
    return part_of_linear_scaling(inputs.tables, model, batch_size, num_gpus)


# --- stored runs ---------------------------------------------------------------------------------------


class Store:
    """folder: of the report. inputs: a digest of all files that results depend on. wanted: the runs of the report.

    resume: keep the runs that are there; BadSettings if they come from other inputs. Otherwise delete those that are
    wanted, and all from other inputs.
    """

    def __init__(self, folder: Path, inputs: str, wanted: Iterable[Run], *, resume: bool) -> None:
        self._folder = folder / "runs"
        self._folder.mkdir(parents=True, exist_ok=True)
        about = folder / "inputs.json"
        is_other = about.exists() and json.loads(about.read_text(encoding="utf-8")) != {"digest": inputs}
        if resume and is_other:
            raise BadSettings(
                (f"{folder} has runs of other traces, throughputs or code; leave out --resume to run anew",)
            )
        if not resume:
            again = {f"{run.run_id}.json" for run in wanted}
            for file in self._folder.glob("*.json"):
                if is_other or file.name in again:
                    file.unlink()
        write_json(about, {"digest": inputs})
        self._known = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in self._folder.glob("*.json")}

    def keep(self, run: Run, result: Mapping[str, Any]) -> None:
        """Write at once: an interruption loses only the runs in progress."""
        self._known[run.run_id] = dict(result)
        write_json(self._folder / f"{run.run_id}.json", result)

    def numbers(self, run: Run) -> Mapping[str, float | None] | None:
        """The numbers of a run; None if it was not run yet."""
        result = self._known.get(run.run_id)
        return None if result is None else result["numbers"]

    @property
    def cpu_s(self) -> float:
        """The CPU time of all runs together."""
        return sum(result["cpu_s"] for result in self._known.values())


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Whole, or not at all."""
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(file)


# --- figures of other traces ---------------------------------------------------------------------------


LIKE = "EF-F8b-01"  # its policies and its quantity


def further_figures(figures: Sequence[Figure], traces: Path | None, num_gpus: int) -> tuple[Figure, ...]:
    """A figure for each such file, by name. traces: None without a folder. num_gpus: of the pool of each."""
    claims = [claim for figure in figures for claim in figure.claims]
    named = {trace for claim in claims if claim.setup is not None for trace in claim.setup.traces}
    files = csv_files(traces) if traces is not None else []
    like = next(figure for figure in figures if figure.figure_id == LIKE)
    return tuple(_further_figure(like, file.stem, num_gpus) for file in files if file.stem not in named)


def _further_figure(like: Figure, trace: str, num_gpus: int) -> Figure:
    title = f"Deadlines met in trace {trace} on {num_gpus} GPUs"
    figure_id, setup = f"trace-{trace}", Setup(traces=(trace,), num_gpus_by_trace=(num_gpus,))

    def without_value(claim: Claim) -> Claim:
        return replace(claim, figure=figure_id, paper="", title=title, value=None, setup=setup)

    claims = tuple(map(without_value, like.claims))
    return replace(like, figure_id=figure_id, paper="", section="", title=title, claims=claims)

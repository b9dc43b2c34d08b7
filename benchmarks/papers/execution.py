"""Makes the workloads of runs from the given folders, and runs them."""

import hashlib
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from benchmarks.papers.published_jobs import GeneratorSettings, Seeds, published_jobs
from benchmarks.papers.quantities import part_of_linear_scaling, run_numbers, share_with_time_enough
from benchmarks.papers.runs import BOUND, Jobs, Run
from benchmarks.scheduling.workloads import cluster_of
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.report.run_matrix import due_after, mixed
from elasticflow.simulator.trace.simulated_run import SimulatedRun, execute
from elasticflow.simulator.workload.throughput_tables import Throughputs, read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import Workload, bundled_throughputs

Numbers = Mapping[str, float | None]
_REPOSITORY = Path(__file__).parents[2]
_CODE = ("shared", "services", "simulator", "benchmarks/papers")


@dataclass(frozen=True, slots=True)
class Inputs:
    """traces: None without a folder. throughputs: None for the project's own tables."""

    traces: Path | None
    throughputs: Path | None
    generator: GeneratorSettings

    @property
    def tables(self) -> Throughputs:
        return _tables(self.throughputs or bundled_throughputs())

    @property
    def in_words(self) -> str:
        """The inputs as options of the command, with a space behind each."""
        given = {"--traces": self.traces, "--throughputs": self.throughputs}
        return "".join(f"{option} {shlex.quote(str(path))} " for option, path in given.items() if path is not None)

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
        return _digest(files, begin=repr(self.generator) + code_digest())

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

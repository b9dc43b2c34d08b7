"""Claims of papers: what each says, in which setup, and how near a measurement must come; and what they measure.

`claims.toml` beside this file holds them all; its first lines explain the keys. A quantity is a number of a simulated
run, of a workload alone, or of a scaling curve.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from benchmarks.papers.published_jobs import GeneratorSettings
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.trace.plots import efficiency
from elasticflow.simulator.trace.result import HOUR_S, Result
from elasticflow.simulator.trace.simulated_run import completion_numbers
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.workload import Workload

# --- what claims measure -------------------------------------------------------------------------------


FIRST_HOURS = 100.0  # of Figure 10 of ElasticFlow

Numbers = Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """title: for pictures and tables. is_of_run: a policy must run; else of a workload or a curve alone."""

    title: str
    is_of_run: bool = True


QUANTITIES: Mapping[str, Quantity] = {
    "deadline_satisfactory_ratio": Quantity(title="deadline satisfactory ratio"),
    "cluster_efficiency_first_100_h": Quantity(title="mean cluster efficiency in the first 100 hours"),
    "makespan_h": Quantity(title="makespan, hours"),
    "mean_jct_s": Quantity(title="mean completion time, s"),
    "mean_jct_small_s": Quantity(title="mean completion time of small jobs, s"),
    "mean_jct_medium_s": Quantity(title="mean completion time of medium jobs, s"),
    "mean_jct_large_s": Quantity(title="mean completion time of large jobs, s"),
    "mean_jct_best_effort_s": Quantity(title="mean completion time of best-effort jobs, s"),
    "scheduling_interval_s": Quantity(title="mean time between two changes of the plan, s"),
    "share_with_time_enough": Quantity(title="jobs whose deadline is a duration away or more", is_of_run=False),
    "part_of_linear_scaling": Quantity(title="throughput over that of linear scaling", is_of_run=False),
}


def run_numbers(result: Result) -> Numbers:
    """All numbers of one run; those of claims are among them."""
    start_s = result.workload.jobs[0].submitted_at_s
    first_s = np.array([start_s, start_s + FIRST_HOURS * HOUR_S])
    return {
        "deadline_satisfactory_ratio": result.deadline_satisfactory_ratio,
        "met": result.num_met(),
        "admitted": result.num_admitted,
        "late": result.num_late(),
        "unfinished": result.num_unfinished,
        "resizes": result.num_resizes,
        "gpu_hours": result.gpu_hours,
        "cluster_efficiency": result.cluster_efficiency,
        "cluster_efficiency_first_100_h": float(efficiency(result).means(first_s)[0]),
        "makespan_h": result.makespan_s / HOUR_S,
        **completion_numbers(result),
    }


def share_with_time_enough(workload: Workload) -> float | None:
    """The share of the jobs with a hard deadline whose deadline is their duration away or more.

    A scheduler that never widens a job can meet no others.
    """
    dated = [job for job in workload.jobs if job.job_class is JobClass.SLO and job.deadline_s is not None]
    enough = sum(job.deadline_s - job.submitted_at_s >= job.duration_s for job in dated if job.deadline_s is not None)
    return enough / len(dated) if dated else None


def part_of_linear_scaling(tables: Throughputs, model: str, batch_size: int, num_gpus: int) -> float | None:
    """The part of linear scaling; None if the tables lack the model, the batch size or a number of GPUs."""
    if batch_size not in tables.batch_sizes(model):
        return None
    curve = tables.curve(model, batch_size)
    alone = curve.throughput(1)
    return curve.throughput(num_gpus) / (num_gpus * alone) if alone and curve.throughput(num_gpus) else None


# --- claims --------------------------------------------------------------------------------------------


CLAIMS = Path(__file__).with_name("claims.toml")


class ReadFrom(StrEnum):
    """The source from which a value was read."""

    TEXT = "text"
    TABLE = "table"
    FIGURE = "figure"
    SCRIPT = "script"
    COMPUTED = "computed"


class Better(StrEnum):
    """The numbers that are better: higher ones, lower ones or neither."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = ""


class Form(StrEnum):
    """What is compared: one number, or that of one policy with that of another."""

    VALUE = "value"
    QUOTIENT = "quotient"
    REDUCTION = "reduction"


class Average(StrEnum):
    """How several traces become one number."""

    MEAN_OF_RATIOS = "mean of ratios"
    RATIO_OF_MEANS = "ratio of means"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Jobs of the published generator. seed: the published one. deadline_seeds: each gives the jobs other deadlines."""

    num_jobs: int
    mean_gap_s: float
    seed: int
    deadline_seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """traces: names of files without .csv, num_gpus_by_trace beside them; or generated jobs on the one number of GPUs.

    deadline_over_duration: all deadlines are set to that many durations. model, batch_size: of a scaling curve alone.
    """

    traces: tuple[str, ...] = ()
    num_gpus_by_trace: tuple[int, ...] = ()
    generated: Generated | None = None
    average: Average | None = None
    deadline_over_duration: float | None = None
    best_effort_share: float | None = None
    model: str = ""
    batch_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A policy under an overhead model."""

    policy: str
    overhead: str = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One row. value: None where the paper prints no number; published: it as text, where it is no number.

    contestant: None where no policy runs. needs: what is missing to run it. own: about the paper's own system.
    Exactly one tolerance is given if it can run: absolute, or as a part of the value.
    """

    figure: str
    name: str
    paper: str
    section: str
    title: str
    read_from: ReadFrom
    quantity: str
    unit: str
    better: Better
    value: float | None
    published: str
    tolerance: float | None
    relative_tolerance: float | None
    setup: Setup | None
    contestant: Contestant | None
    also: tuple[str, ...]
    own: bool
    form: Form
    against: Contestant | None
    needs: tuple[str, ...]
    stands_in: str

    @property
    def claim_id(self) -> str:
        return f"{self.figure}/{self.name}"

    @property
    def within(self) -> float:
        """The greatest distance from the value that reproduces it."""
        if self.tolerance is not None:
            return self.tolerance
        return abs(self.value or 0.0) * (self.relative_tolerance or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure, table or sentence of a paper, and its claims.

    published_setup: in words, of a figure whose claims have no `Setup` because nothing here can run them.
    """

    figure_id: str
    paper: str
    section: str
    title: str
    published_setup: str
    claims: tuple[Claim, ...]

    def is_named(self, name: str) -> bool:
        """name: EF-F8b-01, F8b-01, F8b or F8, in any case."""
        wanted, own = name.casefold(), self.figure_id.casefold()
        prefix, _, rest = own.partition("-")
        number = rest.split("-")[0]
        return wanted in {own, rest, number, number.rstrip("abcdef"), f"{prefix}-{number}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """All figures, and the published generator of jobs."""

    figures: tuple[Figure, ...]
    generator: GeneratorSettings


def chosen(figures: tuple[Figure, ...], names: tuple[str, ...]) -> tuple[Figure, ...]:
    """The figures of these names; all if there is no name. BadSettings: a name fits no figure."""
    for name in names:
        if not any(figure.is_named(name) for figure in figures):
            known = ", ".join(figure.figure_id for figure in figures)
            raise BadSettings((f"no figure is named {name!r}; there are {known}",))
    return tuple(figure for figure in figures if not names or any(map(figure.is_named, names)))

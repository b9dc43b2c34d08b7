"""Claims of papers: what each says, in which setup, and how near a measurement must come.

`claims.toml` beside this file holds them all; its first lines explain the keys.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.papers.published_jobs import GeneratorSettings
from elasticflow.shared.errors import BadSettings

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

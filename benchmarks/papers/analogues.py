"""Analogues of figures that cannot run here: what each measures, what must hold in it, and the verdicts.

`analogues.toml` beside this file holds them all; its first lines explain the keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from benchmarks.papers.claims import Figure
from benchmarks.papers.execution import alone
from benchmarks.papers.verdicts import Measurement, Verdict, same_side

LABEL = "analogue"


class Relation(StrEnum):
    """What a check demands of its number."""

    AT_LEAST = "at least"
    AT_MOST = "at most"
    SIGN_OF = "the sign of"
    LESS_THAN = "less than"
    ORDER_OF = "the order of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row. bound: of AT_LEAST, AT_MOST and SIGN_OF. published: the two values of ORDER_OF. beside: another number.

    source: the claims that the values come from, as text; empty if there are none.
    """

    name: str
    number: str
    relation: Relation
    bound: float = 0.0
    published: tuple[float, float] = (0.0, 0.0)
    beside: str = ""
    source: str = ""

    @property
    def demand(self) -> str:
        """The demand as the report shows it."""
        values = {
            Relation.LESS_THAN: self.beside,
            Relation.ORDER_OF: f"{self.published[0]:,.4g} to {self.published[1]:,.4g}, against {self.beside}",
        }
        text = f"{self.relation.value} {values.get(self.relation, f'{self.bound:,.4g}')}"
        return f"{text} ({self.source})" if self.source else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Analogue:
    """figures: ids. setup, parts: arguments of the function that `measure` names; those of a part count.

    recorded: a file of benchmarks/results that is read instead; `measure` then names its reader. written_by: the
    command that writes this file.
    """

    analogue_id: str
    figures: tuple[str, ...]
    title: str
    stands_in: str
    measure: str
    setup: Mapping[str, Any]
    parts: tuple[Mapping[str, Any], ...]
    checks: tuple[Check, ...]
    recorded: str = ""
    written_by: str = ""

    @property
    def command(self) -> str:
        live = "" if self.recorded else "--live "
        return f"python -m benchmarks.papers {live}{alone(self.figures[0])}"

    @property
    def missing(self) -> str:
        """What a row says that was not run."""
        return (
            f"not run: {self.recorded} is missing; {self.written_by} writes it" if self.recorded else "not run: --live"
        )

    def check_id(self, check: Check) -> str:
        return f"{self.analogue_id}/{check.name}"

    def settings(self, part: int) -> dict[str, Any]:
        return {**self.setup, **self.parts[part]}

    def run_id(self, part: int) -> str:
        """Names a file."""
        return f"{self.analogue_id}-{part + 1}"


def chosen_analogues(analogues: Sequence[Analogue], figures: Sequence[Figure]) -> tuple[Analogue, ...]:
    """The analogues that stand beside one of these figures."""
    ids = {figure.figure_id for figure in figures}
    return tuple(analogue for analogue in analogues if ids.intersection(analogue.figures))


def combined(numbers_of_parts: Sequence[Mapping[str, float]]) -> dict[str, Measurement]:
    """The mean of each number over the parts that give it, with the least and the greatest."""
    names = dict.fromkeys(name for numbers in numbers_of_parts for name in numbers)
    found = {name: [numbers[name] for numbers in numbers_of_parts if name in numbers] for name in names}
    return {
        name: Measurement(value=fmean(values), least=min(values), most=max(values)) for name, values in found.items()
    }


def check_verdict(check: Check, numbers: Mapping[str, Measurement]) -> Verdict:
    """Holds, differs, or not run: an analogue reproduces nothing."""
    found, other = numbers.get(check.number), numbers.get(check.beside)
    if found is None or (check.beside and other is None):
        return Verdict.NOT_RUN
    beside = 0.0 if other is None else other.value
    match check.relation:
        case Relation.AT_LEAST:
            holds = found.value >= check.bound
        case Relation.AT_MOST:
            holds = found.value <= check.bound
        case Relation.SIGN_OF:
            holds = same_side(check.bound, found.value)
        case Relation.LESS_THAN:
            holds = found.value < beside
        case Relation.ORDER_OF:
            holds = same_side(check.published[0] - check.published[1], found.value - beside)
    return Verdict.HOLDS if holds else Verdict.DIFFERS

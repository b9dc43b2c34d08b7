"""Analogues of figures that cannot run here: what each measures, what must hold in it, and the verdicts.

`analogues.toml` beside this file holds them all; its first lines explain the keys. An error in it names the analogue,
the check and the key. Some numbers are read from the JSON files that other benchmarks wrote: a reader gets the part of
the file that has its name, and returns numbers by name.
"""

import inspect
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.padding.preempted import OVERHEAD_S, TASK_S
from benchmarks.papers.claims import Claim, Figure
from benchmarks.papers.claims_file import Table, check_keys, check_once, number, tables, text, texts
from benchmarks.papers.execution import alone
from benchmarks.papers.verdicts import Measurement, Verdict, same_side
from elasticflow.shared.errors import BadSettings

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


# --- numbers that other benchmarks have recorded -------------------------------------------------------


RESULTS = Path(__file__).parents[1] / "results"
_GROUPS_BY_MEAN_S = {"2.5": (0, 3), "5": (1, 4), "10": (2, 5)}  # of windows with this mean length that was asked for
_LIKE_H3 = (2, 8)  # fast and slow slots, as VirtualFlow's H3 has V100 and P100


def mixed_slots(part: Mapping[str, Any]) -> Mapping[str, float]:
    """Saved by uneven splits, by the ratio of speeds; the mean error of predictions; and what slots like those of H3
    gain over one type alone, where they were measured.
    """
    mixes = part["mixes"]
    saved = {
        f"saved-{ratio}-to-1": fmean(1.0 - mix["measured_s"] / mix["even_s"] for mix in mixes if mix["ratio"] == ratio)
        for ratio in sorted({mix["ratio"] for mix in mixes})
    }
    error = fmean(abs(mix["predicted_s"] / mix["measured_s"] - 1.0) for mix in mixes)
    like_h3 = [total for total in part["sums"] if (total["num_fast"], total["num_slow"]) == _LIKE_H3]
    gained = {
        f"over-{kind}": max(total["mixed_per_s"] / total[f"{kind}_per_s"] - 1.0 for total in like_h3)
        for kind in (("fast", "slow") if like_h3 else ())
    }
    return {**saved, "prediction-error": error, **gained}


def completion_times(part: Mapping[str, Any]) -> Mapping[str, float]:
    """The part of the mean completion time that mixed types save elastic jobs, by jobs an hour: mean over the seeds."""
    by_rate = part["completion"]["elastic"]
    found = dict[str, float]()
    for mixed, suffix in (("mixed", ""), ("mixed at 0.9", "-at-0.9")):
        saved = {rate: _saved(runs["one type"], runs[mixed]) for rate, runs in by_rate.items()}
        found |= {f"saved-at-{rate}{suffix}": number for rate, number in saved.items()}
        found[f"saved-at-best{suffix}"] = max(saved.values())
    return found


def _saved(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]) -> float:
    pairs = zip(before, after, strict=True)
    return fmean(1.0 - other["mean_completion_s"] / one["mean_completion_s"] for one, other in pairs)


def runners(part: Mapping[str, Any]) -> Mapping[str, float]:
    """Medians in seconds: join: from the call to the loaded function; leave: until its process group is reaped."""
    join_s, leave_s = part["start"]["start_ms"]["p50"] / 1e3, part["preemption"]["preempt_ms"]["p50"] / 1e3
    return {"join": join_s, "leave": leave_s, "both": join_s + leave_s}


def useful_shares(part: Mapping[str, Any]) -> Mapping[str, float]:
    """The GPU time paid for a second of tasks, over that of windows that never end; by windows of nearly one length."""
    limit = TASK_S / (TASK_S + OVERHEAD_S)
    groups = part["groups"]
    return {
        f"cost-{length}-s": fmean(limit / groups[number]["useful_share"] for number in numbers)
        for length, numbers in _GROUPS_BY_MEAN_S.items()
    }


def whole_loads(part: Mapping[str, Any]) -> Mapping[str, float]:
    """Seconds of a slot besides the work of each task."""
    return {"besides-a-task": part["task_s"] / part["useful_share"] - part["task_s"]}


def fidelity(part: Mapping[str, Any]) -> Mapping[str, float]:
    """Mean errors of completion times over the live runs that are not void, and of live runs against each other."""
    runs = [run for run in part["runs"] if not run["void"]]
    if not runs:
        return {}
    return {
        "error-own-decisions": fmean(run["simulated"]["mean"] for run in runs),
        "error-recorded-placements": fmean(run["placements"]["mean"] for run in runs),
        "live-against-live": fmean(pair["mean"] for pair in part["live_against_live"]),
    }


READERS: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, float]]] = {
    "mixed_slots": mixed_slots,
    "completion_times": completion_times,
    "runners": runners,
    "useful_shares": useful_shares,
    "whole_loads": whole_loads,
    "fidelity": fidelity,
}


def recorded_result(analogue: Analogue, folder: Path) -> Mapping[str, Any] | None:
    """The result as of a measured part; None if the file, or the part in it, is missing.

    Raises BadSettings if it is unusable.
    """
    file = folder / analogue.recorded
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if analogue.measure not in content:
            return None
        numbers = dict(READERS[analogue.measure](content[analogue.measure]))
    except (ValueError, LookupError, TypeError, ZeroDivisionError) as error:
        raise BadSettings((f"{file}: not as {analogue.written_by} writes it ({error!r})",)) from error
    return {"numbers": numbers, "load_average": content.get("load_average", [])}


# --- the file ------------------------------------------------------------------------------------------


ANALOGUES = Path(__file__).with_name("analogues.toml")
_COMMON_KEYS = {"id", "figures", "title", "stands_in", "measure", "checks"}
_MEASURED_KEYS = {"setup", "parts"}
_RECORDED_KEYS = {"recorded", "written_by"}
_RELATIONS = {
    "at_least": Relation.AT_LEAST,
    "at_most": Relation.AT_MOST,
    "sign_of": Relation.SIGN_OF,
    "less_than": Relation.LESS_THAN,
    "order_of": Relation.ORDER_OF,
}
CHECK_KEYS = {"id", "number", "beside", *_RELATIONS}

Measures = Mapping[str, Callable[..., Mapping[str, float]]]


def read_analogues(
    figures: tuple[Figure, ...], measures: Measures, file: Path = ANALOGUES, *, readers: Measures = READERS
) -> tuple[Analogue, ...]:
    """The analogues in the order of the file. figures: with the claims that checks name. measures: of live runs;
    readers: of results of other benchmarks. BadSettings names what is wrong.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadSettings((f"{file}: {error}",)) from error
    check_keys(content, {"analogue"}, file.name)
    claims = {claim.claim_id: claim for figure in figures for claim in figure.claims}
    known = {figure.figure_id for figure in figures}
    found = tuple(
        _analogue(table, claims, known, readers if "recorded" in table else measures)
        for table in tables(content.get("analogue"), "analogue")
    )
    check_once((analogue.analogue_id for analogue in found), "analogue")
    return found


def _analogue(table: Table, claims: Mapping[str, Claim], figures: set[str], measures: Measures) -> Analogue:
    where = f"analogue {table.get('id')!r}"
    is_recorded = "recorded" in table
    check_keys(table, _COMMON_KEYS | (_RECORDED_KEYS if is_recorded else _MEASURED_KEYS), where)
    beside = texts(table.get("figures"), f"{where}: figures")
    if unknown := [name for name in beside if name not in figures] or ([] if beside else ["none"]):
        raise BadSettings((f"{where}: there is no figure {unknown[0]!r}",))
    checks = tuple(_check(check, claims, where) for check in tables(table.get("checks"), f"{where}: checks"))
    check_once((f"{where}/{check.name}" for check in checks), "check")
    analogue = Analogue(
        analogue_id=text(table, "id", where),
        figures=beside,
        title=text(table, "title", where),
        stands_in=text(table, "stands_in", where),
        measure=text(table, "measure", where),
        setup=table.get("setup", {}),
        parts=tuple(tables(table.get("parts", [{}]), f"{where}: parts")),
        checks=checks,
        recorded=text(table, "recorded", where) if is_recorded else "",
        written_by=text(table, "written_by", where) if is_recorded else "",
    )
    if not checks or not analogue.parts:
        raise BadSettings((f"{where}: has no check or no part",))
    if analogue.measure not in measures:
        raise BadSettings((f"{where}: measure {analogue.measure!r} must be one of {', '.join(measures)}",))
    if is_recorded:
        return analogue
    arguments = set(inspect.signature(measures[analogue.measure]).parameters)
    for part in range(len(analogue.parts)):
        if (given := set(analogue.settings(part))) != arguments:
            raise BadSettings((f"{where}: setup and part give {sorted(given)}, not {sorted(arguments)}",))
    return analogue


def _check(table: Table, claims: Mapping[str, Claim], analogue: str) -> Check:
    where = f"{analogue}, check {table.get('id')!r}"
    check_keys(table, CHECK_KEYS, where)
    given = [key for key in _RELATIONS if key in table]
    if len(given) != 1 or (("beside" in table) != (given == ["order_of"])):
        raise BadSettings((f"{where}: needs one of {', '.join(_RELATIONS)}, and beside for order_of alone",))
    (key,) = given
    said: Any = table[key]
    more: dict[str, Any] = {}
    if key == "order_of":
        first, second = (_value(claims, name, where) for name in texts(said, f"{where}: order_of"))
        more = {"published": (first, second), "beside": text(table, "beside", where), "source": " and ".join(said)}
    elif key == "less_than":
        more = {"beside": text(table, key, where)}
    elif isinstance(said, str):
        more = {"bound": _value(claims, said, where), "source": said}
    else:
        more = {"bound": number(said, f"{where}: {key}")}
    return Check(name=text(table, "id", where), number=text(table, "number", where), relation=_RELATIONS[key], **more)


def _value(claims: Mapping[str, Claim], claim_id: str, where: str) -> float:
    claim = claims.get(claim_id)
    if claim is None or claim.value is None:
        raise BadSettings((f"{where}: there is no claim {claim_id!r} with a value",))
    return claim.value

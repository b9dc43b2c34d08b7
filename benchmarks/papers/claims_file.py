"""Reads claims.toml; an error names the figure, the claim and the key. Typed values of any TOML table.

Other benchmarks print the values of claims beside their own.
"""

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from benchmarks.papers.claims import (
    CLAIMS,
    QUANTITIES,
    Average,
    Better,
    Claim,
    Claims,
    Contestant,
    Figure,
    Form,
    Generated,
    ReadFrom,
    Setup,
)
from benchmarks.papers.published_jobs import GeneratorSettings
from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.baselines.policy_catalogue import POLICY_NAMES

# --- typed values --------------------------------------------------------------------------------------


Table = dict[str, Any]
_Choice = TypeVar("_Choice", bound=StrEnum)


def check_keys(table: Table, known: set[str], where: str) -> None:
    """BadSettings for a key that is not known."""
    if unknown := sorted(table.keys() - known):
        raise BadSettings((f"{where}: unknown key {', '.join(unknown)}; known are {', '.join(sorted(known))}",))


def check_once(names: Iterable[str], what: str) -> None:
    """BadSettings for a name that is there twice."""
    if doubles := [name for name, count in Counter(names).items() if count > 1]:
        raise BadSettings((f"{what} {', '.join(doubles)} is there twice",))


def tables(value: object, where: str) -> list[Table]:
    """A list of tables; none if there is no value."""
    items = cast(list[object], value) if isinstance(value, list) else []
    if not all(isinstance(item, dict) for item in items) or (value is not None and not isinstance(value, list)):
        raise BadSettings((f"{where}: must be a list of tables",))
    return cast(list[Table], items)


def text(table: Table, key: str, where: str, *, may_be_empty: bool = False) -> str:
    """A text under this key."""
    value = table.get(key)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise BadSettings((f"{where}: {key} must be a text, not {value!r}",))
    return value


def texts(value: object, where: str) -> tuple[str, ...]:
    """A list of texts."""
    items = cast(list[object], value) if isinstance(value, list) else [None]
    if not all(isinstance(item, str) and item for item in items):
        raise BadSettings((f"{where}: must be a list of texts, not {value!r}",))
    return tuple(cast(list[str], items))


def number(value: object, where: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadSettings((f"{where}: must be a number, not {value!r}",))
    return float(value)


def positive(table: Table, key: str, where: str) -> float | None:
    """A number above 0; None without the key."""
    if key not in table:
        return None
    value = number(table[key], f"{where}: {key}")
    if value <= 0:
        raise BadSettings((f"{where}: {key} must be more than 0, not {value:g}",))
    return value


def whole(value: object, where: str) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadSettings((f"{where}: must be a whole number of at least 1, not {value!r}",))
    return value


def choice(kind: type[_Choice], value: object, where: str) -> _Choice:
    """A member of an enumeration."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(choice.value) for choice in kind)
        raise BadSettings((f"{where}: must be one of {known}, not {value!r}",)) from None


def number_range(value: object, where: str) -> tuple[float, float]:
    """Two numbers, the least first."""
    items = cast(list[object], value) if isinstance(value, list) else []
    if len(items) != 2:
        raise BadSettings((f"{where}: must be a least and a greatest number, not {value!r}",))
    low, high = (number(item, where) for item in items)
    if low > high:
        raise BadSettings((f"{where}: {low:g} is more than {high:g}",))
    return low, high


# --- claims --------------------------------------------------------------------------------------------


SHARED_KEYS = {
    "section",
    "title",
    "read_from",
    "quantity",
    "unit",
    "better",
    "tolerance",
    "relative_tolerance",
    "setup",
    "needs",
    "stands_in",
}
FIGURE_KEYS = SHARED_KEYS | {"id", "paper", "published_setup", "claims"}
CLAIM_KEYS = SHARED_KEYS | {
    "id",
    "value",
    "published",
    "policy",
    "overhead",
    "also",
    "own",
    "form",
    "against",
    "against_overhead",
}
SETUP_KEYS = {
    "traces",
    "num_gpus",
    "generated",
    "average",
    "deadline_over_duration",
    "best_effort_share",
    "model",
    "batch_size",
}
GENERATOR_KEYS = {"short_share", "short_exponents", "long_exponents", "num_gpus_weights", "pairs", "tightness"}
GENERATED_KEYS = {"num_jobs", "mean_gap_s", "seed", "deadline_seeds"}


def read_claims(file: Path = CLAIMS) -> Claims:
    """All figures in the order of the file, and the generator; BadSettings names what is wrong."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # a file that cannot be read, or is not TOML
        raise BadSettings((f"{file}: {error}",)) from error
    check_keys(content, {"figure", "generator"}, str(file))
    found = tables(content.get("figure"), f"{file}: figure")
    if not found:
        raise BadSettings((f"{file}: has no [[figure]]",))
    figures = tuple(_figure(table, position) for position, table in enumerate(found, 1))
    check_once((figure.figure_id for figure in figures), "figure")
    return Claims(figures=figures, generator=_generator(content.get("generator")))


def _generator(table: object) -> GeneratorSettings:
    where = "generator"
    if not isinstance(table, dict):
        raise BadSettings((f"{where}: must be a table",))
    known = cast(Table, table)
    check_keys(known, GENERATOR_KEYS, where)
    if missing := sorted(GENERATOR_KEYS - known.keys()):
        raise BadSettings((f"{where}: has no {', '.join(missing)}",))
    return GeneratorSettings(
        short_share=number(known["short_share"], f"{where}: short_share"),
        short_exponents=number_range(known["short_exponents"], f"{where}: short_exponents"),
        long_exponents=number_range(known["long_exponents"], f"{where}: long_exponents"),
        num_gpus_weights={
            whole(int(count), f"{where}: num_gpus_weights"): number(weight, f"{where}: num_gpus_weights")
            for count, weight in known["num_gpus_weights"].items()
        },
        pairs=tuple((str(model), whole(batch_size, f"{where}: pairs")) for model, batch_size in known["pairs"]),
        tightness=number_range(known["tightness"], f"{where}: tightness"),
    )


def _figure(table: Table, position: int) -> Figure:
    where = f"figure {table.get('id', position)!r}"
    check_keys(table, FIGURE_KEYS, where)
    claims = tuple(_claim(table, own) for own in tables(table.get("claims"), f"{where}: claims"))
    if not claims:
        raise BadSettings((f"{where}: has no claim",))
    check_once((claim.claim_id for claim in claims), "claim")
    return Figure(
        figure_id=text(table, "id", where),
        paper=text(table, "paper", where),
        section=text(table, "section", where),
        title=text(table, "title", where),
        published_setup=text(table, "published_setup", where) if "published_setup" in table else "",
        claims=claims,
    )


def _claim(figure: Table, own: Table) -> Claim:
    where = f"claim '{figure.get('id')}/{own.get('id', '?')}'"
    check_keys(own, CLAIM_KEYS, where)
    table = {**figure, **own, "setup": {**figure.get("setup", {}), **own.get("setup", {})}}
    if {"tolerance", "relative_tolerance"} <= table.keys():  # the claim's own one counts
        table = {name: value for name, value in table.items() if not name.endswith("tolerance") or name in own}
    needs = texts(table.get("needs", []), f"{where}: needs")
    quantity = str(table.get("quantity", ""))
    claim = Claim(
        figure=text(figure, "id", where),
        name=text(own, "id", where),
        paper=text(table, "paper", where),
        section=text(table, "section", where),
        title=text(table, "title", where),
        read_from=choice(ReadFrom, table.get("read_from"), f"{where}: read_from"),
        quantity=quantity,
        unit=text(table, "unit", where, may_be_empty=True),
        better=choice(Better, table.get("better", ""), f"{where}: better"),
        value=number(own["value"], f"{where}: value") if "value" in own else None,
        published=str(own.get("published", "")),
        tolerance=positive(table, "tolerance", where),
        relative_tolerance=positive(table, "relative_tolerance", where),
        setup=_setup(table["setup"], where) if table["setup"] else None,
        contestant=_contestant(own, "policy", "overhead", where),
        also=_policies(own.get("also", []), where),
        own=own.get("own", False) is True,
        form=choice(Form, own.get("form", "value"), f"{where}: form"),
        against=_contestant(own, "against", "against_overhead", where),
        needs=needs,
        stands_in=str(table.get("stands_in", "")),
    )
    if not needs and (problems := _why_it_cannot_run(claim)):
        raise BadSettings(tuple(f"{where}: {problem}" for problem in problems))
    return claim


def _why_it_cannot_run(claim: Claim) -> list[str]:
    """The problems of a claim that has no list of what is missing, and so must be complete."""
    known = QUANTITIES.get(claim.quantity)
    has_one_tolerance = (claim.tolerance is None) != (claim.relative_tolerance is None)
    is_alone = claim.form is Form.VALUE
    rules = {
        "needs a value, or `needs` that says why there is none": claim.value is not None,
        f"quantity {claim.quantity!r} must be one of {', '.join(QUANTITIES)}": known is not None,
        "needs a setup": claim.setup is not None,
        "needs one of tolerance and relative_tolerance": has_one_tolerance,
        "needs a policy": claim.contestant is not None or known is None or not known.is_of_run,
        f"form {claim.form.value!r} and against do not fit": is_alone == (claim.against is None),
    }
    return [problem for problem, holds in rules.items() if not holds]


def _setup(table: Table, where: str) -> Setup:
    where = f"{where}: setup"
    check_keys(table, SETUP_KEYS, where)
    traces = texts(table.get("traces", []), f"{where}: traces")
    given = table.get("num_gpus", [])
    counts = tuple(whole(count, f"{where}: num_gpus") for count in (given if isinstance(given, list) else [given]))
    if traces and counts and len(counts) not in {1, len(traces)}:
        raise BadSettings((f"{where}: num_gpus must be one number, or one for each trace",))
    if traces and "generated" in table:
        raise BadSettings((f"{where}: has both traces and generated jobs",))
    if (len(traces) > 1) != ("average" in table):
        raise BadSettings((f"{where}: several traces need an average, and only they",))
    return Setup(
        traces=traces,
        num_gpus_by_trace=counts * len(traces) if traces and len(counts) == 1 else counts,
        generated=_generated(table["generated"], where) if "generated" in table else None,
        average=choice(Average, table["average"], f"{where}: average") if "average" in table else None,
        deadline_over_duration=positive(table, "deadline_over_duration", where),
        best_effort_share=positive(table, "best_effort_share", where),
        model=str(table.get("model", "")),
        batch_size=whole(table.get("batch_size", 1), f"{where}: batch_size"),
    )


def _generated(table: Table, where: str) -> Generated:
    where = f"{where}: generated"
    check_keys(table, GENERATED_KEYS, where)
    missing = sorted(GENERATED_KEYS - table.keys())
    if missing:
        raise BadSettings((f"{where}: has no {', '.join(missing)}",))
    seeds = tuple(whole(seed, f"{where}: deadline_seeds") for seed in table["deadline_seeds"])
    if not seeds:
        raise BadSettings((f"{where}: has no seed of deadlines",))
    return Generated(
        num_jobs=whole(table["num_jobs"], f"{where}: num_jobs"),
        mean_gap_s=positive(table, "mean_gap_s", where) or 0.0,
        seed=int(number(table["seed"], f"{where}: seed")),
        deadline_seeds=seeds,
    )


def _contestant(table: Table, policy: str, overhead: str, where: str) -> Contestant | None:
    if policy not in table:
        if overhead in table:
            raise BadSettings((f"{where}: {overhead} without {policy}",))
        return None
    (name,) = _policies([table[policy]], where)
    return Contestant(policy=name, overhead=str(table.get(overhead, "reference")))


def _policies(names: object, where: str) -> tuple[str, ...]:
    for name in (found := texts(names, f"{where}: policies")):
        if name not in POLICY_NAMES:
            raise BadSettings((f"{where}: policy {name!r} must be one of {', '.join(POLICY_NAMES)}",))
    return found


# --- values for other benchmarks -----------------------------------------------------------------------


def published_value(claim_id: str) -> float:
    """claim_id: as "VF-F14/error". KeyError if there is no claim of that id with a value."""
    return _values()[claim_id]


@cache
def _values() -> Mapping[str, float]:
    claims = (claim for figure in read_claims().figures for claim in figure.claims)
    return {claim.claim_id: claim.value for claim in claims if claim.value is not None}

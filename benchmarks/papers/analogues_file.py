"""Reads analogues.toml; an error names the analogue, the check and the key."""

import inspect
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.papers.analogues import Analogue, Check, Relation
from benchmarks.papers.claims import Claim, Figure
from benchmarks.papers.recorded import READERS
from benchmarks.papers.toml_values import Table, check_keys, check_once, number, tables, text, texts
from elasticflow.shared.errors import BadSettings

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

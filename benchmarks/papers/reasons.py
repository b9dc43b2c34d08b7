"""Why measurements differ from the papers: written by hand, with the check behind it (reasons.toml)."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.papers.analogues import Analogue
from benchmarks.papers.claims import Figure
from benchmarks.papers.toml_values import check_keys, tables, text, texts
from elasticflow.shared.errors import BadSettings

REASONS = Path(__file__).with_name("reasons.toml")
NONE_KNOWN = "No reason is known."


def read_reasons(figures: Sequence[Figure], analogues: Sequence[Analogue], file: Path = REASONS) -> Mapping[str, str]:
    """Reasons by the id of a figure, a claim, or a check of an analogue; BadSettings for an id that does not exist."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadSettings((f"{file}: {error}",)) from error
    ids = {figure.figure_id for figure in figures} | {claim.claim_id for figure in figures for claim in figure.claims}
    ids |= {analogue.check_id(check) for analogue in analogues for check in analogue.checks}
    check_keys(content, {"reason"}, file.name)
    found = dict[str, str]()
    for table in tables(content.get("reason"), "reason"):
        check_keys(table, {"rows", "text", "checked"}, "reason")
        rows = texts(table.get("rows"), "reason: rows")
        where = f"reason of {rows[0] if rows else 'no row'}"
        said = f"{text(table, 'text', where)} Checked: {text(table, 'checked', where)}"
        for row in rows:
            if row not in ids:
                raise BadSettings((f"{file.name}: there is no figure, claim or check {row!r}",))
            if row in found:
                raise BadSettings((f"{file.name}: {row} has two reasons",))
            found[row] = said
    return found

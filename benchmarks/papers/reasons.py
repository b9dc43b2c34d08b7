"""Why measurements differ from the papers: written by hand after a check, by figure or claim (reasons.toml)."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from benchmarks.papers.claims import Figure
from benchmarks.papers.toml_values import check_keys, text
from elasticflow.shared.errors import BadSettings

REASONS = Path(__file__).with_name("reasons.toml")


def read_reasons(figures: tuple[Figure, ...], file: Path = REASONS) -> Mapping[str, str]:
    """By the id of a figure or a claim; BadSettings for an id that does not exist."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadSettings((f"{file}: {error}",)) from error
    ids = {figure.figure_id for figure in figures} | {claim.claim_id for figure in figures for claim in figure.claims}
    check_keys(content, {"reason"}, file.name)
    found = dict[str, str]()
    for table in cast(list[dict[str, object]], content.get("reason", [])):
        check_keys(table, {"claims", "text"}, "reason")
        for claim_id in cast(list[str], table.get("claims", [])):
            if claim_id not in ids:
                raise BadSettings((f"{file.name}: there is no figure or claim {claim_id!r}",))
            if claim_id in found:
                raise BadSettings((f"{file.name}: {claim_id} has two reasons",))
            found[claim_id] = text(table, "text", f"reason of {claim_id}")
    return found

"""Cells and tables of the report, as Markdown and as HTML."""

import html
from collections.abc import Iterable, Sequence

from benchmarks.papers.verdicts import Measurement


def number_text(found: Measurement | None) -> str:
    """The number, with the least and the greatest where they differ; "" for none."""
    if found is None:
        return ""
    spread = f" ({found.least:,.3g} to {found.most:,.3g})" if found.most > found.least else ""
    return f"{found.value:,.3g}{spread}"


def markdown_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Its lines."""
    return [_line(columns), _line(("---",) * len(columns)), *map(_line, rows)]


def html_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    heads = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>\n" for cells in rows)
    return f"<table>\n<tr>{heads}</tr>\n{body}</table>"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"

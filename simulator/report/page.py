"""The report: sections as one HTML page and the numbers of all runs as CSV, or both as one object."""

import base64
import csv
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from elasticflow.simulator.report.figures import Cell, Section

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
img { max-width: 100%; } p { color: #555; }
table { border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto; }
th, td { padding: 0.15rem 0.7rem; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
"""


def write_page(file: Path, title: str, preface: str, sections: Iterable[Section]) -> None:
    """HTML; title and preface: plain text."""
    body = "\n".join(_section(section) for section in sections)
    file.write_text(
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style></head>\n<body>\n<h1>{html.escape(title)}</h1>\n<p>{html.escape(preface)}</p>\n"
        f"{body}\n</body>\n</html>\n",
        encoding="utf-8",
    )


def as_object(
    sections: Iterable[Section], runs: Sequence[Mapping[str, object]], overhead: str, *, partial: bool
) -> Mapping[str, object]:
    """The page for JSON, without pictures and with exact numbers."""
    figures = [
        {"title": shown.title, "caption": shown.caption, "columns": shown.columns, "rows": shown.rows}
        for shown in sections
    ]
    return {"overhead": overhead, "partial": partial, "figures": figures, "runs": runs}


def write_numbers(file: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """A row for each run, all with the same columns."""
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _section(section: Section) -> str:
    picture = base64.b64encode(section.png).decode("ascii")
    title = html.escape(section.title)
    return (
        f'<h2>{title}</h2>\n<img alt="{title}" src="data:image/png;base64,{picture}">\n'
        f"<p>{html.escape(section.caption)}</p>\n<table>\n{_row('th', section.columns)}\n"
        + "\n".join(_row("td", row) for row in section.rows)
        + "\n</table>"
    )


def _row(tag: str, cells: Iterable[Cell]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(_shown(cell))}</{tag}>" for cell in cells) + "</tr>"


def _shown(cell: Cell) -> str:
    match cell:
        case None:
            return "-"
        case float():
            return f"{cell:.3f}" if abs(cell) < 10 else f"{cell:,.1f}"
        case int():
            return f"{cell:,}"
        case str():
            return cell

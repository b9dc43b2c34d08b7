"""The report as Markdown, JSON and one HTML page: what is not reached first, then all rows."""

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.papers.analogue_rows import AnalogueSection, analogue_counts, html_sections, markdown_lines, not_reached
from benchmarks.papers.claims import Claim, Form
from benchmarks.papers.execution import LIKE
from benchmarks.papers.pictures import html_table, markdown_table, number_text, picture
from benchmarks.papers.rows import NONE_KNOWN, Row, Section, counts, setup_text
from benchmarks.papers.verdicts import Verdict
from elasticflow.simulator.report.compare_command import STYLE

COLUMNS = ("claim", "published", "policy", "here", "as described", "ours", "at most", "verdict", "on ours")
TITLE = "Four papers against this project"
_SVG = "svg { max-width: 100%; height: auto; } td:nth-child(n) { vertical-align: top; } .note { font-size: 0.85rem; }"


def write_report(
    folder: Path, shown: tuple[Section, ...], analogues: Sequence[AnalogueSection], about: Mapping[str, object]
) -> Path:
    """Write report.html, report.md and report.json; returns the page. about: the machine, the inputs, the time."""
    found = {"counts": counts(shown), "analogue_counts": analogue_counts(analogues), **about}
    rows = [row.as_object() for section in shown for row in section.rows]
    live = [section.as_object() for section in analogues]
    (folder / "report.json").write_text(
        json.dumps({**found, "rows": rows, "analogues": live}, indent=1) + "\n", encoding="utf-8"
    )
    (folder / "report.md").write_text(markdown(shown, analogues, about), encoding="utf-8")
    page = folder / "report.html"
    page.write_text(_page(shown, analogues, about), encoding="utf-8")
    return page


def markdown(shown: tuple[Section, ...], analogues: Sequence[AnalogueSection], about: Mapping[str, object]) -> str:
    """All rows, by figure."""
    lines = [f"# {TITLE}", "", _summary(shown, analogues, about), "", "## Not reached", ""]
    lines += [f"- {text}" for text in (*_not_reached(shown), *not_reached(analogues))] or ["- nothing that was run"]
    for section in shown:
        lines += ["", f"## {section.figure.figure_id}: {section.figure.title}", "", _about(section), ""]
        lines += markdown_table(COLUMNS, map(_cells, section.rows))
        lines += [""] + [f"- {note}" for note in _notes(section)]
    lines += markdown_lines(analogues)
    return "\n".join(lines).rstrip() + "\n"


def _page(shown: tuple[Section, ...], analogues: Sequence[AnalogueSection], about: Mapping[str, object]) -> str:
    title, summary = html.escape(TITLE), html.escape(_summary(shown, analogues, about))
    missed = "".join(f"<li>{html.escape(text)}</li>" for text in (*_not_reached(shown), *not_reached(analogues)))
    body = "\n".join((*map(_section, shown), html_sections(analogues)))
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{STYLE}{_SVG}</style></head>\n<body>\n<h1>{title}</h1>\n<p>{summary}</p>\n"
        f"<h2>Not reached</h2>\n<ul>{missed}</ul>\n{body}\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    name = html.escape(section.figure.figure_id)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in _notes(section))
    return (
        f'<h2 id="{name}">{name}: {html.escape(section.figure.title)}</h2>\n'
        f"<p>{html.escape(_about(section))}</p>\n{picture(section)}\n"
        f'{html_table(COLUMNS, map(_cells, section.rows))}\n<ul class="note">{notes}</ul>'
    )


def _summary(shown: tuple[Section, ...], analogues: Sequence[AnalogueSection], about: Mapping[str, object]) -> str:
    total = sum(len(section.rows) for section in shown)
    found = ", ".join(f"{count} {name}" for name, count in counts(shown).items())
    checks = ", ".join(f"{count} {name}" for name, count in analogue_counts(analogues).items())
    return f"{total} rows: {found}. Checks of analogues: {checks}. " + " ".join(
        f"{name}: {value}." for name, value in about.items()
    )


def _not_reached(shown: tuple[Section, ...]) -> Iterator[str]:
    """Rows that were run and differ, figure by figure."""
    for section in shown:
        differing = [row for row in section.rows if row.verdict is Verdict.DIFFERS]
        if differing:
            rows = ", ".join(
                f"{row.claim.name} {number_text(row.measurement)} (published {_published(row.claim)})"
                for row in differing
            )
            reasons = " ".join(dict.fromkeys(row.reason or NONE_KNOWN for row in differing))
            yield f"{section.figure.figure_id}, {section.figure.title}: {rows}. {reasons}"


def _about(section: Section) -> str:
    figure, first = section.figure, section.rows[0]
    setups = dict.fromkeys(setup_text(row.claim.setup) for row in section.rows if row.claim.setup is not None)
    source = f"{figure.paper}, section {figure.section}; read from: {first.claim.read_from.value}. "
    said = source if figure.section else f"No paper has this trace: rows as in {LIKE}. "
    if figure.published_setup:
        said += f"Published setup: {figure.published_setup}. "
    return f"{said}{'; '.join(setups)}{'. ' if setups else ''}Alone: {first.command}"


def _notes(section: Section) -> Iterable[str]:
    """Reasons of differences, stand-ins and what is missing, each once."""
    notes = [row.reason for row in section.rows if row.reason and row.verdict is not Verdict.REPRODUCED]
    notes += [_stand_in(row.claim) for row in section.rows if row.claim.stands_in]
    notes += [f"missing: {text}" for row in section.rows for text in row.missing]
    return dict.fromkeys(notes)


def _stand_in(claim: Claim) -> str:
    return claim.stands_in if claim.value is None else f"at most the direction can hold: {claim.stands_in}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.claim.name,
        f"{_published(row.claim)} {row.claim.unit if row.claim.value is not None else ''}".strip(),
        _policy(row.claim),
        number_text(row.measurement),
        ", ".join(f"{policy} {number_text(value)}" for policy, value in row.described.items()),
        number_text(row.ours),
        number_text(row.bound),
        row.verdict.value,
        row.verdict_on_ours.value if row.verdict_on_ours else "",
    )


def _policy(claim: Claim) -> str:
    if claim.contestant is None:
        return ""
    if claim.against is None:
        return claim.contestant.policy
    between = "over" if claim.form is Form.QUOTIENT else "instead of"
    return f"{claim.contestant.policy} {between} {claim.against.policy}"


def _published(claim: Claim) -> str:
    return claim.published or ("no number" if claim.value is None else f"{claim.value:,.4g}")

"""The report as Markdown, JSON and one HTML page: what is not reached first, then all rows.

Pictures are inline SVG, the same bytes for the same numbers. Analogues have sections of their own.
"""

import html
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

from benchmarks.papers.analogues import LABEL, Analogue, Check, Relation, check_verdict, combined
from benchmarks.papers.claims import QUANTITIES, Claim, Form
from benchmarks.papers.execution import LIKE
from benchmarks.papers.rows import NONE_KNOWN, Row, Section, counts, setup_text
from benchmarks.papers.verdicts import Measurement, Verdict
from elasticflow.simulator.report.compare_command import STYLE

# --- tables and pictures -------------------------------------------------------------------------------


# --- cells and tables ----------------------------------------------------------------------------------


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


# --- pictures ------------------------------------------------------------------------------------------


def svg(name: str, width: float, height: float, draw: Callable[[Canvas], None]) -> str:
    """What `draw` draws. name: of the picture; sizes in inches."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        canvas = Canvas(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(canvas)
        draw(canvas)
        written = io.StringIO()
        canvas.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


# --- of a figure ---------------------------------------------------------------------------------------


COLOURS = {"published": "#8c8c8c", "the paper's algorithm, here": "#1f77b4", "ours": "#d62728"}
WIDTH = 0.27


def picture(section: Section) -> str:
    """Empty where nothing was measured."""
    rows = [row for row in section.rows if row.measurement is not None]
    if not rows:
        return ""

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        for position, (series, colour) in enumerate(COLOURS.items()):
            _bars(axes, rows, series, position, colour)
        axes.set_xticks(range(len(rows)), [row.claim.name for row in rows], rotation=20, fontsize=8)
        axes.set_ylabel(_unit(rows[0]), fontsize=8)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))

    return svg(section.figure.figure_id, 1.6 + 1.1 * len(rows), 2.6, draw)


def _bars(axes: object, rows: list[Row], series: str, position: int, colour: str) -> None:
    """Whiskers are the least and the greatest of several seeds or traces."""
    shown = [(at, row, value) for at, row in enumerate(rows) if (value := _drawn_value(row, series)) is not None]
    if not shown:
        return
    at_x = [at + (position - 1) * WIDTH for at, _, _ in shown]
    heights = [value for _, _, value in shown]
    axes.bar(at_x, heights, WIDTH, label=series, color=colour)  # pyright: ignore[reportAttributeAccessIssue]
    for x, (_, row, value) in zip(at_x, shown, strict=True):
        found = {"ours": row.ours, "published": None}.get(series, row.measurement)
        if found is not None and found.most > found.least:
            below, above = max(value - found.least, 0.0), max(found.most - value, 0.0)
            axes.errorbar(x, value, [[below], [above]], color="black", capsize=2, linewidth=0.8)  # pyright: ignore[reportAttributeAccessIssue]


def _drawn_value(row: Row, series: str) -> float | None:
    match series:
        case "published":
            return row.claim.value
        case "ours":
            return None if row.ours is None else row.ours.value
        case _:
            return None if row.measurement is None else row.measurement.value


def _unit(row: Row) -> str:
    title = QUANTITIES[row.claim.quantity].title
    return title if row.claim.form is Form.VALUE else f"{row.claim.unit}: {title}"


# --- of an analogue ------------------------------------------------------------------------------------


_BOUNDS = {Relation.AT_LEAST: "at least", Relation.AT_MOST: "at most"}
_HERE, _BESIDE, _LIMIT = "#1f77b4", "#8c8c8c", "#d62728"


def analogue_picture(analogue: Analogue, numbers: Mapping[str, Measurement]) -> str:
    """A chart for each check, because their units differ. Empty where nothing was measured."""
    checks = [check for check in analogue.checks if check.number in numbers]
    if not checks:
        return ""

    def draw(canvas: Canvas) -> None:
        for axes, check in zip(canvas.subplots(1, len(checks), squeeze=False)[0], checks, strict=True):
            _check(axes, check, numbers)

    return svg(analogue.analogue_id, 0.4 + 1.3 * len(checks), 2.4, draw)


def _check(axes: Any, check: Check, numbers: Mapping[str, Measurement]) -> None:
    """Whiskers are the least and the greatest of several parts or runs."""
    bars = [("here", numbers[check.number], _HERE)]
    if check.beside in numbers:
        bars.append(("beside it", numbers[check.beside], _BESIDE))
    for at, (_, found, colour) in enumerate(bars):
        axes.bar(at, found.value, 0.7, color=colour)
        if found.most > found.least:
            axes.errorbar(at, found.value, [[found.value - found.least], [found.most - found.value]], color="black")
    if check.relation in _BOUNDS:
        axes.axhline(check.bound, color=_LIMIT, linestyle="--", linewidth=1)
        axes.set_xlabel(f"--- {_BOUNDS[check.relation]} {check.bound:,.3g}", fontsize=7, color=_LIMIT)
    axes.set_xticks(range(len(bars)), [name for name, _, _ in bars], fontsize=7)
    axes.set_xlim(-0.6, len(bars) - 0.4)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_title(check.name.replace("-", "\n", 1), fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)


# --- analogues -----------------------------------------------------------------------------------------


ANALOGUE_COLUMNS = ("check", "number", "must be", "here", "beside it", "verdict")
_VERDICTS = (Verdict.DIFFERS, Verdict.HOLDS, Verdict.NOT_RUN)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalogueSection:
    """results: of the parts that were measured. numbers: of all of these together, by name. reasons: of differences, by
    check.
    """

    analogue: Analogue
    results: tuple[Mapping[str, Any], ...]
    numbers: Mapping[str, Measurement]
    reasons: Mapping[str, str]

    @property
    def is_whole(self) -> bool:
        return len(self.results) == len(self.analogue.parts)

    def verdict(self, check: Check) -> Verdict:
        return check_verdict(check, self.numbers) if self.is_whole else Verdict.NOT_RUN

    def differing(self) -> tuple[Check, ...]:
        return tuple(check for check in self.analogue.checks if self.verdict(check) is Verdict.DIFFERS)

    def reason(self, check: Check) -> str:
        return self.reasons.get(self.analogue.check_id(check), NONE_KNOWN)

    @property
    def conditions(self) -> str:
        """When it was measured: how long it took, and beside which load."""
        if not self.is_whole:
            parts = f"{len(self.results)} of {len(self.analogue.parts)} parts measured; "
            return f"{'' if self.analogue.recorded else parts}{self.analogue.missing}"
        loads = [load for result in self.results for load in result["load_average"]]
        if self.analogue.recorded:
            load = f"load average {loads[0]:.1f} before and {loads[-1]:.1f} after" if loads else "load not recorded"
            return f"{load}; read from {self.analogue.recorded}, which {self.analogue.written_by} wrote"
        seconds = sum(result["wall_s"] for result in self.results)
        return f"{seconds:,.0f} s, load average {min(loads):.1f} to {max(loads):.1f}"

    def as_object(self) -> dict[str, Any]:
        """The section as an object for JSON."""
        return {
            **asdict(self.analogue),
            "label": LABEL,
            "command": self.analogue.command,
            "conditions": self.conditions,
            "numbers": {name: asdict(found) for name, found in self.numbers.items()},
            "verdicts": {check.name: self.verdict(check).value for check in self.analogue.checks},
            "reasons": {check.name: self.reason(check) for check in self.differing()},
            "results": list(self.results),
        }


def analogue_section(
    analogue: Analogue, results: Sequence[Mapping[str, Any] | None], reasons: Mapping[str, str]
) -> AnalogueSection:
    """results: of its parts; None: not measured yet."""
    known = tuple(result for result in results if result is not None)
    numbers = combined([result["numbers"] for result in known])
    return AnalogueSection(analogue=analogue, results=known, numbers=numbers, reasons=reasons)


def analogue_counts(shown: Sequence[AnalogueSection]) -> dict[str, int]:
    """Checks by verdict."""
    found = [section.verdict(check) for section in shown for check in section.analogue.checks]
    return {verdict.value: found.count(verdict) for verdict in _VERDICTS}


def not_reached(shown: Sequence[AnalogueSection]) -> Iterator[str]:
    """Checks that were run and differ, analogue by analogue."""
    for section in shown:
        differing = section.differing()
        if differing:
            reasons = " ".join(_reasons(section))
            said = ", ".join(
                f"{check.name} {number_text(section.numbers.get(check.number))} (must be {check.demand})"
                for check in differing
            )
            yield f"{LABEL}, {section.analogue.analogue_id}: {said}. {reasons}"


def markdown_lines(shown: Sequence[AnalogueSection]) -> list[str]:
    """All checks and all numbers, by analogue."""
    lines = list[str]()
    for section in shown:
        lines += [
            "",
            f"## {_heading(section)}",
            "",
            *_about_analogue(section),
            "",
            *markdown_table(ANALOGUE_COLUMNS, _rows(section)),
        ]
        lines += ["", *(f"- {reason}" for reason in _reasons(section))] if section.differing() else []
        if section.numbers:
            lines += ["", _analogue_numbers(section)]
    return lines


def html_sections(shown: Sequence[AnalogueSection]) -> str:
    return "\n".join(map(_html, shown))


def _html(section: AnalogueSection) -> str:
    about = "".join(f"<p>{html.escape(line)}</p>\n" for line in _about_analogue(section) if line)
    notes = "".join(f"<li>{html.escape(reason)}</li>" for reason in _reasons(section))
    return (
        f"<h2>{html.escape(_heading(section))}</h2>\n{about}"
        f"{analogue_picture(section.analogue, section.numbers)}\n{html_table(ANALOGUE_COLUMNS, _rows(section))}\n"
        f'<ul class="note">{notes}</ul>\n<p class="note">{html.escape(_analogue_numbers(section))}</p>'
    )


def _heading(section: AnalogueSection) -> str:
    return f"A{LABEL[1:]}: {section.analogue.analogue_id}, beside {', '.join(section.analogue.figures)}"


def _about_analogue(section: AnalogueSection) -> list[str]:
    analogue = section.analogue
    settings = ", ".join(f"{name} {value}" for name, value in analogue.setup.items())
    parts = "; ".join(", ".join(f"{name} {value}" for name, value in part.items()) for part in analogue.parts if part)
    setup = f" Setup: {settings}{'; parts: ' if parts else ''}{parts}." if settings else ""
    return [
        f"{analogue.title}.",
        "",
        f"In place of the published setup: {analogue.stands_in}.{setup}",
        "",
        f"{section.conditions}. Alone: {analogue.command}",
    ]


def _rows(section: AnalogueSection) -> Iterator[tuple[str, ...]]:
    for check in section.analogue.checks:
        verdict = section.verdict(check)
        yield (
            check.name,
            check.number,
            check.demand,
            number_text(section.numbers.get(check.number)),
            number_text(section.numbers.get(check.beside)),
            section.analogue.missing if verdict is Verdict.NOT_RUN else verdict.value,
        )


def _reasons(section: AnalogueSection) -> Iterable[str]:
    """The reasons of the checks that differ, each once."""
    return dict.fromkeys(map(section.reason, section.differing()))


def _analogue_numbers(section: AnalogueSection) -> str:
    found = "; ".join(f"{name} {number_text(number)}" for name, number in section.numbers.items())
    return f"All numbers: {found}." if found else ""


# --- the report ----------------------------------------------------------------------------------------


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

"""The rows of analogues: each check beside what was measured, its verdict, and the command for it alone."""

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.papers.analogues import LABEL, Analogue, Check, check_verdict, combined
from benchmarks.papers.pictures import analogue_picture, html_table, markdown_table, number_text
from benchmarks.papers.rows import NONE_KNOWN
from benchmarks.papers.verdicts import Measurement, Verdict

COLUMNS = ("check", "number", "must be", "here", "beside it", "verdict")
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
        lines += ["", f"## {_heading(section)}", "", *_about(section), "", *markdown_table(COLUMNS, _rows(section))]
        lines += ["", *(f"- {reason}" for reason in _reasons(section))] if section.differing() else []
        if section.numbers:
            lines += ["", _numbers(section)]
    return lines


def html_sections(shown: Sequence[AnalogueSection]) -> str:
    return "\n".join(map(_html, shown))


def _html(section: AnalogueSection) -> str:
    about = "".join(f"<p>{html.escape(line)}</p>\n" for line in _about(section) if line)
    notes = "".join(f"<li>{html.escape(reason)}</li>" for reason in _reasons(section))
    return (
        f"<h2>{html.escape(_heading(section))}</h2>\n{about}"
        f"{analogue_picture(section.analogue, section.numbers)}\n{html_table(COLUMNS, _rows(section))}\n"
        f'<ul class="note">{notes}</ul>\n<p class="note">{html.escape(_numbers(section))}</p>'
    )


def _heading(section: AnalogueSection) -> str:
    return f"A{LABEL[1:]}: {section.analogue.analogue_id}, beside {', '.join(section.analogue.figures)}"


def _about(section: AnalogueSection) -> list[str]:
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


def _numbers(section: AnalogueSection) -> str:
    found = "; ".join(f"{name} {number_text(number)}" for name, number in section.numbers.items())
    return f"All numbers: {found}." if found else ""

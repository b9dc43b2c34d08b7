"""The pages of results: at which commit each was measured, which folders it measures, and how far they changed since.

The list below a page's title has a line like EXAMPLE for each of its measurements. The words in parentheses say
which part of the page it is; without them it is the whole page. A line like HISTORY is of a part that a decision was
taken on: it names no folders, because it is true of its commit and never old.
"""

import re
import subprocess
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
EXAMPLE = "- Measured on 2026-11-22 at `2468f4f` (speed): `services/admission`, `shared/scheduling`."
HISTORY = "- Recorded on 2026-11-23 at `8edf0ebe` (record 40)."
_WHEN = r"on (?P<date>\d{4}-\d\d-\d\d) at `(?P<commit>[0-9a-f]{7,40})`(?: \((?P<part>[^)]+)\))?"
_MEASURED = re.compile(rf"- Measured {_WHEN}: (?P<folders>`[^`]+`(?:, `[^`]+`)*)\.")
_RECORDED = re.compile(rf"- Recorded {_WHEN}\.")


class BadPage(ValueError):
    """A page does not say where it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measurement of a page, or of a part of it. part: "" if it is the whole page."""

    page: str
    part: str
    date: str
    commit: str
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """num_lines: added and deleted ones in the folders since the commit; None if this checkout has no such commit."""

    measurement: Measurement
    num_lines: int | None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self.measurement), "changed_lines": self.num_lines}


def result_pages() -> list[Path]:
    return sorted(page for page in RESULTS.glob("*.md") if page.name != "README.md")


def measurements(page: Path) -> list[Measurement]:
    """The measurements from the list below the title, without what is history. Raises BadPage."""
    _title, _, *rest = page.read_text().splitlines()
    lines = list(takewhile(bool, rest))
    current = [line for line in lines if not _RECORDED.fullmatch(line)]
    found = [_MEASURED.fullmatch(line) for line in current]
    if not lines or not all(found):
        raise BadPage(f"{page.name}: below its title it must have lines like: {EXAMPLE} Or: {HISTORY}")
    return [
        Measurement(
            page=page.name,
            part=match["part"] or "",
            date=match["date"],
            commit=match["commit"],
            folders=tuple(re.findall(r"`([^`]+)`", match["folders"])),
        )
        for match in filter(None, found)
    ]


def all_changes() -> list[Change] | None:
    """The measurements of all pages whose folders have changed, or whose commit this checkout does not have.

    None without git or its history."""
    if _git("rev-parse", "HEAD") is None:
        return None
    changes = [
        Change(measurement, _changed_lines(measurement))
        for page in result_pages()
        for measurement in measurements(page)
    ]
    return [change for change in changes if change.num_lines != 0]


def current_commit() -> str:
    """The current commit, with -dirty if files have changed; "unknown" without git."""
    return (_git("describe", "--always", "--dirty", "--abbrev=8", "--exclude=*") or "unknown").strip()


def _changed_lines(measurement: Measurement) -> int | None:
    changed = _git("diff", "--numstat", measurement.commit, "--", *measurement.folders)
    return None if changed is None else num_changed_lines(changed)


def num_changed_lines(numstat: str) -> int:
    """Added and deleted lines of `git diff --numstat`; a binary file has none."""
    counts = (line.split("\t")[:2] for line in numstat.splitlines())
    return sum(int(count) for pair in counts for count in pair if count != "-")


def _git(*arguments: str) -> str | None:
    """What it prints; None if there is no git, no repository or no such commit."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout

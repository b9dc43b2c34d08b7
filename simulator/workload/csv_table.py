"""CSV files of users, and the errors in them: each names file, line and column."""

import csv
import difflib
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticflow.shared.errors import Stop

MAX_SHOWN = 20  # problems in one error; the others are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """One problem and its place. line: from 1; 0 for the whole file. column: "" for the whole row or file."""

    file: str
    line: int = 0
    column: str = ""
    value: str = ""
    reason: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        cell = f" {self.column} {shortened(self.value)!r}:" if self.column else ""
        return f"{place}:{cell} {self.reason}"


@dataclass(eq=False)
class BadInput(Stop):
    """problems: all of them, in the order of the file. advice: what to do about them."""

    problems: tuple[BadRow, ...]
    advice: str = ""

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:MAX_SHOWN]]
        if len(self.problems) > MAX_SHOWN:
            lines.append(f"... and {len(self.problems) - MAX_SHOWN} more such rows")
        return "\n".join([*lines, self.advice] if self.advice else lines)


def bad_input(
    file: object, reason: str, *, line: int = 0, column: str = "", value: str = "", advice: str = ""
) -> BadInput:
    """The error of a single problem."""
    problem = BadRow(file=str(file), line=line, column=column, value=value, reason=reason)
    return BadInput((problem,), advice)


def shortened(text: str, max_chars: int = 60) -> str:
    """The beginning of a long value."""
    return text if len(text) <= max_chars else text[:max_chars] + "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """cells: by column, without surrounding blanks."""

    file: str
    line: int
    cells: Mapping[str, str]

    def has(self, column: str) -> bool:
        """Whether this column has a value."""
        return bool(self.cells.get(column))

    def text(self, column: str) -> str:
        """The value; BadInput if there is none."""
        value = self.cells.get(column, "")
        if not value:
            raise self.bad_input(column, "is missing")
        return value

    def number(self, column: str, low: float, high: float) -> float:
        """A finite number in [low, high]."""
        text = self.text(column)
        value = parsed(text)
        if value is None or math.isnan(value):
            raise self.bad_input(column, "is not a number")
        if not low <= value <= high:
            raise self.bad_input(column, f"must be {low:g} to {high:g}")
        return value

    def whole(self, column: str, low: int, high: int) -> int:
        """A whole number in [low, high], also written as 12.0."""
        value = self.number(column, low, high)
        if not value.is_integer():
            raise self.bad_input(column, "must be a whole number")
        return int(value)

    def flag(self, column: str) -> bool:
        """1 or 0; an empty cell or a missing column means 0."""
        value = parsed(self.cells.get(column) or "0")
        if value not in (0, 1):
            raise self.bad_input(column, "must be 1 (yes) or 0 (no)")
        return value == 1

    def bad_input(self, column: str, reason: str) -> BadInput:
        """The error to raise about one cell."""
        value = self.cells.get(column, "")
        return bad_input(self.file, reason, line=self.line, column=column, value=value)


def parsed(text: str) -> float | None:
    """The number in ASCII digits, perhaps infinite or nan; None if `text` is not a number."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def read_lines(file: Path) -> list[tuple[int, list[str]]]:
    """(line, cells) of each line that is not blank; the first is the header."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise bad_input(file, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise bad_input(file, "is not a text file in UTF-8") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise bad_input(file, f"is not a CSV file: {error}", line=reader.line_num) from error
    lines = [(line, cells) for line, cells in lines if cells not in ([], [""])]
    if not lines:
        raise bad_input(file, "is empty: give a header and a row for each job")
    return lines


def columns_of(
    file: Path, header: list[str], spellings: Mapping[str, str], *, ignores_others: bool = False
) -> list[str]:
    """The known name of each column. BadInput names all that are unknown, with the known ones.

    ignores_others: an unknown column keeps its name, unless it looks like a typing error.
    """
    names = [spellings.get(name.lower(), name) for name in header]
    known = dict.fromkeys(spellings.values())
    reasons = list[str]()
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            reasons.append(f"two columns mean {name!r}; keep one of them")
        likely = difflib.get_close_matches(name.lower(), spellings, n=1, cutoff=0.85)
        if name not in known and (likely or not ignores_others):
            reasons.append(f"unknown column {name!r}" + (f"; is it {likely[0]!r}?" if likely else ""))
    if reasons:
        problems = tuple(BadRow(file=str(file), line=1, reason=reason) for reason in reasons)
        raise BadInput(problems, f"the known columns are {', '.join(known)}")
    return names


def rows_of(file: Path, columns: list[str], lines: list[tuple[int, list[str]]]) -> Iterator[Row | BadInput]:
    """Each line as a row, or the error that its number of cells is wrong."""
    for line, cells in lines:
        if len(cells) == len(columns):
            yield Row(file=str(file), line=line, cells=dict(zip(columns, cells, strict=True)))
        else:
            reason = f"has {len(cells)} cells where the header has {len(columns)}"
            yield bad_input(file, reason, line=line)

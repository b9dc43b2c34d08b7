"""Errors in a user's input files; a branch of the tree in `shared/errors.py`."""

from dataclasses import dataclass

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


def refusal(
    file: object, reason: str, *, line: int = 0, column: str = "", value: str = "", advice: str = ""
) -> BadInput:
    """The error of a single problem."""
    problem = BadRow(file=str(file), line=line, column=column, value=value, reason=reason)
    return BadInput((problem,), advice)


def shortened(text: str, max_chars: int = 60) -> str:
    """The beginning of a long value."""
    return text if len(text) <= max_chars else text[:max_chars] + "..."

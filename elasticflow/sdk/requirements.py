"""Packages that a job requires, read from a requirements file or a pyproject.toml: lines that a node can install.

The lines travel in the job's specification, so a line that means something on this machine only is refused.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement

from elasticflow.errors import InvalidJob
from elasticflow.shared.messages.syntax_problems import parsed_toml

_INCLUDE = re.compile(r"(?:-r|--requirement)(?:\s+|=)(.+)")
_FOLDER_OPTION = re.compile(r"(?:-f|--find-links)(?:\s+|=)(.+)")
_CREDENTIALS = re.compile(r"https?://[^/\s@]+@")
_LOCAL_OPTIONS = ("-e", "--editable", "-c", "--constraint")
_MOST_INCLUDES = 20  # files within files
_MOST_PROBLEMS = 3  # named, for example of a file that holds no requirements at all


class _Line(NamedTuple):
    file: Path
    number: int
    text: str

    def problem(self, reason: str) -> str:
        return f"requirements: {self.file}, line {self.number}: {self.text:.100}: {reason}"


def read_requirements(file: str | Path) -> tuple[str, ...]:
    """The lines to install. file: in the form of pip, or pyproject.toml for its dependencies.

    Raises InvalidJob, naming each line that nodes cannot install.
    """
    file = Path(file)
    try:
        if file.name == "pyproject.toml":
            lines = [_Line(file, 0, text) for text in _dependencies(file)]
        else:
            lines = list(_lines(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJob(f"requirements: {file} cannot be read: {error}") from None
    problems = [line.problem(problem) for line in lines if (problem := line_problem(line.text))]
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        raise InvalidJob(*problems[:_MOST_PROBLEMS], *([f"and {more} more of its lines"] if more > 0 else ()))
    return tuple(line.text for line in lines)


def _dependencies(file: Path) -> list[str]:
    text = file.read_text()
    try:
        project: Any = parsed_toml(text)
        found = project["project"]["dependencies"]
    except ValueError as error:
        raise InvalidJob(f"requirements: {file} is no TOML: {error}") from None
    except (KeyError, TypeError):
        raise InvalidJob(f"requirements: {file} has no dependencies in [project]; name a requirements file") from None
    if not isinstance(found, list) or not all(isinstance(line, str) for line in found):  # pyright: ignore
        raise InvalidJob(f"requirements: {file}: project.dependencies must be an array of texts")
    return found  # pyright: ignore[reportUnknownVariableType]


def _lines(file: Path, depth: int = 0) -> Iterator[_Line]:
    """The lines without comments; included files stand in their place."""
    joined = re.sub(r"\\\n", lambda _: "\0", file.read_text())
    number = 1
    for raw in joined.split("\n"):
        text = re.sub(r"(^|\s+)#.*$", "", raw.replace("\0", " ")).strip()
        line, number = _Line(file, number, text), number + 1 + raw.count("\0")
        if included := _INCLUDE.fullmatch(text):
            if depth == _MOST_INCLUDES:
                raise InvalidJob(line.problem("files include each other; name each once"))
            yield from _lines(file.parent / included[1], depth + 1)
        elif text:
            yield line


def line_problem(text: str) -> str:
    """Why a node cannot install this line; "" if it can."""
    if _CREDENTIALS.search(text):
        return "it has a password, and the ledger is no place for one; configure pip on the nodes (pip.conf)"
    if text.startswith(_LOCAL_OPTIONS):
        return "it names files of this machine; put code into the workdir, and versions into the requirements"
    if folder := _FOLDER_OPTION.fullmatch(text):
        is_there = folder[1].startswith(("/", "https://", "http://", "file:///"))
        return "" if is_there else "the folder is relative to this machine; name one that all nodes have"
    if text.startswith("-"):
        return ""  # another option of pip
    try:
        Requirement(re.split(r"\s+--", text)[0])  # options follow, such as --hash
    except InvalidRequirement as error:
        return f"no requirement: {str(error).splitlines()[0]}"
    return ""

"""Tracebacks as their readers want them: frames of the engine above and between those of users' code are folded."""

import os
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

_PACKAGE = Path(str(sys.modules["elasticflow"].__file__)).parent
_SERVICES = Path(__file__).parents[3]
_ENGINE_FOLDERS = (
    *(f"{folder}{os.sep}" for folder in (_PACKAGE, _SERVICES, _SERVICES.parent / "shared")),
    "<frozen runpy>",  # which starts scripts
)
_FRAME = re.compile(r'( *)File "(.*)", line \d+')


def folded(text: str) -> str:
    """The text of a traceback, in which several frames of the engine in a row are one line."""
    return "".join(_folded(text.splitlines(keepends=True)))


def _folded(lines: list[str]) -> Iterator[str]:
    for indent, entries in groupby(_entries(lines), key=_engine_indent):
        group = list(entries)
        if indent is None or len(group) < 2:
            yield from (line for entry in group for line in entry)
        else:
            yield f"{indent}… {len(group)} frames of elasticflow (eflow explain --traceback shows them)\n"


def _entries(lines: list[str]) -> Iterator[list[str]]:
    """Each frame with its source lines; each other line alone."""
    entry: list[str] = []
    for line in lines:
        belongs = bool(entry) and line.startswith(_indent(entry[0]) + "  ") and not _FRAME.match(line)
        if belongs:
            entry.append(line)
            continue
        if entry:
            yield entry
            entry = []
        if _FRAME.match(line):
            entry = [line]
        else:
            yield [line]
    if entry:
        yield entry


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]


def _engine_indent(entry: list[str]) -> str | None:
    """Of a frame of the engine; None for anything else."""
    frame = _FRAME.match(entry[0])
    return frame[1] if frame is not None and frame[2].startswith(_ENGINE_FOLDERS) else None

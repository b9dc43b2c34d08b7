"""Output of the command: results on stdout, shown or as one JSON value; everything else on stderr."""

import json
import sys
from dataclasses import asdict, is_dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from elasticflow.shared.runtime.process.terminal import console, safe_for_terminal


def say(shown: RenderableType) -> None:
    """Print a result."""
    console().print(shown)


def say_line(text: str, style: str = "") -> None:
    """Print one line of a result, never wrapped. A terminal gets no control characters of it."""
    if sys.stdout.isatty():
        text = safe_for_terminal(text)
    if style:
        console().print(Text(text, style=style), soft_wrap=True)
    else:  # a log may have a million lines; rich is fifty times slower
        print(text, flush=True)


def note(text: str, end: str = "\n") -> None:
    """Print a message to stderr. A terminal gets no control characters of it."""
    print(safe_for_terminal(text) if sys.stderr.isatty() else text, file=sys.stderr, end=end, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON value, on one line."""
    print(json.dumps(plain(value), default=str), flush=True)


def plain(value: Any) -> Any:
    """Dataclasses as maps, at any depth."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value

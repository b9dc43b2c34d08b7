"""Output of a command: results on stdout, shown or as one JSON value; all else, with progress bars, on stderr."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
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


# --- progress ------------------------------------------------------------------------------------------
# Progress bars, on a terminal only. They are on stderr: a result that is piped or in JSON stays whole.

T = TypeVar("T")

_UPDATE_EVERY_S = 0.1  # a ledger has a million messages


@contextlib.contextmanager
def progress_bar(of_what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many are done, until the block ends. Yields a function that takes their number and that of all.

    of_what: "bytes" are shown in a unit that fits.
    """
    terminal = Console(file=sys.stderr)
    if not terminal.is_terminal:
        yield lambda completed, total: None
        return
    counted = (DownloadColumn(),) if of_what == "bytes" else (MofNCompleteColumn(), TextColumn(of_what))
    columns = BarColumn(), *counted, TimeRemainingColumn()
    with Progress(*columns, console=terminal, transient=True) as bar:
        shown, updated_at_s = bar.add_task("", total=None), 0.0

        def advance(completed: int, total: int) -> None:
            nonlocal updated_at_s
            now_s = time.monotonic()
            if completed == total or now_s - updated_at_s > _UPDATE_EVERY_S:
                updated_at_s = now_s
                bar.update(shown, completed=completed, total=total)

        yield advance


def with_progress(items: Sequence[T], of_what: str) -> Iterator[T]:
    """The items, while a bar shows how many were taken."""
    with progress_bar(of_what) as advance:
        for number, item in enumerate(items, start=1):
            yield item
            advance(number, len(items))

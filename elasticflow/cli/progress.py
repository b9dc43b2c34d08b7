"""Progress bars, on a terminal only. They are on stderr: a result that is piped or in JSON stays whole."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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

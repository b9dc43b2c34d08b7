"""Progress bars, on a terminal only. They are on stderr: a result that is piped or in JSON stays whole."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def progress_bar(total: int, of_what: str) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` are done, until the block ends. Yields a function that takes their number."""
    terminal = Console(file=sys.stderr)
    columns = BarColumn(), MofNCompleteColumn(), TextColumn(of_what), TimeRemainingColumn()
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        shown = bar.add_task("", total=total)
        yield lambda completed: bar.update(shown, completed=completed)

"""The place where commands print their results: a terminal, a file, or a pipe whose reader may stop early.

Output has colour only on a terminal, and not where NO_COLOR is set (rich sees to both).
"""

import os
import sys

from rich.console import Console

from elasticflow.shared.hidden_characters import escaped

_WIDTH_IN_FILES = 1_000  # columns where there is no terminal to ask


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The reader of the output has stopped: rich would treat it as a failure, which it is not."""
        raise BrokenPipeError


def console() -> Console:
    """A console for results, made anew to use the present stdout. Raises BrokenPipeError if its reader has stopped."""
    terminal = _Console(highlight=False)
    return terminal if terminal.is_terminal else _Console(highlight=False, width=_WIDTH_IN_FILES)


def safe_for_terminal(text: str) -> str:
    """The text of a job, with what would command a terminal (to set its title, to answer) or hide others escaped."""
    return escaped(text, may_have_colours=True)


def reserve_stdout() -> None:
    """Keep standard output for what this process prints itself. What a library in C writes there goes to stderr.

    Children that inherit the descriptor write to stderr, too.
    """
    try:
        number = os.dup(sys.stdout.fileno())
    except (OSError, ValueError):  # it is closed, or no file
        return
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    before = sys.stdout
    sys.stdout = os.fdopen(
        number, "w", encoding=before.encoding, errors=before.errors, buffering=1 if before.isatty() else -1
    )

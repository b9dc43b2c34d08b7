"""Where commands print their results: a terminal, a file, or a pipe whose reader may stop early.

Colour only on a terminal, and not where NO_COLOR is set (rich sees to both).
"""

import os
import sys

from rich.console import Console

_WIDTH_IN_FILES = 160  # columns where there is no terminal to ask


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The reader of the output has stopped: rich would treat it as a failure, which it is not."""
        raise BrokenPipeError


def console() -> Console:
    """For results; made anew, so that it uses the present stdout. Raises BrokenPipeError if its reader has stopped."""
    terminal = _Console(highlight=False)
    return terminal if terminal.is_terminal else _Console(highlight=False, width=_WIDTH_IN_FILES)


def forget_stdout() -> None:
    """After a BrokenPipeError: what is still to be written there goes nowhere, and is no failure at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""Where commands print their results: a terminal, a file, or a reader who may have seen enough.

Colour only on a terminal, and not where NO_COLOR is set (rich sees to both).
"""

import os
import sys

from rich.console import Console

_WIDTH_IN_FILES = 160  # columns where there is no terminal to ask


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read our output has seen enough: rich would call that a failure, the commands know better."""
        raise BrokenPipeError


def console() -> Console:
    """For results; made anew, so that it sees the stdout of now. Raises BrokenPipeError where nobody reads them."""
    terminal = _Console(highlight=False)
    return terminal if terminal.is_terminal else _Console(highlight=False, width=_WIDTH_IN_FILES)


def forget_stdout() -> None:
    """After a BrokenPipeError: what is still to be written there goes nowhere, and is no failure at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

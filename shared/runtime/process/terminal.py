"""Where commands print their results: a terminal, a file, or a pipe whose reader may stop early.

Colour only on a terminal, and not where NO_COLOR is set (rich sees to both).
"""

import codecs
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

_WIDTH_IN_FILES = 1_000  # columns where there is no terminal to ask
# Control characters except tab and the ends of lines, escape sequences except colours, and Unicode's directions.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|\x1b(?!\[[\d;]*m)"
)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The reader of the output has stopped: rich would treat it as a failure, which it is not."""
        raise BrokenPipeError


def console() -> Console:
    """For results; made anew, so that it uses the present stdout. Raises BrokenPipeError if its reader has stopped."""
    terminal = _Console(highlight=False)
    return terminal if terminal.is_terminal else _Console(highlight=False, width=_WIDTH_IN_FILES)


def safe_for_terminal(text: str) -> str:
    """The text of a job without what would command a terminal: to set its title or clipboard, or to answer."""
    return _UNSAFE.sub("?", text)


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


# --- standard streams ----------------------------------------------------------------------------------
# The standard streams of a command, made fit for any text: without an encoding error, and never closed.
#
# A terminal that cannot show a character gets a plain one in its place, so that columns keep their widths.

_PLAIN_WHERE_NEEDED = "eflow.plain"
_SYMBOLS = {
    "=": "━═",
    "-": "─╴╶—",
    "#": "■█▇▆▅",
    ".": "□·▁▂▃▄",
    "~": "…",
    "|": "│┃",
    "+": "╭╮╰╯├┤┬┴┼",
    "*": "•",
    ">": "→",
}
_PLAIN = str.maketrans({symbol: plain for plain, symbols in _SYMBOLS.items() for symbol in symbols})


def prepare_standard_streams(environment: Mapping[str, str] = os.environ) -> None:
    """Called once, at the start of a command."""
    _open_closed_ones()
    codecs.register_error(_PLAIN_WHERE_NEEDED, _plain)
    locale = environment.get("LC_ALL", "")
    encoding = "ascii" if locale in ("C", "POSIX") and not environment.get("PYTHONIOENCODING") else None
    for stream in (sys.stdout, sys.stderr):
        adapt(stream, encoding)


def adapt(stream: Any, encoding: str | None = None) -> None:
    """Let the stream write plain characters for those that its encoding lacks. encoding: another one."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(encoding=encoding, errors=_PLAIN_WHERE_NEEDED)


def forget_stdout() -> None:
    """After a failure to write: what is still to be written there goes nowhere, and is no failure at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    plain = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(character if character.isascii() else "?" for character in plain), error.end


def _open_closed_ones() -> None:
    """A closed descriptor would be that of the next file or connection, into which a library might then print."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")

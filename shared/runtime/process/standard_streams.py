"""The standard streams of a command, made fit for any text: without an encoding error, and never closed.

A terminal that cannot show a character gets a plain one in its place, so that columns keep their widths.
"""

import codecs
import os
import sys
from collections.abc import Mapping
from typing import Any

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
    """Discard what is still to be written to stdout, after a failure to write: it is no failure at the exit."""
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

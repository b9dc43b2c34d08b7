"""The simulator as a process of its own: it knows the policies, this room does not."""

import os
import subprocess
import sys
from typing import Any, NoReturn


def start_simulator(*arguments: str, stdin: int | None = None) -> "subprocess.Popen[Any]":
    """It shares our terminal, Ctrl-C included, and calls itself by our name."""
    return subprocess.Popen(_command(arguments), stdin=stdin, env=_environment())


def become_simulator(*arguments: str) -> NoReturn:
    """In place of this process: whoever interrupts or ends it, at a terminal or by its id, means the simulator."""
    os.execve(sys.executable, _command(arguments), _environment())


def _command(arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "simulator", *arguments]


def _environment() -> dict[str, str]:
    return {**os.environ, "EF_CALLED_AS": "eflow"}

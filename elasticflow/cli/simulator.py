"""The simulator as a process of its own: it knows the policies, this room does not."""

import os
import subprocess
import sys
from typing import Any


def start_simulator(*arguments: str, stdin: int | None = None) -> "subprocess.Popen[Any]":
    """It shares our terminal, Ctrl-C included, and calls itself by our name."""
    command = [sys.executable, "-m", "simulator", *arguments]
    return subprocess.Popen(command, stdin=stdin, env={**os.environ, "EF_CALLED_AS": "eflow"})

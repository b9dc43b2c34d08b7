"""The simulator as a process of its own: it knows the policies, this room does not.

`eflow simulate`: hands everything over to the simulator.
"""

import os
import subprocess
import sys
from typing import Any, NoReturn

import typer

from elasticflow.shared.extras import require_extra
from elasticflow.shared.runtime.process.run_module import module_command


def start_simulator(*arguments: str, stdin: int | None = None) -> "subprocess.Popen[Any]":
    """It shares our terminal, Ctrl-C included, and calls itself by our name. Raises MissingExtra."""
    return subprocess.Popen(_command(arguments), stdin=stdin, env=_environment())


def become_simulator(*arguments: str) -> NoReturn:
    """In place of this process: whoever interrupts or ends it, at a terminal or by its id, means the simulator."""
    os.execve(sys.executable, _command(arguments), _environment())


def _command(arguments: tuple[str, ...]) -> list[str]:
    require_extra("server", f"eflow {arguments[0]}")
    return list(module_command("elasticflow.simulator", *arguments))


def _environment() -> dict[str, str]:
    return {**os.environ, "EF_CALLED_AS": "eflow"}


SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def simulate(context: typer.Context) -> None:
    """Run a trace of jobs through the scheduler on virtual time: what would be
    promised, met, resized. `eflow simulate --help` has the options.
    """
    become_simulator("simulate", *context.args)

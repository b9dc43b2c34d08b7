"""The help of each command, those of the simulator included: its lines fit a terminal, and -h shows it."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from elasticflow.cli.app import app
from elasticflow.simulator.__main__ import app as simulator

COLUMNS = 78  # of 80; rich leaves one empty on either side
PASSED_ON = "eflow simulate"  # to the simulator, with all that follows


def contexts(command: Any, name: str, parent: Any = None) -> Iterator[Any]:
    """Those of the command and of all commands below it."""
    context = command.context_class(command, info_name=name, parent=parent, **command.context_settings)
    yield context
    if hasattr(command, "list_commands"):
        for each in command.list_commands(context):
            yield from contexts(command.get_command(context, each), each, context)


COMMANDS = {
    context.command_path: context
    for application, name in ((app, "eflow"), (simulator, "simulator"))
    for context in contexts(typer.main.get_command(application), name)
}


@pytest.mark.parametrize("path", COMMANDS)
def test_no_line_of_a_help_is_broken_by_a_terminal_of_80_columns(path: str) -> None:
    lines = inspect.cleandoc(COMMANDS[path].command.help or "").splitlines()
    assert [line for line in lines if len(line.replace("[bold]", "").replace("[/bold]", "")) > COLUMNS] == []


@pytest.mark.parametrize("path", COMMANDS)
def test_each_example_can_be_pasted_into_a_shell(path: str) -> None:
    """A remark is a comment, not further words."""
    lines = inspect.cleandoc(COMMANDS[path].command.help or "").splitlines()
    examples = [line.strip() for line in lines if line.startswith("  ") and "eflow " in line]
    assert [line for line in examples if re.search(r"\S {2,}(?!#)\S", line)] == []


@pytest.mark.parametrize("command", ["fetch", "cancel", "amend", "checkpoint", "scale-out", "submit", "quote"])
def test_a_tenant_is_the_owner_of_a_job_that_is_there_and_has_the_quota_of_a_new_one(command: str) -> None:
    (tenant,) = [each for each in COMMANDS[f"eflow {command}"].command.params if each.name == "tenant"]
    assert tenant.help.startswith("Tenant whose quota counts" if command in ("submit", "quote") else "Tenant whose job")


@pytest.mark.parametrize("path", [path for path in COMMANDS if path != PASSED_ON])
def test_each_command_has_both_names_of_help(path: str) -> None:
    context = COMMANDS[path]
    assert set(context.command.get_help_option_names(context)) == {"-h", "--help"}

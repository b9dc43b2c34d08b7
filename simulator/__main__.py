"""`python -m elasticflow.simulator`: what the policies decided, and what they would decide, away from any cluster."""

import os
import sys
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any, ClassVar

from elasticflow.shared.library_imports import ending_at_interrupt, without_gc

with ending_at_interrupt():
    import typer
    from typer.core import TyperGroup

    from elasticflow.shared.runtime.process.standard_streams import prepare_standard_streams
    from elasticflow.shared.runtime.process.terminal import reserve_stdout

CALLED_AS = os.environ.get("EF_CALLED_AS", "python -m elasticflow.simulator")  # `eflow` passes its own name


class _Commands(TyperGroup):
    """Each command's module is loaded when the command runs: a refused file need not wait for the policies."""

    modules: ClassVar = {
        "replay": "elasticflow.simulator.replay.command",
        "simulate": "elasticflow.simulator.simulate_command",
        "suits": "elasticflow.simulator.padding.commands",
    }

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.modules)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.modules:
            return None
        with ending_at_interrupt(), without_gc(), redirect_stdout(sys.stderr):
            module = import_module(self.modules[cmd_name])
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def simulator() -> None:
    """Run the scheduler's own policies away from any cluster."""


if __name__ == "__main__":
    prepare_standard_streams()
    reserve_stdout()  # solvers print, and programs read our JSON
    app(prog_name=CALLED_AS)

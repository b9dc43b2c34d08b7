"""`eflow simulate`: hands everything over to the simulator."""

import typer

from elasticflow.cli.simulator import become_simulator

SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def simulate(context: typer.Context) -> None:
    """Run a trace of jobs through the scheduler on virtual time: what would be
    promised, met, resized. `eflow simulate --help` has the options.
    """
    become_simulator("simulate", *context.args)

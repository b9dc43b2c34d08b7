"""`eflow simulate`: hands everything over to the simulator."""

import signal

import typer

from elasticflow.cli.simulator import start_simulator

SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def simulate(context: typer.Context) -> None:
    """Run a trace of jobs through the scheduler on virtual time: what would be
    promised, met, resized. `eflow simulate --help` has the options.
    """
    child = start_simulator("simulate", *context.args)
    # at Ctrl-C it is the one to stop, and to show what there is so far
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise typer.Exit(child.wait())

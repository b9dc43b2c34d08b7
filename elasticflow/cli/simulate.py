"""`eflow simulate`: hands everything over to the simulator, which knows the policies; this room does not."""

import signal
import subprocess
import sys

import typer

SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def simulate(context: typer.Context) -> None:
    """Run a trace of jobs through the scheduler on virtual time: what would be
    promised, met, resized. `eflow simulate --help` has the options.
    """
    child = subprocess.Popen([sys.executable, "-m", "simulator", "simulate", *context.args])
    # it shares our terminal: at Ctrl-C it is the one to stop, and to show what there is so far
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise typer.Exit(child.wait())

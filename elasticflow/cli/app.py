"""All commands in one application. An expected failure prints one line instead of a traceback."""

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from elasticflow import __version__
from elasticflow.cli import (
    doctor,
    drain,
    events,
    fetch,
    gpu_limits,
    job_commands,
    jobs_and_nodes,
    keys,
    loads,
    logs,
    map_function,
    node,
    pool,
    profile,
    quote,
    replay,
    report,
    results,
    submit,
    suits,
    train,
    ui,
    up,
    watch,
)
from elasticflow.cli.command_options import AS_JSON
from elasticflow.cli.job_file_command import JobFileCommand
from elasticflow.cli.terminal_output import note, print_json
from elasticflow.errors import (
    ArtifactGone,
    LoadInUse,
    LoadNotOpened,
    LoadWasCancelled,
    NoModel,
    NotConvertible,
    NothingStored,
    NotPrintable,
    ResultsGone,
    TaskError,
    UnknownJob,
    UnknownLoad,
    UnknownNode,
    UnknownQuote,
)
from elasticflow.sdk.job import InvalidJob
from elasticflow.sdk.packaging import PackagingFailed
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.library_imports import INTERRUPTED
from elasticflow.shared.messages.envelope.codec import Undecodable
from elasticflow.shared.messages.export import BadExport
from elasticflow.shared.runtime.process.logs import configure_logs
from elasticflow.shared.runtime.process.terminal import forget_stdout

NEGATIVE = 1  # a rejection, or the answer is no
CANNOT = 2  # wrong usage, or no connection

_NEGATIVE_ERRORS = (
    *(InvalidJob, UnknownJob, UnknownQuote, UnknownLoad, UnknownNode),
    *(ArtifactGone, NothingStored, NoModel, NotConvertible),
    *(LoadInUse, LoadNotOpened, LoadWasCancelled, TaskError, NotPrintable, ResultsGone),
)
_EXPECTED = (ElasticFlowError, InvalidJob, PackagingFailed, BadExport, Undecodable)


class _Eflow(TyperGroup):
    """Turns the errors of all commands into exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output has closed the pipe
            forget_stdout()
            raise typer.Exit(0) from None
        except _EXPECTED as error:
            note(f"eflow: {error}")
            if not isinstance(error, _NEGATIVE_ERRORS):
                raise typer.Exit(CANNOT) from None
            if ctx.meta.get(AS_JSON):  # a program reads this answer, too
                print_json({"error": str(error)})
            raise typer.Exit(NEGATIVE) from None
        except OSError as error:
            note(f"eflow: {error.filename or 'input/output'}: {error.strerror or error}")
            raise typer.Exit(CANNOT) from None


app = typer.Typer(
    cls=_Eflow,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"eflow {__version__}")
        raise typer.Exit


@app.callback()
def eflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Deadline-guaranteed, elastic training: say what to train and by when, never
    on how many GPUs.

    Start here: [bold]eflow up[/bold], then [bold]eflow submit train.py
    --deadline 10m[/bold].

    Exit codes: 0 yes, 1 no (a job is rejected, a check fails), 2 wrong usage or
    no connection, 130 Ctrl-C.
    """
    configure_logs(level=os.environ.get("EF_LOG_LEVEL", "warning"))


def _in_short(command: Callable[..., None]) -> str:
    """The first sentence of its help, on one line, for the list of commands."""
    sentence, _, _ = " ".join((command.__doc__ or "").split()).partition(". ")
    return sentence.removesuffix(".")


def _add(panel: str, *commands: Callable[..., None], cls: type[TyperCommand] = TyperCommand) -> None:
    """panel: the group under which `eflow --help` lists them."""
    for command in commands:
        app.command(short_help=_in_short(command), cls=cls, rich_help_panel=panel)(command)


def _add_group(panel: str, group: typer.Typer, callback: Callable[..., None]) -> None:
    app.add_typer(group, name=callback.__name__, short_help=_in_short(callback), rich_help_panel=panel)


_JOBS, _POOL, _IDLE, _LEDGER = "Jobs", "Pool", "Tasks on idle GPUs", "Ledger and simulations"
_add(_JOBS, submit.submit, quote.quote, profile.profile, cls=JobFileCommand)
_add(_JOBS, jobs_and_nodes.jobs, logs.logs, job_commands.explain, job_commands.cancel, job_commands.amend)
_add(_JOBS, job_commands.checkpoint, fetch.fetch, gpu_limits.scale_out, gpu_limits.scale_in)
_add(
    _POOL,
    up.up,
    pool.down,
    node.node,
    drain.drain,
    watch.watch,
    ui.ui,
    jobs_and_nodes.nodes,
    report.report,
    pool.configure,
    doctor.doctor,
)
_add_group(_POOL, keys.app, keys.keys)
_add(_IDLE, map_function.map, results.results, loads.loads, suits.suits, train.train)
_add_group(_LEDGER, events.app, events.events)
_add(_LEDGER, replay.replay)
app.command(short_help=_in_short(replay.simulate), context_settings=replay.SIMULATE_SETTINGS, rich_help_panel=_LEDGER)(
    replay.simulate
)

"""All commands in one application; failures that somebody has thought about end in one line, not a traceback."""

import importlib.metadata
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from elasticflow.cli import (
    amend,
    checkpoint,
    configure,
    down,
    events,
    jobs,
    logs,
    nodes,
    profile,
    replay,
    scale,
    simulate,
    submit,
    up,
    watch,
    why,
)
from elasticflow.cli.options import AS_JSON
from elasticflow.cli.output import note, print_json
from elasticflow.errors import UnknownJob, UnknownQuote
from elasticflow.job import InvalidJob
from elasticflow.packaging import PackagingFailed
from shared.errors import ElasticFlowError
from shared.messages.codec import Undecodable
from shared.messages.export import BadExport
from shared.runtime.logs import configure_logs

NEGATIVE = 1  # a refusal, or the answer is no
CANNOT = 2  # wrong usage, or nobody to ask
INTERRUPTED = 130  # as shells report Ctrl-C

_EXPECTED = (ElasticFlowError, InvalidJob, PackagingFailed, BadExport, Undecodable)


class _Eflow(TyperGroup):
    """Turns what may go wrong below into exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # whoever read our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except _EXPECTED as error:
            note(f"eflow: {error}")
            if not isinstance(error, InvalidJob | UnknownJob | UnknownQuote):
                raise typer.Exit(CANNOT) from None
            if ctx.meta.get(AS_JSON):  # no is an answer, too
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
        print(f"eflow {importlib.metadata.version('elasticflow')}")
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


app.command()(up.up)
app.command()(down.down)
app.command()(configure.configure)
app.command()(submit.submit)
app.command()(submit.quote)
app.command()(profile.profile)
app.command()(jobs.jobs)
app.command()(jobs.cancel)
app.command()(amend.amend)
app.command()(scale.scale_out)
app.command()(scale.scale_in)
app.command()(checkpoint.checkpoint)
app.command()(watch.watch)
app.command()(logs.logs)
app.command()(nodes.nodes)
app.add_typer(events.app, name="events")
app.command()(replay.replay)
app.command(context_settings=simulate.SETTINGS)(simulate.simulate)
app.command()(why.why)

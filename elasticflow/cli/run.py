"""`eflow run`: a job in this process, without a pool."""

import bdb
import os
import pdb
import time
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import elasticflow
from elasticflow.cli.command_options import Json
from elasticflow.cli.job_options import SubmissionOptions
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.terminal_output import note, print_json, say_line
from elasticflow.errors import TrainingRefused
from elasticflow.sdk.local_run import run_locally
from elasticflow.sdk.submission import load
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.extras import require_extra
from elasticflow.shared.library_imports import INTERRUPTED
from elasticflow.shared.messages.event_summary import counted

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as workers have it: the same bits
_OURS = Path(elasticflow.__file__).parent


class Device(StrEnum):
    """Devices as a command line spells them."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


@takes_tables
def run(
    target: Annotated[
        str,
        typer.Argument(metavar="FILE[:CLASS]|MODULE:CLASS", help="Your subclass of ElasticJob.", show_default=False),
    ],
    options: SubmissionOptions,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", show_default=False, help="Write model.pt and the job's files there."),
    ] = None,
    device: Annotated[Device, typer.Option("--device", help="auto: a GPU if torch finds one.")] = Device.AUTO,
    virtual_nodes: Annotated[
        int | None,
        typer.Option(
            "--virtual-nodes",
            metavar="N",
            min=1,
            show_default=False,
            help="Cut a batch into so many parts, as `eflow explain` names them for a job in a pool. Default: as the "
            "class says, else up to 8.",
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--pdb", help="Enter the debugger where the job's code raises an error.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a job in this process, without a pool, one step after another.

    It ends with the same bits as in a pool, where it has as many virtual
    nodes. breakpoint() in your code works; each part of the batch is a call
    of train(). Ctrl-C ends it after the present step. Exit code 1 if the job
    fails.

    \b
    Examples:
      eflow run train.py --iterations 10
      eflow run train.py:Digits --set learning_rate=0.05 --out digits
      eflow run train.py --pdb
      python -m pdb -m elasticflow run train.py
    """
    require_extra("train", "eflow run")  # before the job's module imports torch
    os.environ.update(_ONE_THREAD)  # before the job's module is imported
    job = options.apply(load(target, workdir=options.workdir)[0])
    began_s = time.monotonic()
    try:
        ended = run_locally(
            job, out=out, device=device.value, virtual_nodes=virtual_nodes or 0, show_progress=not as_json
        )
    except TrainingRefused as error:
        note(f"eflow: the job fails: {error}")
        raise typer.Exit(1) from None
    except (ElasticFlowError, elasticflow.InvalidJob):
        raise
    except bdb.BdbQuit as error:
        where = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
        note(f"eflow: left the debugger{where}; nothing was kept")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        note(_of_users_code(error), end="")
        if debug:
            pdb.post_mortem(error.__traceback__)
        raise typer.Exit(1) from None
    if as_json:
        print_json(
            {
                "iteration": ended.iteration,
                "condition": ended.condition,
                "metrics": dict(ended.metrics),
                "folder": ended.folder,
                "virtual_nodes": ended.virtual_nodes,
            }
        )
        return
    metrics = "".join(f"; {name} {value:.4g}" for name, value in ended.metrics.items())
    say_line(f"trained {counted(ended.iteration, 'iteration')} in {time.monotonic() - began_s:.1f} s{metrics}", "green")
    if ended.folder is not None:
        say_line(f"model  {ended.folder / 'model.pt'}")
    if virtual_nodes is None and not job.virtual_nodes and ended.virtual_nodes:
        say_line(
            f"bits   of {ended.virtual_nodes} virtual nodes; a pool may measure another number: "
            "`eflow explain` names it, and --virtual-nodes takes it"
        )


def _of_users_code(error: Exception) -> str:
    """The traceback without the frames of the engine."""
    told = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = told
    while part is not None:
        users = [frame for frame in part.stack if not Path(frame.filename).is_relative_to(_OURS)]
        part.stack = traceback.StackSummary.from_list(users or part.stack)
        part = part.__cause__
    return "".join(told.format())

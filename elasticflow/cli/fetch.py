"""`eflow fetch`: the model and the files of a job."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from elasticflow.cli import completion
from elasticflow.cli.command_options import Json, OwnerOptions, run
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.option_values import duration_of
from elasticflow.cli.terminal_output import note, plain, print_json, progress_bar, say_line
from elasticflow.client.artifacts import STORED_TIMEOUT_S
from elasticflow.history.formatting import bytes_in_words, left_files_in_words
from elasticflow.sdk.fetching import Fetched, ModelFormat, fetch_with


class _Format(StrEnum):
    TORCH = "torch"
    SAFETENSORS = "safetensors"


@takes_tables
def fetch(
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=completion.jobs)],
    model_format: Annotated[
        _Format, typer.Option("--as", help="Format of the model. safetensors needs the extra of this name.")
    ] = _Format.TORCH,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", show_default=False, help="Folder to write. Default: the job's name."),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option("--timeout", metavar="TIME", help="The longest wait until the files are stored. Default: 10m."),
    ] = "",
    where: OwnerOptions = OwnerOptions(),
    as_json: Json = False,
) -> None:
    """Fetch the model of a job and the files that it wrote into its working
    folder and its artifact folder. No storage is shared with the nodes.

    Of a job that trains, the model as it is now: its workers write a checkpoint
    first. Exit code 1 if nothing is stored.

    \b
    Examples:
      eflow fetch digits-3f9a1c
      eflow fetch digits-3f9a1c --as safetensors --to models/digits
      eflow fetch digits-3f9a1c --json | jq -r .model
    """
    longest = duration_of(timeout, "--timeout") or STORED_TIMEOUT_S
    folder = to or Path(job_id)
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is a file; name another folder", param_hint="--to")
    kind: ModelFormat = model_format.value
    with progress_bar("bytes") as advance:
        fetched = run(lambda client: fetch_with(client, job_id, folder, kind, timeout=longest, on_bytes=advance), where)
    if as_json:
        print_json(plain(fetched))
    else:
        show(fetched)
    raise typer.Exit(0 if fetched.model is not None or fetched.files else 1)


def show(fetched: Fetched) -> None:
    if fetched.model is not None:
        size = bytes_in_words(fetched.model.stat().st_size)
        say_line(f"model  {fetched.model}: {size}, iteration {fetched.iteration}", "green")
    else:
        say_line(f"model  none: {fetched.why_no_model}", "yellow")
    for file in fetched.files:
        say_line(f"file   {file}: {bytes_in_words(file.stat().st_size)}")
    if fetched.model is None and not fetched.files:
        why = "none of those that it wrote is stored" if fetched.num_unstored else "it wrote none"
        say_line(f"file   none: {why}", "yellow")
    for file in fetched.unstored:
        note(f"eflow: not stored: {file.path}: {file.reason}")
    if (more := fetched.num_unstored - len(fetched.unstored)) > 0:
        note(f"eflow: and {more} more files are not stored")
    if fetched.left_on:
        note(f"eflow: {left_files_in_words(fetched.left_on, fetched.node_id)}")

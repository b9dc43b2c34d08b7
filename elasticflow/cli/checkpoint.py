"""`eflow checkpoint`."""

from pathlib import Path
from typing import Annotated

import typer

from elasticflow.cli.command_options import DataDir, Json, NatsUrl, Pool, Tenant, run
from elasticflow.cli.terminal_output import plain, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.client.replies import CheckpointReply
from elasticflow.history.formatting import bytes_in_words
from elasticflow.shared.messages.events import CheckpointRejected, CheckpointUpToDate, CheckpointWritten


def checkpoint(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    tenant: Tenant = "",
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint of a job now, e.g. before the maintenance of a machine.

    The job trains on meanwhile. The command returns once the checkpoint is complete on
    the disk. If the job does not train, it prints the newest checkpoint. Exit code 1 if
    there is none.

    \b
    Examples:
      eflow checkpoint digits-3f9a1c
      eflow checkpoint digits-3f9a1c --json | jq -r .file
    """

    async def ask(client: Client) -> tuple[CheckpointReply, Path | None]:
        folder = client.endpoint.data_dir
        return await client.checkpoint(job_id), None if folder is None else folder / "checkpoints" / job_id

    answer, folder = run(ask, nats_url=nats_url, pool=pool, data_dir=data_dir, tenant=tenant)
    exists = isinstance(answer, CheckpointWritten) or (
        isinstance(answer, CheckpointUpToDate) and answer.iteration > 0
    )
    if as_json:
        print_json(
            {"exists": exists, **plain(answer), **({"folder": str(folder)} if folder and exists else {})}
        )
    else:
        _show(answer, folder)
    raise typer.Exit(0 if exists else 1)


def _show(answer: CheckpointReply, folder: Path | None) -> None:
    match answer:
        case CheckpointWritten():
            say_line(f"checkpoint  {answer.job_id}: iteration {answer.iteration}", "green")
            say_line(f"  {bytes_in_words(answer.num_bytes)} in {answer.file}")
        case CheckpointUpToDate(iteration=0):
            say_line(f"no checkpoint: {answer.job_id} has none so far", "yellow")
        case CheckpointUpToDate():
            where = f", in {folder}" if folder else ""
            say_line(
                f"checkpoint  {answer.job_id} does not train now; its newest is of iteration {answer.iteration}{where}"
            )
        case CheckpointRejected():
            say_line(f"no checkpoint: {answer.job_id}: {answer.explanation}", "yellow")
        case _:
            say_line(f"no checkpoint: {answer.job_id}: writing it failed: {answer.explanation}", "red")

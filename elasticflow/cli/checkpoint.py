"""`eflow checkpoint`."""

from pathlib import Path
from typing import Annotated

import typer

from elasticflow.answers import Checkpointing
from elasticflow.cli.options import DataDir, Json, NatsUrl, Pool, Tenant, run
from elasticflow.cli.output import plain, print_json, say_line
from elasticflow.client import Client
from elasticflow.phrases import bytes_in_words
from shared.messages.events import CheckpointKept, CheckpointRefused, CheckpointWritten


def checkpoint(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    tenant: Tenant = "",
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Keep the state of a job now, before a machine is touched, say; it trains on
    meanwhile. Answers when the checkpoint is whole on the disk.

    Of a job that does not train now: which checkpoint is its newest. Exit code 1
    if there is none.

    \b
    Examples:
      eflow checkpoint digits-3f9a1c
      eflow checkpoint digits-3f9a1c --json | jq -r .file
    """

    async def ask(client: Client) -> tuple[Checkpointing, Path | None]:
        folder = client.endpoint.data_dir
        return await client.checkpoint(job_id), None if folder is None else folder / "checkpoints" / job_id

    answer, folder = run(ask, nats_url=nats_url, pool=pool, data_dir=data_dir, tenant=tenant)
    kept = isinstance(answer, CheckpointWritten) or (
        isinstance(answer, CheckpointKept) and answer.iteration > 0
    )
    if as_json:
        print_json({"kept": kept, **plain(answer), **({"folder": str(folder)} if folder and kept else {})})
    else:
        _show(answer, folder)
    raise typer.Exit(0 if kept else 1)


def _show(answer: Checkpointing, folder: Path | None) -> None:
    match answer:
        case CheckpointWritten():
            say_line(f"checkpoint  {answer.job_id}: iteration {answer.iteration}", "green")
            say_line(f"  {bytes_in_words(answer.num_bytes)} in {answer.file}")
        case CheckpointKept(iteration=0):
            say_line(f"no checkpoint: {answer.job_id} has none so far", "yellow")
        case CheckpointKept():
            where = f", in {folder}" if folder else ""
            say_line(
                f"checkpoint  {answer.job_id} does not train now; its newest is of iteration {answer.iteration}{where}"
            )
        case CheckpointRefused():
            say_line(f"no checkpoint: {answer.job_id}: {answer.explanation}", "yellow")
        case _:
            say_line(f"no checkpoint: {answer.job_id}: the disk did not take it: {answer.explanation}", "red")

"""`eflow events`: the ledger, message by message; its subcommands write it into a file, or into archives."""

import asyncio
import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from elasticflow.cli import completion
from elasticflow.cli.command_options import Json, LedgerOptions, PoolOptions, read, run
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.terminal_output import note, print_json, progress_bar, say_line
from elasticflow.client.archive_ledger import archive as archive_ledger
from elasticflow.client.client import Client
from elasticflow.client.ledger import ExportedLedger, write_ledger
from elasticflow.history.event_text import event_rows
from elasticflow.shared.messages.event_summary import counted
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.times import clock_time

app = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
@takes_tables
def events(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new messages as they arrive.")] = False,
    job: Annotated[
        str,
        typer.Option(
            "--job", metavar="JOB", help="Show only events about this job.", autocompletion=completion.jobs_and_loads
        ),
    ] = "",
    first: Annotated[int, typer.Option("--from", min=1, metavar="SEQ", help="First sequence to show.")] = 1,
    ledger: LedgerOptions = LedgerOptions(),
    as_json: Json = False,
) -> None:
    """Show the ledger, message by message: every decision and every event, with
    its sequence and time.

    With --json one JSON array; with --json --follow one JSON value a line.

    \b
    Examples:
      eflow events --job digits-3f9a1c
      eflow events --follow --from 120
      eflow events --file run.ledger
      eflow events export run.ledger
    """
    if context.invoked_subcommand is not None:
        return
    if follow and ledger.file is not None:
        raise typer.BadParameter("a file gets no new messages; leave --follow out", param_hint="--follow")

    async def show(client: Client | ExportedLedger) -> None:
        rows: list[dict[str, Any]] = []
        up_to = None if follow else await client.last_sequence()
        collects = as_json and not follow  # nothing is printed before the end
        async with contextlib.AsyncExitStack() as stack:
            advance = stack.enter_context(progress_bar("messages")) if collects else None
            entries = client.entries(after_sequence=first - 1, up_to=up_to)
            await stack.enter_async_context(contextlib.aclosing(entries))
            async for entry in entries:
                if advance is not None:
                    advance(entry[0].sequence, up_to or 0)
                for row in event_rows(*entry, job):
                    if not as_json:
                        say_line(event_line(row))
                    elif follow:
                        print_json(row)
                    else:
                        rows.append(row)
        if as_json:
            print_json(rows)

    read(show, ledger)


@app.command()
@takes_tables
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; an existing one is replaced.")],
    where: PoolOptions = PoolOptions(),
    as_json: Json = False,
) -> None:
    """Write the whole ledger into a file, which can be replayed without NATS.

    \b
    Examples:
      eflow events export run.ledger
      eflow replay --file run.ledger --verify
      eflow explain digits-3f9a1c --file run.ledger
    """

    async def write(client: Client) -> int:
        with progress_bar("messages") as advance:
            return await write_ledger(client, file, on_message=advance)

    count = run(write, where)
    if as_json:
        print_json({"file": str(file), "messages": count, "bytes": file.stat().st_size})
    else:
        note(f"{counted(count, 'message')} in {file}")


@app.command()
@takes_tables
def archive(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Of all archives of this pool; back it up: nothing else has them.")
    ],
    delete: Annotated[
        bool, typer.Option("--delete", help="Also delete what the archives hold, after all of them were checked.")
    ] = False,
    where: PoolOptions = PoolOptions(),
    as_json: Json = False,
) -> None:
    """Begin a new epoch: write the ledger so far into a compressed file, and store
    a snapshot from which services of any later version start.

    Do it before each upgrade, or once a week. With EF_ARCHIVES=FOLDER, `eflow
    events`, `replay`, `explain` and `report` read the archives first.

    \b
    Examples:
      eflow events archive /backup/ledger
      eflow events archive /backup/ledger --delete
      EF_ARCHIVES=/backup/ledger eflow replay --verify
    """
    endpoint = where.endpoint()
    with progress_bar("messages") as advance:
        archiving = archive_ledger(
            endpoint.nats_url, endpoint.pool, folder, SystemClock(), delete=delete, on_message=advance
        )
        archived = asyncio.run(archiving)
    if as_json:
        print_json(asdict(archived))
    elif archived.file:
        note(f"{counted(archived.num_messages, 'message')} in {archived.file}; the epoch begins after {archived.up_to}")
    else:
        note(f"nothing new to archive: the epoch begins after {archived.up_to}")


def event_line(row: dict[str, Any]) -> str:
    """ "   12  18:02:01  allocator  AllocationDecided  num_gpus_by_job={...}"."""
    fields = "  ".join(f"{name}={value}" for name, value in row.get("fields", {}).items() if name != "at_s").replace(
        "\n", "\\n"
    )
    return f"{row['sequence']:>6}  {clock_time(row['at_s'])}  {row['from']:<9}  {row['type']:<18}  {fields}".rstrip()

"""`eflow explain`: the decisions about one job, in words."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from elasticflow.cli.command_options import DataDir, Json, NatsUrl, Pool, run_at
from elasticflow.cli.terminal_output import print_json, say_line
from elasticflow.client.client import Client
from elasticflow.client.ledger_file import read_ledger
from elasticflow.client.ledger_view import LedgerEntry
from elasticflow.client.pool_endpoint import find_endpoint
from elasticflow.errors import UnknownJob
from elasticflow.history.job_history import HistoryEntry, story
from elasticflow.sdk.times import clock_time


def explain(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="An exported ledger instead of the live one."),
    ] = None,
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Explain each decision about a job: what was promised on which numbers, each change of its
    GPUs and the cause of it, crashes, risks, and the end with its margin.

    \b
    Examples:
      eflow explain digits-3f9a1c
      eflow explain digits-3f9a1c --file run.ledger
      eflow explain digits-3f9a1c --json | jq -r '.[].text'
    """
    if file is not None:
        entries, unknown = read_ledger(file), UnknownJob(job_id, str(file), f"eflow replay {file}")
    else:
        endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
        entries, unknown = run_at(endpoint, _ledger), UnknownJob(job_id, f"pool {endpoint.pool}")
    told = story(((stored.sequence, stored.stored_at_s, message) for stored, message in entries), job_id)
    if not told:
        raise unknown
    if as_json:
        print_json(list(told))
        return
    for sentence in told:
        say_line(sentence_line(sentence))


async def _ledger(client: Client) -> tuple[LedgerEntry, ...]:
    async with contextlib.aclosing(client.entries(up_to=await client.last_sequence())) as entries:
        return tuple([entry async for entry in entries])


def sentence_line(sentence: HistoryEntry) -> str:
    """ "18:02:01  #12  admitted: ..."."""
    return f"{clock_time(sentence.at_s)}  #{sentence.sequence:<5} {sentence.text}"

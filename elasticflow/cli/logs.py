"""`eflow logs`: the output of a job's workers."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from elasticflow.cli import completion
from elasticflow.cli.command_options import DataDir, Json, NatsUrl, Pool, run_at
from elasticflow.cli.decision_output import show_last_lines
from elasticflow.cli.terminal_output import note, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint, find_endpoint
from elasticflow.client.worker_logs import LogReader
from elasticflow.shared.state.job import Job

_POLL_S = 0.3


def logs(
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=completion.jobs)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the job has ended.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, metavar="N", help="Show only this worker.")] = None,
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the logs of a job's workers, each line with its generation and rank.

    The files are in the pool's data folder. If that is on another machine, the
    last lines of a failed worker still come from the ledger. With --json --follow
    one JSON value a line; the last one says how the job ended.

    \b
    Examples:
      eflow logs digits-3f9a1c
      eflow logs -f digits-3f9a1c
      eflow logs digits-3f9a1c --rank 0 | grep loss
    """
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    job = run_at(endpoint, lambda client: client.job(job_id))
    folder = endpoint.data_dir / "logs" / job_id if endpoint.data_dir else None
    reader = LogReader(folder, rank)
    if as_json and not follow:
        print_json(_end(job) | {"lines": list(reader.new_lines(to_the_end=True))})
        return
    show = _show_as_json if as_json else say_line
    goes_on = follow and job.live
    _print_new(reader, show, to_the_end=not goes_on)
    if goes_on:
        job = _follow(endpoint, job_id, reader, show)
    if as_json:
        print_json(_end(job))
        return
    if reader.silent:
        _explain_silence(job, folder)
    if job.explanation:  # the logs do not say that a job stalled or was cancelled
        note(f"eflow: job {job_id} {job.phase.value}: {job.explanation}")


def _end(job: Job) -> dict[str, str]:
    return {"job_id": job.job_id, "error": job.explanation, "traceback": job.traceback, "last_lines": job.last_lines}


def _show_as_json(line: str) -> None:
    print_json({"line": line})


def _follow(endpoint: Endpoint, job_id: str, reader: LogReader, show: Callable[[str], None]) -> Job:
    """Print new lines until the job has ended, then the rest. Returns the ended job."""

    async def printing(client: Client) -> Job:
        ended = asyncio.create_task(client.wait(job_id))
        try:
            while not ended.done():
                _print_new(reader, show, to_the_end=False)
                await asyncio.wait([ended], timeout=_POLL_S)
            _print_new(reader, show, to_the_end=True)
            return await ended
        finally:
            ended.cancel()

    return run_at(endpoint, printing)


def _print_new(reader: LogReader, show: Callable[[str], None], *, to_the_end: bool) -> None:
    for line in reader.new_lines(to_the_end=to_the_end):
        show(line)


def _explain_silence(job: Job, folder: Path | None) -> None:
    where = f"no log files in {folder}" if folder else "the pool's data folder is not known here (--data-dir)"
    note(f"eflow: {where}; job {job.job_id} is {job.phase.value}")
    show_last_lines(job.last_lines or job.traceback)

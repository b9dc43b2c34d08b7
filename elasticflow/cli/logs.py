"""`eflow logs`: the output of a job's workers."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Annotated

import typer

from elasticflow.cli import completion
from elasticflow.cli.command_options import Json, PoolOptions, run_at
from elasticflow.cli.decision_output import show_last_lines
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.terminal_output import note, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.client.worker_logs import FileLogs, LogReader, StoredLogs, log_folder
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState

_POLL_S = 0.3
_COMPLETE_S = 15.0  # after the end of a job, its nodes publish its last lines


@takes_tables
def logs(
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=completion.jobs)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the job has ended.")] = False,
    rank: Annotated[int, typer.Option("--rank", min=0, metavar="N", help="Show this worker.")] = 0,
    all_workers: Annotated[bool, typer.Option("--all-workers", help="Show all workers.")] = False,
    where: PoolOptions = PoolOptions(),
    as_json: Json = False,
) -> None:
    """Show the log of a job's first worker, each line with its generation and rank;
    of a progress bar its last state.

    The lines are in the pool's data folder, in logs/JOB, also once the pool is
    down; this command asks the running pool which of them are the job's. If the
    folder is on another machine, they come through NATS: the newest 2 MB of the
    job on each node. With --json
    --follow one JSON value a line; the last one says how the job ended.

    \b
    Examples:
      eflow logs digits-3f9a1c
      eflow logs -f digits-3f9a1c
      eflow logs digits-3f9a1c --all-workers | grep loss
      eflow logs digits-3f9a1c --rank 3
    """
    endpoint = where.endpoint()
    only_rank = None if all_workers else rank
    collected: list[str] = []
    show: Callable[[str], None] = say_line
    if as_json:
        show = _show_as_json if follow else collected.append

    async def printing(client: Client) -> tuple[Job, bool]:
        job = await client.job(job_id)
        reader = LogReader(log_folder(endpoint.data_dir, job), only_rank)
        lines = FileLogs(reader, job, follow=follow) if reader.has_files else client.stored_logs(job, only_rank)
        return await _print(client, lines, job, show, follow=follow), lines.silent

    job, is_silent = run_at(endpoint, printing)
    if as_json:
        print_json(_end(job) | ({} if follow else {"lines": collected}))
        return
    folder = log_folder(endpoint.data_dir, job)
    if is_silent:
        _explain_silence(job, folder)
    num_others = len(LogReader(folder, None).ranks - {rank})
    if num_others and not all_workers:
        note(f"eflow: {num_others} other worker{'s' if num_others > 1 else ''} wrote a log, too: --all-workers")
    if job.explanation:  # the logs do not say that a job stalled or was cancelled
        note(f"eflow: job {job_id} {job.phase.value}: {job.explanation}")


def _end(job: Job) -> dict[str, str]:
    return {"job_id": job.job_id, "error": job.explanation, "traceback": job.traceback, "last_lines": job.last_lines}


def _show_as_json(line: str) -> None:
    print_json({"line": line})


async def _print(
    client: Client, lines: FileLogs | StoredLogs, job: Job, show: Callable[[str], None], *, follow: bool
) -> Job:
    """Print what there is; with follow, new lines until the job has ended. Returns the job as it is then."""
    newest = await client.state()
    await _print_new(lines, newest, show)
    if not (follow and job.live):
        return job

    async def until_ended() -> Job:
        nonlocal newest
        async with aclosing(client.states()) as states:
            async for newest in states:
                if newest.has_later_job(job):
                    return job
                now = newest.job(job.job_id)
                if now is not None and not now.live:
                    return now
        raise AssertionError("states() never ends")

    ended = asyncio.create_task(until_ended())
    try:
        while not ended.done():
            await _print_new(lines, newest, show)
            await asyncio.wait([ended], timeout=_POLL_S)
        job = await ended
        with suppress(TimeoutError):
            async with asyncio.timeout(_COMPLETE_S):
                await _print_new(lines, newest, show)
                while not lines.complete:
                    await asyncio.sleep(_POLL_S)
                    await _print_new(lines, newest, show)
        return job
    finally:
        ended.cancel()


async def _print_new(lines: FileLogs | StoredLogs, state: PoolState, show: Callable[[str], None]) -> None:
    async for line in lines.new_lines(state):
        show(line)


def _explain_silence(job: Job, folder: Path | None) -> None:
    where = f"no log files in {folder}" if folder else "the pool's data folder is not known here (--data-dir)"
    note(f"eflow: {where}, and no lines in NATS; job {job.job_id} is {job.phase.value}")
    show_last_lines(job.last_lines or job.traceback)

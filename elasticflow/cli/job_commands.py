"""Commands about one job: `eflow cancel`, `eflow amend`, `eflow checkpoint`, `eflow explain`.

`eflow cancel` and `eflow explain` take a padding load, too.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from elasticflow.cli import completion
from elasticflow.cli.command_options import Json, LedgerOptions, OwnerOptions, naming_owner, read, run
from elasticflow.cli.job_options import NumIterations, When
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.option_values import deadline_of, require_future
from elasticflow.cli.terminal_output import note, plain, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.client.replies import CheckpointReply
from elasticflow.history.formatting import bytes_in_words, schedule_in_words
from elasticflow.history.job_history import HistoryEntry, first_of_newest
from elasticflow.history.stored_history import folded
from elasticflow.shared.messages.close_names import close_names
from elasticflow.shared.messages.event_summary import counted
from elasticflow.shared.messages.events import (
    AmendRejected,
    CancelLoadRejected,
    CancelRejected,
    CheckpointRejected,
    CheckpointUpToDate,
    CheckpointWritten,
    JobAmended,
    JobCancelled,
    LoadCancelled,
)
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.pool import PoolState
from elasticflow.times import clock_time, moment_in_words


@takes_tables
def cancel(
    name: Annotated[str, typer.Argument(metavar="JOB|LOAD", autocompletion=completion.live_jobs_and_loads)],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept in the ledger.")] = "",
    where: OwnerOptions = OwnerOptions(),
    as_json: Json = False,
) -> None:
    """Stop a job or a padding load, and free its GPUs. Exit code 1 if there is
    nothing to cancel.

    The last checkpoint of a job is kept, the results of a load are deleted. A
    live job has precedence over a load of the same name.

    \b
    Examples:
      eflow cancel digits-3f9a1c
      eflow cancel digits-3f9a1c --reason "wrong learning rate"
      eflow cancel fold-91b0c4
    """

    async def ask(client: Client) -> JobCancelled | CancelRejected | LoadCancelled | CancelLoadRejected:
        state = await client.state()
        if name in state.loads and name not in state.live_jobs:
            return await naming_owner(client, name, await client.cancel_load(name, reason=reason))
        answer = await naming_owner(client, name, await client.cancel(name, reason=reason))
        if isinstance(answer, CancelRejected) and state.job(name) is None:
            return replace(answer, explanation=f"{answer.explanation}{_close_loads(name, state)}")
        return answer

    answer = run(ask, where)
    cancelled = isinstance(answer, JobCancelled | LoadCancelled)
    explanation = "" if isinstance(answer, JobCancelled | LoadCancelled) else answer.explanation
    if as_json:
        kind = "load_id" if isinstance(answer, LoadCancelled | CancelLoadRejected) else "job_id"
        print_json({kind: name, "cancelled": cancelled, "explanation": explanation})
    elif cancelled:
        say_line(f"cancelled {name}")
    else:
        say_line(f"not cancelled: {name}: {explanation}", "yellow")
    raise typer.Exit(0 if cancelled else 1)


def _close_loads(name: str, state: PoolState) -> str:
    """Admission has named close jobs."""
    close = close_names(name, state.loads)
    return (
        f"; there {'is a padding load' if len(close) == 1 else 'are padding loads'} {' and '.join(close)}"
        if close
        else ""
    )


@takes_tables
def amend(
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=completion.live_jobs)],
    deadline: When = "",
    iterations: NumIterations = None,
    where: OwnerOptions = OwnerOptions(),
    as_json: Json = False,
) -> None:
    """Change the deadline or the iterations of an admitted job, running or
    not.

    If that breaks a promise, admission rejects it: the existing promise is
    unchanged, and the exit code is 1.

    \b
    Examples:
      eflow amend digits-3f9a1c --deadline 10m
      eflow amend digits-3f9a1c --iterations 5000 --deadline 2h
    """
    wanted = deadline_of(deadline)
    require_future(wanted, SystemClock().now_s())

    async def ask(client: Client) -> JobAmended | AmendRejected:
        return await naming_owner(
            client,
            job_id,
            await client.amend(job_id, deadline=wanted.deadline, within=wanted.within, max_iterations=iterations),
        )

    answer = run(ask, where)
    amended = isinstance(answer, JobAmended)
    if as_json:
        print_json({"amended": amended, **plain(answer)})
    elif isinstance(answer, JobAmended):
        _show_amended(answer)
    else:
        _show_amend_rejected(answer)
    raise typer.Exit(0 if amended else 1)


def _show_amended(answer: JobAmended) -> None:
    say_line(f"amended  {answer.job_id}: {counted(answer.max_iterations, 'iteration')}", "green")
    if answer.deadline_s is not None:
        say_line(f"  deadline  {moment_in_words(answer.deadline_s, answer.at_s)}")
    if answer.minimum_satisfactory_share:
        say_line(f"  promised  {schedule_in_words(answer.minimum_satisfactory_share)}")
    if answer.gpu_type is not None:
        say_line(f"  moves to  {f'type {answer.gpu_type}' if answer.gpu_type else 'the first GPU type of the pool'}")


def _show_amend_rejected(answer: AmendRejected) -> None:
    say_line(f"not amended: {answer.job_id}: {answer.explanation}", "yellow")
    for offer in answer.offers:
        left_s = math.ceil(offer.deadline_s - answer.at_s)
        say_line(f"  take it  eflow amend {answer.job_id} --deadline {left_s}s --iterations {offer.max_iterations}")


@takes_tables
def checkpoint(
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=completion.live_jobs)],
    where: OwnerOptions = OwnerOptions(),
    as_json: Json = False,
) -> None:
    """Write a checkpoint of a job now, for example before the maintenance of a
    machine.

    The job trains on meanwhile. The command returns once the checkpoint is
    complete on the disk. If the job does not train, the command prints the
    newest checkpoint. Exit code 1 if there is none.

    \b
    Examples:
      eflow checkpoint digits-3f9a1c
      eflow checkpoint digits-3f9a1c --json | jq -r .file
    """

    async def ask(client: Client) -> tuple[CheckpointReply, Path | None]:
        folder = client.endpoint.data_dir
        answer = await naming_owner(client, job_id, await client.checkpoint(job_id))
        return answer, None if folder is None else folder / "checkpoints" / job_id

    answer, folder = run(ask, where)
    exists = isinstance(answer, CheckpointWritten) or (isinstance(answer, CheckpointUpToDate) and answer.iteration > 0)
    if as_json:
        print_json({"exists": exists, **plain(answer), **({"folder": str(folder)} if folder and exists else {})})
    else:
        _show_checkpoint(answer, folder)
    raise typer.Exit(0 if exists else 1)


def _show_checkpoint(answer: CheckpointReply, folder: Path | None) -> None:
    match answer:
        case CheckpointWritten():
            say_line(f"checkpoint  {answer.job_id}: iteration {answer.iteration}", "green")
            say_line(f"  {bytes_in_words(answer.num_bytes)} in {answer.file}")
        case CheckpointUpToDate(iteration=0):
            say_line(f"no checkpoint: {answer.job_id} has written none so far", "yellow")
        case CheckpointUpToDate():
            where = f", in {folder}" if folder else ""
            say_line(
                f"checkpoint  {answer.job_id} does not train now; its newest is of iteration {answer.iteration}{where}"
            )
        case CheckpointRejected():
            say_line(f"no checkpoint: {answer.job_id}: {answer.explanation}", "yellow")
        case _:
            say_line(f"no checkpoint: {answer.job_id}: writing it failed: {answer.explanation}", "red")


@takes_tables
def explain(
    name: Annotated[str, typer.Argument(metavar="JOB|LOAD", autocompletion=completion.jobs_and_loads)],
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Show each step of its profiling run, too, as --json does.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of a failure with the frames of elasticflow.")
    ] = False,
    earlier: Annotated[
        bool, typer.Option("--earlier", help="Show also the jobs that had this name before, as --json does.")
    ] = False,
    ledger: LedgerOptions = LedgerOptions(),
    as_json: Json = False,
) -> None:
    """Explain each decision about a job: the promise and its numbers, each
    change of its GPUs with the cause, crashes, risks, and the end with its
    margin. A crash or failure is followed by the last lines of that worker's log.

    Of a padding load: its opening with the prediction, or why it was rejected,
    its newest progress, and its end.

    \b
    Examples:
      eflow explain digits-3f9a1c
      eflow explain digits-3f9a1c --all
      eflow explain digits-3f9a1c --traceback
      eflow explain digits-3f9a1c --earlier
      eflow explain digits-3f9a1c --file run.ledger
      eflow explain digits-3f9a1c --json | jq -r '.[].text'
    """
    history = read(lambda source: source.known_history(name), ledger)
    if as_json:
        print_json(list(history))
        return
    num_earlier = 0 if earlier else first_of_newest(history)
    history = history[num_earlier:]
    for entry in history if everything else folded(history):
        say_line(history_line(entry))
        for line in (traceback and entry.traceback.splitlines()) or entry.lines:
            say_line(f"    | {line}")
    if num_earlier:
        note(f"eflow: another job had the name {name} before; --earlier shows its {counted(num_earlier, 'event')}, too")


def history_line(entry: HistoryEntry) -> str:
    """ "18:02:01  #12  admitted: ..."."""
    return f"{clock_time(entry.at_s)}  #{entry.sequence:<5} {entry.text}"

"""`eflow jobs` and `eflow cancel`."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from elasticflow.cli.options import DataDir, Json, NatsUrl, Pool, Tenant, run
from elasticflow.cli.output import bar, print_json, say, say_line, state_word, table
from elasticflow.client import Client
from elasticflow.times import clock_time, duration_in_words
from elasticflow.views import JobView, job_views
from shared.messages.events import CancelRefused, JobCancelled


def jobs(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the pool's jobs, in the order in which they were decided.

    \b
    Examples:
      eflow jobs
      eflow jobs --all
      eflow jobs --all --json | jq '.[] | select(.margin_s < 0) | .job_id'
    """

    async def look(client: Client) -> tuple[tuple[JobView, ...], float]:
        now_s = client.now_s()
        return job_views(await client.state(), now_s, ended=everything), now_s

    views, now_s = run(look, nats_url=nats_url, pool=pool, data_dir=data_dir)
    if as_json:
        print_json(list(views))
    elif views:
        say(jobs_table(views, now_s))
    else:
        say_line("no jobs" if everything else "no jobs now (`eflow jobs --all` shows those that have ended)")


def cancel(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept in the ledger.")] = "",
    tenant: Tenant = "",
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Stop a job and free its GPUs; its last checkpoint stays. Exit code 1 if there is nothing to cancel.

    \b
    Examples:
      eflow cancel digits-3f9a1c
      eflow cancel digits-3f9a1c --reason "wrong learning rate"
    """

    async def ask(client: Client) -> JobCancelled | CancelRefused:
        return await client.cancel(job_id, reason=reason)

    answer = run(ask, nats_url=nats_url, pool=pool, data_dir=data_dir, tenant=tenant)
    cancelled = isinstance(answer, JobCancelled)
    if as_json:
        explanation = "" if cancelled else answer.explanation
        print_json({"job_id": job_id, "cancelled": cancelled, "explanation": explanation})
    elif isinstance(answer, CancelRefused):
        say_line(f"not cancelled: {job_id}: {answer.explanation}", "yellow")
    else:
        say_line(f"cancelled {job_id}")
    raise typer.Exit(0 if cancelled else 1)


def jobs_table(views: tuple[JobView, ...], now_s: float) -> Table:
    return table(
        "JOB",
        "STATE",
        "CLASS",
        "GPUS",
        "PROGRESS",
        "ITERATION",
        "RATE/S",
        "FINISH",
        "DEADLINE",
        "MARGIN",
        right=("GPUS", "ITERATION", "RATE/S", "FINISH", "DEADLINE", "MARGIN"),
        rows=(_row(view, now_s) for view in views),
    )


def _row(view: JobView, now_s: float) -> tuple[Text | str, ...]:
    return (
        view.job_id,
        state_word(view.activity),
        view.job_class.replace("_", "-"),
        str(view.num_gpus or "-"),
        bar(view.progress),
        f"{view.iteration}/{view.max_iterations}",
        f"{view.iterations_per_s:.1f}" if view.iterations_per_s else "-",
        _time(view.expected_finish_s, now_s),
        _time(view.deadline_s, now_s),
        margin_word(view),
    )


def _time(at_s: float | None, now_s: float) -> str:
    return "-" if at_s is None else clock_time(at_s, now_s=now_s)


def margin_word(view: JobView) -> Text:
    """Time between the (expected) finish and the deadline: red if late, yellow if the monitor worries."""
    if view.margin_s is None:
        return Text("-")
    style = "red" if view.margin_s < 0 else "yellow" if view.at_risk else "green"
    return Text(duration_in_words(view.margin_s), style=style)

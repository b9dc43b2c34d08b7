"""`eflow loads`: the table of padding loads that `eflow watch` shows too."""

from typing import Annotated

import typer
from rich.table import Table

from elasticflow.cli.command_options import DataDir, Json, LedgerFile, NatsUrl, Pool, read
from elasticflow.cli.terminal_output import print_json, say, say_line
from elasticflow.client.client import Client
from elasticflow.client.exported_ledger import ExportedLedger
from elasticflow.history.load_views import LoadView, load_views
from elasticflow.history.tables import Column, bar, state_word, table_of
from elasticflow.sdk.times import clock_time, duration_in_words


def loads(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include loads that have ended.")] = False,
    file: LedgerFile = None,
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the pool's padding loads, in the order of their openings.

    TASKS counts those with a result, and all of them once that number is known.
    USEFUL is the part of the idle GPU time that admission predicted as useful.

    \b
    Examples:
      eflow loads
      eflow loads --all
      eflow loads --all --json | jq '.[] | select(.phase == "cancelled") | .load_id'
    """

    async def look(client: Client | ExportedLedger) -> tuple[tuple[LoadView, ...], float]:
        now_s = client.now_s()
        return load_views(await client.state(), now_s, ended=everything), now_s

    views, now_s = read(look, file=file, nats_url=nats_url, pool=pool, data_dir=data_dir)
    if as_json:
        print_json(list(views))
    elif views:
        say(loads_table(views, now_s))
        for line in starving_lines(views):
            say_line(line, "yellow")
    else:
        say_line("no padding loads" if everything else "no padding loads now (`eflow loads --all` shows ended ones)")


def loads_table(views: tuple[LoadView, ...], now_s: float) -> Table:
    return table_of(_COLUMNS, views, now_s)


def starving_lines(views: tuple[LoadView, ...]) -> list[str]:
    """For each load whose tasks fit no idle window, what to do."""
    return [
        f"{view.load_id} starves: a task takes {duration_in_words(view.task_s + view.overhead_s)}, and the longest "
        f"idle window lasted {duration_in_words(view.longest_window_s)}; `eflow suits` names a length that would fit"
        for view in views
        if view.starves and view.longest_window_s is not None
    ]


_COLUMNS: tuple[Column[LoadView], ...] = (
    Column(name="LOAD", cell=lambda view, _: view.load_id, least=16),
    Column(name="TENANT", cell=lambda view, _: view.tenant, rank=5),
    Column(name="STATE", cell=lambda view, _: state_word(view.phase)),
    Column(name="PROGRESS", cell=lambda view, _: bar(view.progress), rank=4),
    Column(name="TASKS", cell=lambda view, _: view.tasks_in_words, right=True),
    Column(
        name="USEFUL",
        cell=lambda view, _: "-" if view.useful_share is None else f"{view.useful_share:.1%}",
        right=True,
        rank=3,
    ),
    Column(name="FUNCTION", cell=lambda view, _: view.task_function, rank=6),
    Column(name="AGE", cell=lambda view, now_s: duration_in_words(now_s - view.opened_at_s), right=True, rank=2),
    Column(
        name="ENDED",
        cell=lambda view, now_s: "-" if view.ended_at_s is None else clock_time(view.ended_at_s, now_s=now_s),
        right=True,
        rank=1,
    ),
)

"""`eflow nodes`."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from elasticflow.cli.command_options import DataDir, Json, NatsUrl, Pool, run
from elasticflow.cli.terminal_output import print_json, say, say_line, table
from elasticflow.client.client import Client
from elasticflow.history.pool_views import NodeView, node_views, present_nodes
from elasticflow.sdk.times import duration_in_words


def nodes(
    all_nodes: Annotated[
        bool, typer.Option("--all", help="Include nodes that left, or were lost more than an hour ago.")
    ] = False,
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the pool's nodes, and the job on each of their GPUs.

    \b
    Examples:
      eflow nodes
      eflow nodes --all --json
    """

    async def look(client: Client) -> tuple[tuple[NodeView, ...], float]:
        return node_views(await client.state()), client.now_s()

    views, now_s = run(look, nats_url=nats_url, pool=pool, data_dir=data_dir)
    if not all_nodes:
        views = present_nodes(views, now_s)
    if as_json:
        print_json(list(views))
    elif views:
        say(nodes_table(views, now_s))
    else:
        say_line("no nodes yet (`python -m elasticflow.services.executor` on a machine adds it)")


def nodes_table(views: tuple[NodeView, ...], now_s: float) -> Table:
    return table(
        "NODE",
        "STATE",
        "DEVICE",
        "FREE",
        "GPUS",
        "JOBS",
        right=("FREE",),
        rows=(
            (
                view.node_id,
                alive_word(view, now_s) if view.alive else lost_word(view, now_s),
                view.device,
                f"{view.num_free_gpus if view.alive else 0}/{view.num_gpus}",
                gpu_cells(view),
                " ".join(sorted(set(view.jobs) - {""})) or "-",
            )
            for view in views
        ),
    )


def alive_word(view: NodeView, now_s: float) -> Text:
    """Alive; with slow GPUs, which ones and for how long they still count as slow."""
    slow = {index: until_s for index, until_s in sorted(view.slow_until_s.items()) if until_s > now_s}
    if not slow:
        return Text("alive", style="green")
    longest = duration_in_words(max(slow.values()) - now_s)
    return Text(f"GPU {', '.join(map(str, slow))} slow (for {longest})", style="yellow")


def lost_word(view: NodeView, now_s: float) -> Text:
    word, style = ("left", "bright_black") if view.left else ("lost", "red")
    return Text(f"{word} {duration_in_words(now_s - view.since_s)} ago", style=style)


def gpu_cells(view: NodeView) -> Text:
    """One cell a GPU: full if a job holds it, empty if it is free."""
    if not view.alive:
        return Text("x" * view.num_gpus, style="red")
    return Text("").join(
        Text("■", style="green") if job else Text("□", style="bright_black") for job in view.jobs
    )

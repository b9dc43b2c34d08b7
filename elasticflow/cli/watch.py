"""`eflow watch`: the pool, live. On a terminal it redraws one view, in a pipe it prints a line for each change."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from elasticflow.cli.command_options import Json, PoolOptions, run
from elasticflow.cli.listings import loads_table, nodes_table, starving_lines
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.terminal_output import print_json, say_line
from elasticflow.client.client import Client
from elasticflow.history.formatting import gpus_by_type_in_words, gpus_of_types
from elasticflow.history.pool_views import JobView, LoadView, job_views, load_views, node_views, present_nodes
from elasticflow.history.tables import jobs_table
from elasticflow.shared.messages.event_summary import counted
from elasticflow.shared.runtime.process.logs import configure_logs
from elasticflow.shared.runtime.process.terminal import console
from elasticflow.shared.state.pool import PoolState, num_gpus_by_type
from elasticflow.shared.state.promise import Promise
from elasticflow.times import clock_time, duration_in_words, moment_in_words

_REDRAW_S = 0.5
_RECENT_S = 60.0  # how long an ended job stays in view
_ALARMING = (Promise.AT_RISK, Promise.BROKEN, Promise.FAILED)
_STEPS = 10  # lines for the progress of one job, in a pipe


@takes_tables
def watch(
    once: Annotated[bool, typer.Option("--once", help="Show the pool as it is now, and exit.")] = False,
    where: PoolOptions = PoolOptions(),
    as_json: Json = False,
) -> None:
    """Watch nodes, jobs and padding loads: phase, GPUs, progress, speed, finish
    and margin. Ctrl-C ends the command.

    In a pipe it prints one line for each change; with --json one JSON value a
    line, the whole pool each time.

    \b
    Examples:
      eflow watch
      eflow watch --once
      eflow watch | tee pool.log
    """

    async def look(client: Client) -> None:
        if as_json:
            await _values(client, once)
        elif once:
            console().print(picture(await client.state(), client.now_s(), of_all=client.view is None))
        elif console().is_terminal:
            await _draw(client)
        else:
            await _lines(client)

    run(look, where)


async def _draw(client: Client) -> None:
    """Follow the ledger, and redraw at a steady rate, because estimates change without events."""
    configure_logs(level="error")  # other lines would break the view, which says them itself
    newest: list[PoolState] = [await client.state()]
    heard_s = client.now_s()

    async def follow() -> None:
        async for state in client.states():
            newest[0] = state

    following = asyncio.create_task(follow())
    try:
        with Live(console=console(), auto_refresh=False, screen=False) as live:
            while not following.done():
                now_s = client.now_s()
                heard_s = now_s if client.is_connected else heard_s
                shown = picture(newest[0], heard_s, of_all=client.view is None)
                live.update(frame(shown, heard_s, now_s), refresh=True)
                await asyncio.sleep(_REDRAW_S)
        await following
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


def frame(shown: Group, heard_s: float, now_s: float) -> Group:
    """What the terminal shows. heard_s: when there was a connection last.

    Its last row is empty: there the terminal writes ^C, which would begin a new row after a full one. The next frame
    would then be drawn a row too low.
    """
    return Group(*(() if heard_s == now_s else (_stale(heard_s, now_s),)), shown, Text())


def _stale(heard_s: float, now_s: float) -> Text:
    since = moment_in_words(heard_s, now_s)
    return Text(f"no connection to the pool since {since}; this is what it was then", style="bold red")


async def _lines(client: Client) -> None:
    seen: dict[str, tuple[object, ...]] = {}
    seen_loads: dict[str, tuple[object, ...]] = {}
    async with contextlib.aclosing(client.states()) as states:
        async for state in states:
            now_s = client.now_s()
            for line in changes(seen, job_views(state, now_s, ended=True), now_s):
                say_line(line)
            for line in load_changes(seen_loads, load_views(state, now_s, ended=True), now_s):
                say_line(line)


async def _values(client: Client, once: bool) -> None:
    async with contextlib.aclosing(client.states()) as states:
        async for state in states:
            now_s = client.now_s()
            print_json(
                {
                    "sequence": state.sequence,
                    "jobs": list(job_views(state, now_s, ended=True)),
                    "loads": list(load_views(state, now_s, ended=True)),
                    "nodes": list(node_views(state)) if client.view is None else [],
                }
            )
            if once:
                return


def picture(state: PoolState, now_s: float, *, of_all: bool = True) -> Group:
    """The whole pool: a headline, GPUs by type where they differ, nodes, jobs, and padding loads if any is live.

    of_all: False without the nodes, if the state has the jobs of one tenant only.
    """
    views = tuple(
        view
        for view in job_views(state, now_s, ended=True)
        if view.ended_at_s is None or now_s - view.ended_at_s < _RECENT_S
    )
    used, num_live = sum(view.num_gpus for view in views), len(state.live_jobs)
    whose = "" if of_all else " by your jobs"
    headline = Text.assemble(
        (clock_time(now_s), "bold"),
        f"   {used}/{state.num_gpus} GPUs in use{whose}   {counted(num_live, 'job')} live, "
        f"{len(state.ended_jobs)} ended   ledger at {state.sequence}",
    )
    by_type = num_gpus_by_type(state)
    types = (Text(f"GPUs by type: {gpus_by_type_in_words(by_type)}"),) if len(by_type) > 1 else ()
    jobs = jobs_table(views, now_s) if views else Text("no jobs now", style="bright_black")
    nodes = (nodes_table(present_nodes(node_views(state), now_s), now_s), Text()) if of_all else ()
    live_loads = load_views(state, now_s)
    loads = (Text(), loads_table(live_loads, now_s), *map(Text, starving_lines(live_loads))) if live_loads else ()
    return Group(headline, *types, Text(), *nodes, jobs, *loads)


def changes(seen: dict[str, tuple[object, ...]], views: tuple[JobView, ...], now_s: float) -> Iterator[str]:
    """A line for each job that has changed. seen: what each job looked like at the last call; updated here."""
    for view in views:
        mark = (
            view.activity_in_words,
            view.num_gpus,
            view.gpu_type,
            view.generation,
            view.promise,
            view.silent_s is not None,
            int(view.progress * _STEPS),
        )
        if seen.get(view.job_id) != mark:
            seen[view.job_id] = mark
            yield change_line(view, now_s)


def change_line(view: JobView, now_s: float) -> str:
    """ "18:03:01  digits  running  4 GPUs  120/300  12.3/s  finish in 15.2s  margin 40.1s"."""
    words = [clock_time(view.ended_at_s or now_s), view.job_id, view.activity_in_words]
    if view.num_gpus:
        words.append(gpus_of_types(view.num_gpus, view.gpu_type, view.num_added_gpus_by_type))
    if view.max_iterations:
        words.append(f"{view.iteration}/{view.max_iterations}")
    if view.iterations_per_s:
        words.append(f"{view.iterations_per_s:.1f}/s")
    if view.ended_at_s is None and view.expected_finish_s is not None:
        words.append(f"finish in {duration_in_words(view.expected_finish_s - now_s)}")
    if view.margin_s is not None:
        words.append(f"margin {duration_in_words(view.margin_s)}")
    if view.promise != Promise.NONE:
        words.append(view.promise.upper() if view.promise in _ALARMING else view.promise)
    if view.silent_s is not None:
        words.append(f"no progress reported for {duration_in_words(view.silent_s)}")
    if view.explanation:
        words.append(view.explanation)
    return "  ".join(words)


def load_changes(seen: dict[str, tuple[object, ...]], views: tuple[LoadView, ...], now_s: float) -> Iterator[str]:
    """Yield what `changes` yields, for padding loads: "18:03:01  fold-91b0c4  sealed  120/300 tasks"."""
    for view in views:
        mark = (view.phase, int(view.progress * _STEPS))
        if seen.get(view.load_id) != mark:
            seen[view.load_id] = mark
            words = (clock_time(view.ended_at_s or now_s), view.load_id, view.phase, f"{view.tasks_in_words} tasks")
            yield "  ".join(words if not view.explanation else (*words, view.explanation))

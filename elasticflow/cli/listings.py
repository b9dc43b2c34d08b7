"""`eflow jobs`, `eflow nodes` and `eflow loads`: the tables that `eflow watch` shows too."""

import math
import os
from dataclasses import replace
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from elasticflow.cli.command_options import Json, LedgerOptions, read
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.terminal_output import print_json, say, say_line
from elasticflow.client.client import Client
from elasticflow.client.ledger import ExportedLedger
from elasticflow.client.pool_endpoint import DEFAULT_TENANT
from elasticflow.history.formatting import limits_in_words
from elasticflow.history.pool_views import JobView, LoadView, NodeView, job_views, load_views, node_views, present_nodes
from elasticflow.history.tables import (
    Column,
    bar,
    fewer_names,
    jobs_table,
    ranked_sweep,
    state_word,
    sweep_table,
    table_of,
)
from elasticflow.shared.messages.close_names import did_you_mean
from elasticflow.shared.messages.event_summary import memory_in_words
from elasticflow.shared.state.nodes import slower_node_in_words
from elasticflow.shared.state.promise import Promise
from elasticflow.times import clock_time, duration_in_words, moment_in_words


@takes_tables
def jobs(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include jobs that have ended.")] = False,
    sweep: Annotated[
        str, typer.Option("--sweep", metavar="NAME", help="List the jobs of one sweep, ended ones too, the best first.")
    ] = "",
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="METRIC", help="Sort a sweep by this metric. Default: the one that ends its jobs."
        ),
    ] = "",
    ledger: LedgerOptions = LedgerOptions(),
    as_json: Json = False,
) -> None:
    """List the pool's jobs, in the order of admission's decisions.

    PROMISE is promised, at risk, kept, broken, failed or cancelled; - of a job
    without a promise. RATE/S is - while a job reports no progress.

    With --sweep, it lists the swept values and the metrics of each job, sorted
    by a metric.

    \b
    Examples:
      eflow jobs
      eflow jobs --all
      eflow jobs --sweep digits --by accuracy
      eflow jobs --all --file run.ledger
      eflow jobs --all --json | jq '.[] | select(.margin_s < 0) | .job_id'
    """

    async def look(client: Client | ExportedLedger) -> tuple[tuple[JobView, ...], float]:
        now_s = client.now_s()
        return job_views(await client.state(), now_s, ended=everything or bool(sweep)), now_s

    if by and not sweep:
        raise typer.BadParameter("it sorts the jobs of a sweep: add --sweep NAME", param_hint="--by")
    views, now_s = read(look, ledger)
    if sweep:
        _show_sweep(views, sweep, by, now_s, as_json=as_json)
    elif as_json:
        print_json(list(views))
    elif views:
        say(jobs_table(views, now_s))
        for line in (*risk_lines(views, now_s), *silence_lines(views)):
            say_line(line, "yellow")
        for line in limit_lines(views, now_s):
            say_line(line)
    else:
        say_line("no jobs" if everything else "no jobs now (`eflow jobs --all` shows those that have ended)")


def _show_sweep(views: tuple[JobView, ...], sweep: str, by: str, now_s: float, *, as_json: bool) -> None:
    """Raises typer.BadParameter for an unknown sweep or metric, with those that are known."""
    ranked = ranked_sweep(views, sweep, by)
    if not ranked.views:
        known = sorted({view.sweep for view in views} - {""})
        meant = did_you_mean(sweep, known) or ";"
        raise typer.BadParameter(
            f"no sweep {sweep}{meant} known sweeps: {', '.join(known) or 'none'}", param_hint="--sweep"
        )
    if by and ranked.ranking is None:
        reported = sorted({name for view in ranked.views for name in view.metrics})
        meant, metrics = did_you_mean(by, reported) or ";", ", ".join(reported) or "none so far"
        raise typer.BadParameter(f"no job of {sweep} reports {by}{meant} its metrics: {metrics}", param_hint="--by")
    if as_json:
        print_json(list(ranked.views))
        return
    say(sweep_table(ranked, now_s))
    num_live = sum(view.ended_at_s is None for view in ranked.views)
    trains = f"; {num_live} of {len(ranked.views)} jobs still run" if num_live else ""
    how = f"sorted by {ranked.ranking.in_words}" if ranked.ranking else "no job has reported a metric"
    say_line(f"{how}{trains}")


def silence_lines(views: tuple[JobView, ...]) -> list[str]:
    """The jobs that report no progress, although they should."""
    return [
        f"{view.job_id} has reported no progress for {duration_in_words(view.silent_s)}; "
        f"see what it does with: eflow logs {view.job_id}"
        for view in views
        if view.silent_s is not None
    ]


def risk_lines(views: tuple[JobView, ...], now_s: float) -> list[str]:
    """Each job at risk, with the command that amends it to a deadline that admission would promise, if any is known."""
    lines: list[str] = []
    for view in views:
        if view.promise != Promise.AT_RISK:
            continue
        earliest_s = view.earliest_deadline_s
        amend = ""
        if earliest_s is not None and earliest_s > now_s:
            wanted = f"--deadline {math.ceil(earliest_s - now_s)}s{_owner_words(view)}"
            amend = f"; admission would promise: eflow amend {view.job_id} {wanted}"
        lines.append(f"{view.job_id} is at risk of missing its deadline{amend}")
    return lines


def limit_lines(views: tuple[JobView, ...], now_s: float) -> list[str]:
    """The GPU limits that operators have set."""
    return [
        f"{view.job_id} is limited to {limits_in_words(view.bound, now_s)}; "
        f"clear that with: eflow scale-in {view.job_id} --release{_owner_words(view)}"
        for view in views
        if view.bound is not None
    ]


def _owner_words(view: JobView) -> str:
    """The option without which a command would not find the job: its tenant, if it is not the user's own."""
    own = os.environ.get("EF_TENANT", "") or DEFAULT_TENANT
    return "" if view.tenant == own else f" --tenant {view.tenant}"


@takes_tables
def nodes(
    all_nodes: Annotated[
        bool, typer.Option("--all", help="Include nodes that left, or were lost more than an hour ago.")
    ] = False,
    ledger: LedgerOptions = LedgerOptions(),
    as_json: Json = False,
) -> None:
    """List the pool's nodes, and the job on each of their GPUs.

    TYPE and MEMORY are those of each GPU of the node, as far as known. USE is
    the part of the last second in which its GPUs computed, HEAT that of the
    hottest; operators see both where NVML knows the GPUs. While a
    padding load is live, PADDING is the number of idle GPUs that its tasks may
    use. What the machine of a node cannot enforce of the isolation of its jobs
    follows in words.

    \b
    Examples:
      eflow nodes
      eflow nodes --all --json
    """

    async def look(client: Client | ExportedLedger) -> tuple[tuple[NodeView, ...], float]:
        views = node_views(await client.ledger.state())
        if isinstance(client, Client):
            reports = await client.gpu_reports(view.node_id for view in views if view.alive and view.device == "cuda")
            views = tuple(replace(view, gpus=reports.get(view.node_id, ())) for view in views)
        return views, client.now_s()

    views, now_s = read(look, ledger)
    if not all_nodes:
        views = present_nodes(views, now_s)
    if as_json:
        print_json(list(views))
    elif views:
        say(nodes_table(views, now_s))
        for line in (*slower_lines(views), *unenforced_lines(views)):
            say_line(line, "yellow")
    else:
        say_line("no nodes yet (`eflow node` on a machine adds it)")


def nodes_table(views: tuple[NodeView, ...], now_s: float) -> Table:
    """The table of nodes, with GPU types, GPU memory, isolation, padding loads and announced ends where any has one."""
    has_value = {
        _TYPE: any(view.gpu_type for view in views),
        _MEMORY: any(view.gpu_memory_bytes for view in views),
        _ISOLATION: any(view.isolation in ("limits", "namespaces") for view in views),
        _PADDING: any(view.num_padding_gpus for view in views),
        _USE: any(gpu.utilization is not None for view in views for gpu in view.gpus),
        _HEAT: any(gpu.temperature_c is not None for view in views for gpu in view.gpus),
        _UNTIL: any(view.alive and view.until_s is not None for view in views),
    }
    return table_of((column for column in _NODE_COLUMNS if has_value.get(column, True)), views, now_s)


def slower_lines(views: tuple[NodeView, ...]) -> list[str]:
    """The nodes whose type is probably wrong."""
    return [
        slower_node_in_words(view.node_id, view.gpu_type, view.slower_than_type)
        for view in views
        if view.alive and view.slower_than_type
    ]


def unenforced_lines(views: tuple[NodeView, ...]) -> list[str]:
    """What machines cannot enforce of the isolation that is wanted of them, each with its nodes."""
    nodes_by_sentence: dict[str, list[str]] = {}
    for view in views:
        for sentence in view.unenforced if view.alive and view.isolation != "none" else ():
            nodes_by_sentence.setdefault(sentence, []).append(view.node_id)
    return [f"{', '.join(node_ids)}: {sentence}" for sentence, node_ids in nodes_by_sentence.items()]


def alive_word(view: NodeView, now_s: float) -> Text:
    """Alive, draining, or awaited; with slow GPUs, which ones and for how long they still count as slow."""
    if view.draining:
        return Text("draining", style="yellow")
    if view.awaited:
        return Text("awaited", style="yellow")
    slow = {index: until_s for index, until_s in sorted(view.slow_until_s.items()) if until_s > now_s}
    if not slow:
        return Text("alive", style="green")
    if failing := [f"GPU {index} {view.failing[index]}" for index in slow if index in view.failing]:
        return Text("; ".join(failing), style="red")
    longest = duration_in_words(max(slow.values()) - now_s)
    return Text(f"GPU {', '.join(map(str, slow))} slow (for {longest})", style="yellow")


def lost_word(view: NodeView, now_s: float) -> Text:
    word, style = ("left", "bright_black") if view.left else ("lost", "red")
    return Text(f"{word} {duration_in_words(now_s - view.since_s)} ago", style=style)


def gpu_use(view: NodeView) -> str:
    """Of the GPUs whose driver tells, the mean."""
    known = [gpu.utilization for gpu in view.gpus if gpu.utilization is not None]
    return f"{sum(known) / len(known):.0%}" if known else "-"


def gpu_heat(view: NodeView) -> str:
    """The hottest GPU, and what lowers the clocks of any."""
    known = [gpu.temperature_c for gpu in view.gpus if gpu.temperature_c is not None]
    slowed = dict.fromkeys(reason for gpu in view.gpus for reason in gpu.throttled_by)
    return f"{max(known):.0f} °C{''.join(f', {reason}' for reason in slowed)}" if known else "-"


def gpu_cells(view: NodeView) -> Text:
    """One cell a GPU: full if a job holds it, empty if it is free."""
    if not view.alive:
        return Text("x" * view.num_gpus, style="red")
    return Text("").join(Text("■", style="green") if job else Text("□", style="bright_black") for job in view.jobs)


_TYPE: Column[NodeView] = Column(name="TYPE", cell=lambda view, _: view.gpu_type or "-", rank=4, least=8)
_MEMORY: Column[NodeView] = Column(
    name="MEMORY", cell=lambda view, _: memory_in_words(view.gpu_memory_bytes) or "-", right=True, rank=7
)
_ISOLATION: Column[NodeView] = Column(name="ISOLATION", cell=lambda view, _: view.isolation or "-", rank=8)
_PADDING: Column[NodeView] = Column(
    name="PADDING", cell=lambda view, _: str(view.num_padding_gpus or "-"), right=True, rank=6
)
_USE: Column[NodeView] = Column(name="USE", cell=lambda view, _: gpu_use(view), right=True, rank=5)
_HEAT: Column[NodeView] = Column(name="HEAT", cell=lambda view, _: gpu_heat(view), right=True, rank=9)
_UNTIL: Column[NodeView] = Column(
    name="UNTIL",
    cell=lambda view, now_s: "-" if view.until_s is None or not view.alive else moment_in_words(view.until_s, now_s),
    rank=3,
)
_NODE_COLUMNS: tuple[Column[NodeView], ...] = (
    Column(name="NODE", cell=lambda view, _: view.node_id, least=12),
    Column(
        name="STATE",
        cell=lambda view, now_s: alive_word(view, now_s) if view.alive else lost_word(view, now_s),
        least=8,
    ),
    Column(name="DEVICE", cell=lambda view, _: view.device, rank=5),
    _TYPE,
    _MEMORY,
    _ISOLATION,
    Column(
        name="FREE",
        cell=lambda view, _: f"{view.num_free_gpus if view.alive else 0}/{view.num_gpus}",
        right=True,
    ),
    _PADDING,
    _USE,
    _HEAT,
    _UNTIL,
    Column(name="GPUS", cell=lambda view, _: gpu_cells(view), rank=1),
    Column(
        name="JOBS",
        cell=lambda view, _: " ".join(sorted(set(view.jobs) - {""})) or "-",
        rank=2,
        least=12,
        shorten=fewer_names,
    ),
)


# --- `eflow loads`: the table of padding loads that `eflow watch` shows too ----------------------------


@takes_tables
def loads(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include loads that have ended.")] = False,
    ledger: LedgerOptions = LedgerOptions(),
    as_json: Json = False,
) -> None:
    """List the pool's padding loads, in the order of their openings.

    TASKS counts those with a result, and all of them once that number is known.
    USEFUL is the part of the idle GPU time that admission predicted as useful.

    \b
    Examples:
      eflow loads
      eflow loads --all
      eflow loads --all --json \\
        | jq '.[] | select(.phase == "cancelled") | .load_id'
    """

    async def look(client: Client | ExportedLedger) -> tuple[tuple[LoadView, ...], float]:
        now_s = client.now_s()
        return load_views(await client.state(), now_s, ended=everything), now_s

    views, now_s = read(look, ledger)
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
    """What to do for each load whose tasks fit no idle window."""
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

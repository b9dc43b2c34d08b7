"""The numbers as tables, a sheet for each part, on a terminal and in Markdown."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.report import json_text
from benchmarks.scheduling.decisions import POOLS
from benchmarks.scheduling.quality import gap_of

# --- one table, on a terminal and in Markdown ----------------------------------------------------------


WIDEST = 190  # columns of the widest table: no cell is folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table. rows: cells in the order of the columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def rich(self) -> Table:
        """The table for a terminal."""
        table = Table(title=self.title)
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _line(self.columns), _line(("---",) * len(self.columns))]
        return "\n".join([*lines, *map(_line, self.rows), ""])


def show(sheets: Iterable[Sheet], result: dict[str, Any], *, as_json: bool, out: Path | None = None) -> None:
    """Print the sheets, or the JSON object alone. out: a file that gets the object too."""
    text = json_text(result, out)
    if as_json:
        print(text)
    else:
        print_sheets(sheets)


def print_sheets(sheets: Iterable[Sheet]) -> None:
    console = Console()
    console.width = max(console.width, WIDEST)
    for sheet in sheets:
        console.print(sheet.rich())


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


# --- a sheet for each part -----------------------------------------------------------------------------


PUBLISHED = {  # numbers of others, on other machines, to compare with
    "simulation": "authors' simulator: > 22 min, 5.5 min in PyPy",
    "decision, all reported": "Sia: about 1 s",
    "whole": "KAI, 4,000 nodes: 2.3 s",
}
GOALS = {"decision, all reported": "<= 5 / 50 ms", "quote": "- / 100 ms", "whole": "<= 1,000 ms"}


def sheets(result: dict[str, Any]) -> Iterator[Sheet]:
    """A table for each part that was measured."""
    machine = result["machine"]
    if "quality" in result:
        yield _quality(result["quality"]["rows"])
        yield _gaps(result["quality"]["rows"])
        yield _totals(result["quality"]["totals"])
    if "simulations" in result:
        yield _simulations(result["simulations"], machine)
    if "decisions" in result:
        yield _decisions(result["decisions"], machine)
        yield _answers(result["decisions"]["answers"], machine)
    if "cycle" in result:
        yield _cycle(result["cycle"], machine)
    if "failures" in result:
        yield _failures(result["failures"])
    if "relaxations" in result:
        yield _relaxations(result["relaxations"]["policies"])
    if "costs" in result:
        yield _costs(result["costs"], machine)


def _quality(rows: list[dict[str, Any]]) -> Sheet:
    policies = tuple(rows[0]["ours"])
    return Sheet(
        title="Deadlines met (part of the bound), overhead `reference`",
        columns=("trace", "GPUs", "jobs", "alone", "bound", "hindsight", *policies, "late", "best baseline"),
        rows=tuple(_quality_row(row) for row in rows),
    )


def _quality_row(row: dict[str, Any]) -> tuple[str, ...]:
    scores: list[dict[str, Any]] = list(row["ours"].values())
    best = row["best_baseline"]
    return (
        *_where(row),
        f"{row['jobs']:,}",
        f"{row['feasible_alone']:,}",
        f"{row['bound']:,.1f}",
        f"{row['hindsight']:,}",
        *(f"{score['met']:,} ({score['fraction_of_bound']:.1%})" for score in scores),
        f"{sum(score['late'] for score in scores)}",
        f"{row['best_baseline_met']:,} ({best})" if best else "",
    )


def _gaps(rows: list[dict[str, Any]]) -> Sheet:
    """The gap of each policy: what is missing to the bound, and what it cost."""
    policies = tuple(rows[0]["ours"])
    return Sheet(
        title="The gap to the bound: won by another policy / by hindsight alone / by no known schedule",
        columns=(
            "trace",
            "GPUs",
            *policies,
            "GPU-hours: ours, hindsight, bound",
            "certificates wrong",
            "CPU: ours, bound, hindsight",
        ),
        rows=tuple(_gap_row(row) for row in rows),
    )


def _gap_row(row: dict[str, Any]) -> tuple[str, ...]:
    scores = row["ours"].values()
    wrong, checked = (sum(each[name] for each in scores) for name in ("certificate_failures", "certificates_checked"))
    return (
        *_where(row),
        *("{} / {} / {:.1f}".format(*gap_of(row, policy)) for policy in row["ours"]),
        _together((*(score["gpu_hours"] for score in scores), row["hindsight_gpu_hours"], row["bound_gpu_hours"])),
        f"{wrong} of {checked:,}",
        _together((*(score["cpu_s"] for score in scores), row["bound_cpu_s"], row["hindsight_cpu_s"])) + " s",
    )


def _together(numbers: Iterable[float | None]) -> str:
    """The numbers in one cell; what was not measured is left open."""
    return " / ".join("-" if number is None else f"{number:,.0f}" for number in numbers)


def _where(row: dict[str, Any]) -> tuple[str, str]:
    return row["trace"], f"{row['num_gpus']} ({row['scale']})"


def _totals(totals: dict[str, Any]) -> Sheet:
    return Sheet(
        title="Over all of them",
        columns=(
            "policy",
            "runs",
            "met",
            "late",
            "certificates wrong",
            "lowest part of the bound",
            "below a baseline",
        ),
        rows=tuple(
            (
                policy,
                f"{total['runs']}",
                f"{total['met']:,}",
                f"{total['late']}",
                f"{total['certificate_failures']} of {total['certificates_checked']:,}",
                f"{total['lowest_fraction_of_bound']:.1%}",
                f"{total['runs_below_best_baseline']}",
            )
            for policy, total in totals.items()
        ),
    )


def _simulations(runs: list[dict[str, Any]], machine: str) -> Sheet:
    return Sheet(
        title=f"Whole simulations on one core, {machine}; {PUBLISHED['simulation']} (itp_cluster01, elsewhere)",
        columns=("workload", "GPUs", "jobs", "certificates", "wall", "CPU", "met", "late", "a message"),
        rows=tuple(
            (
                f"{run['trace']}, {run['days']:.0f} days",
                f"{run['num_gpus']:,}",
                f"{run['jobs']:,}",
                "checked" if run["verified"] else "not checked",
                f"{run['wall_s']:.1f} s",
                f"{run['cpu_s']:.1f} s",
                f"{run['met']:,}",
                f"{run['late']}",
                f"{run['cpu_ms_a_message']:.2f} ms",
            )
            for run in runs
        ),
    )


def _decisions(decisions: dict[str, Any], machine: str) -> Sheet:
    rows = list[tuple[str, ...]]()
    for name in (name for name in POOLS if name in decisions):
        asked = decisions[name]
        pool = f"{asked['live_jobs']:,} jobs on {decisions['num_gpus']:,} GPUs, {name.replace('_', ' ')}"
        rows += _timed(asked, pool)
    return _times(f"Decisions on one core, {machine}", rows)


def _answers(pools: list[dict[str, Any]], machine: str) -> Sheet:
    return Sheet(
        title=f"Decisions in saturated pools of different sizes on one core, all reported, {machine}",
        columns=("live jobs", "GPUs", "answer", "decisions", "p50, CPU", "p99, CPU", "most, CPU"),
        rows=tuple(
            (
                f"{pool['live_jobs']:,}",
                f"{pool['num_gpus']:,}",
                answer,
                f"{pool['answers'][answer]}",
                *(f"{pool['cpu_ms'][answer][part]:.1f} ms" for part in ("p50", "p99", "max")),
            )
            for pool in pools
            for answer in sorted(pool["answers"].keys() - {"plain pass"})
        ),
    )


def _cycle(cycle: dict[str, Any], machine: str) -> Sheet:
    pool = f"{cycle['live_jobs']:,} jobs on {cycle['num_gpus']:,} GPUs"
    title = f"A whole planning cycle on one core, {machine}; its pool took {cycle['pool_built_cpu_s']:.0f} s"
    return _times(title, _timed(cycle, pool))


def _times(title: str, rows: Iterable[tuple[str, ...]]) -> Sheet:
    times = ("p50, CPU", "p99, CPU", "p50, wall", "p99, wall")
    columns = ("pool", "what", *times, "p50 in plain passes", "goal (p50 / p99)", "elsewhere")
    return Sheet(title=title, columns=columns, rows=tuple(rows))


def _timed(asked: dict[str, Any], pool: str) -> Iterator[tuple[str, ...]]:
    cpu_ms, wall_ms = asked["cpu_ms"], asked["wall_ms"]
    for what, times in cpu_ms.items():
        yield (
            pool,
            what,
            *(f"{spread[part]:.2f} ms" for spread in (times, wall_ms[what]) for part in ("p50", "p99")),
            f"{times['p50'] / cpu_ms['plain pass']['p50']:,.0f}",
            GOALS.get(what, ""),
            PUBLISHED.get(what, ""),
        )


def _failures(lives: dict[str, Any]) -> Sheet:
    return Sheet(
        title=f"Nodes that fail, one at a time, with {lives['reserve_nodes']} in reserve on {lives['num_gpus']} GPUs",
        columns=(
            "runs",
            "outages",
            "jobs",
            "admitted",
            "met",
            "late",
            "certificates wrong",
            "CPU a run",
            "wall a run",
        ),
        rows=(
            (
                f"{lives['runs']:,} (seeds {lives['seeds']})",
                f"{lives['outages']:,}",
                f"{lives['jobs']:,}",
                f"{lives['admitted']:,}",
                f"{lives['met']:,}",
                f"{lives['late']}",
                f"{lives['certificate_failures']} of {lives['certificates_checked']:,}",
                f"{lives['cpu_s_a_run']:.2f} s",
                f"{lives['wall_s_a_run']:.2f} s",
            ),
        ),
    )


def _relaxations(policies: list[dict[str, Any]]) -> Sheet:
    return Sheet(
        title="Requests that need other jobs to move, admitted and relaxed",
        columns=("policy", "relaxed", "asked", "refused"),
        rows=tuple(
            (found["policy"], law["relaxed"], f"{law['asked']:,}", f"{law['refused']:,}")
            for found in policies
            for law in found["laws"]
        ),
    )


def _costs(costs: dict[str, dict[str, float]], machine: str) -> Sheet:
    return Sheet(
        title=f"What it took to measure this, {machine}",
        columns=("part", "processes", "CPU", "wall"),
        rows=tuple(
            (part, f"{cost['workers']:.0f}", f"{cost['cpu_s']:,.0f} s", f"{cost['wall_s']:,.0f} s")
            for part, cost in costs.items()
        ),
    )

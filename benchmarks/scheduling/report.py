"""The numbers as tables: on a terminal, and in Markdown."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table

PUBLISHED = {  # numbers of others, on other machines, to compare with
    "simulation": "authors' simulator: > 22 min, 5.5 min in PyPy",
    "decision, all reported": "Sia: about 1 s",
    "whole": "KAI, 4,000 nodes: 2.3 s",
}
GOALS = {"decision, all reported": "<= 5 / 50 ms", "quote": "- / 100 ms", "whole": "<= 1,000 ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table. rows: cells in the order of the columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def rich(self) -> Table:
        """For a terminal."""
        table = Table(title=self.title)
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _line(self.columns), _line(("---",) * len(self.columns))]
        return "\n".join([*lines, *map(_line, self.rows), ""])


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
        yield _decisions(result["decisions"], result["cycle"], machine)
    if "failures" in result:
        yield _failures(result["failures"])


def _quality(rows: list[dict[str, Any]]) -> Sheet:
    policies = tuple(rows[0]["ours"])
    return Sheet(
        title="Deadlines met (part of the bound), overhead `reference`",
        columns=("trace", "GPUs", "jobs", "alone", "bound", "reachable", *policies, "late", "best baseline"),
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
        f"{row['reachable']:,}",
        *(f"{score['met']:,} ({score['fraction_of_bound']:.1%})" for score in scores),
        f"{sum(score['late'] for score in scores)}",
        f"{row['best_baseline_met']:,} ({best})" if best else "",
    )


def _gaps(rows: list[dict[str, Any]]) -> Sheet:
    """Of the first policy, what it misses of the bound; of all, their certificates."""
    policy = next(iter(rows[0]["ours"]))
    return Sheet(
        title=f"What `{policy}` misses of the bound, and who could win it",
        columns=(
            "trace",
            "GPUs",
            "bound - met",
            "nobody, as far as known",
            "hindsight, and ours",
            "GPU-hours",
            "of the bound",
            "of hindsight",
            "certificates wrong, all policies",
        ),
        rows=tuple(_gap_row(row, policy) for row in rows),
    )


def _gap_row(row: dict[str, Any], policy: str) -> tuple[str, ...]:
    score, hindsight = row["ours"][policy], row["hindsight_gpu_hours"]
    wrong, checked = (
        sum(each[name] for each in row["ours"].values())
        for name in ("certificate_failures", "certificates_checked")
    )
    return (
        *_where(row),
        f"{max(row['bound'] - score['met'], 0.0):.1f}",
        f"{row['nobody_reaches']:.1f}",
        f"{score['hindsight_wins']}",
        f"{score['gpu_hours']:,.0f}",
        f"{row['bound_gpu_hours']:,.0f}",
        "" if hindsight is None else f"{hindsight:,.0f}",
        f"{wrong} of {checked:,}",
    )


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


def _decisions(decisions: dict[str, Any], cycle: dict[str, Any], machine: str) -> Sheet:
    rows = list[tuple[str, ...]]()
    for name in ("with_room", "saturated"):
        asked = decisions[name]
        pool = f"{asked['live_jobs']:,} jobs on {decisions['num_gpus']:,} GPUs, {name.replace('_', ' ')}"
        rows += _timed(asked["cpu_ms"], pool)
    rows += _timed(cycle["cpu_ms"], f"{cycle['live_jobs']:,} jobs on {cycle['num_gpus']:,} GPUs, a cycle")
    return Sheet(
        title=f"Decisions, CPU time on one core, {machine}",
        columns=("pool", "what", "p50", "p99", "p50 in plain passes", "goal (p50 / p99)", "elsewhere"),
        rows=tuple(rows),
    )


def _timed(cpu_ms: dict[str, dict[str, float]], pool: str) -> Iterator[tuple[str, ...]]:
    plain_ms = cpu_ms["plain pass"]["p50"]
    for what, times in cpu_ms.items():
        yield (
            pool,
            what,
            f"{times['p50']:.2f} ms",
            f"{times['p99']:.2f} ms",
            f"{times['p50'] / plain_ms:,.0f}",
            GOALS.get(what, ""),
            PUBLISHED.get(what, ""),
        )


def _failures(lives: dict[str, Any]) -> Sheet:
    return Sheet(
        title=f"Nodes that fail, one at a time, with {lives['reserve_nodes']} in reserve on {lives['num_gpus']} GPUs",
        columns=("runs", "outages", "jobs", "admitted", "met", "late", "certificates wrong"),
        rows=(
            (
                f"{lives['runs']:,} (seeds {lives['seeds']})",
                f"{lives['outages']:,}",
                f"{lives['jobs']:,}",
                f"{lives['admitted']:,}",
                f"{lives['met']:,}",
                f"{lives['late']}",
                f"{lives['certificate_failures']} of {lives['certificates_checked']:,}",
            ),
        ),
    )


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"

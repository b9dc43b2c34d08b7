"""`python -m benchmarks.regressions`: what is a fifth slower than recorded, and which pages of results are old.

python -m benchmarks.regressions --record    on an idle machine: what is measured becomes the record
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.regressions import pages
from benchmarks.regressions.measurements import PARTS, PartName
from benchmarks.regressions.ratios import (
    Compared,
    Ratio,
    Ratios,
    Recorded,
    Verdict,
    as_json,
    compared,
    lower,
    ratios_of,
    read_recorded,
    record,
)
from benchmarks.report import Measured, json_text, machine, today, where_and_when
from benchmarks.timing import new_workers
from elasticflow.shared.runtime.process.logs import configure_logs

RATIOS = pages.RESULTS / "ratios.json"
NOTHING_RECORDED = "no recorded ratios yet: run with --record"
NO_HISTORY = "no git history here: pages of results are not compared with the code"
_STYLES = {Verdict.WORSE: "bold red", Verdict.NOT_MEASURED: "bold red", Verdict.BETTER: "green"}
_WIDTH = 150
Comparisons = Mapping[PartName, Sequence[Compared]]


def main(
    only: Annotated[list[PartName] | None, typer.Option(help="Measure this part alone; may be repeated.")] = None,
    recording: Annotated[
        bool, typer.Option("--record", help="Record what is measured, with commit and date; nothing fails.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="One repeat: to see that it runs; not to record.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the parts, and measure nothing.")] = False,
    alone: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure ratios to peers of the same run, and compare them with the recorded ones.

    Exit code 1 if a ratio is 20 % worse in two runs of its part. Before the ratios stand the pages of results whose
    code has changed.
    """
    if listing:
        for name, part in PARTS.items():
            print(f"{name:12} {part.repeats} x {part.about}")
        return
    if recording and quick:
        raise typer.BadParameter("one repeat is too few to record", param_hint="--record")
    load_before, commit = os.getloadavg()[0], pages.current_commit()
    recorded = read_recorded(RATIOS)
    comparisons: dict[PartName, list[Compared]] = {}
    for name in only or PartName:
        repeats = 1 if quick else PARTS[name].repeats
        comparisons[name] = _compared(name, recorded.get(name), repeats=repeats, final=recording or quick)
        if recording:  # at once: if a later part fails, this one is kept
            record(RATIOS, {name: _recorded(commit, comparisons[name])})
    changes = pages.all_changes()
    result = {
        **where_and_when(load_before),
        "commit": commit,
        "ratios": {name: {each.what: as_object(each) for each in of_part} for name, of_part in comparisons.items()},
        "changed_pages": None if changes is None else [change.as_json() for change in changes],
    }
    text = json_text(result, out)
    if alone:
        print(text)
    else:
        show(comparisons, recorded, changes)
    fails = any(each.verdict.fails for of_part in comparisons.values() for each in of_part)
    raise typer.Exit(int(fails and not recording))


# --- measuring -----------------------------------------------------------------------------------------


def _compared(name: PartName, recorded: Recorded | None, *, repeats: int, final: bool) -> list[Compared]:
    """final: one run of the part is all. Otherwise it runs again if it is worse, and the lower ratios count."""
    known = recorded.ratios if recorded else {}
    measured = _in_new_process(name, repeats)
    if not final and any(each.verdict is Verdict.WORSE for each in compared(measured, known)):
        measured = lower(measured, _in_new_process(name, repeats))
    return list(compared(measured, known))


def _in_new_process(name: PartName, repeats: int) -> Ratios:
    """So that no part finds the memory or the threads of another."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    with new_workers(1) as workers:
        return workers.submit(_measured, name, repeats).result()


def _measured(name: PartName, repeats: int) -> dict[str, Ratio]:
    configure_logs(level="error")
    return ratios_of(PARTS[name].measure(repeats))


def _recorded(commit: str, of_part: Sequence[Compared]) -> Recorded:
    ratios = {each.what: each.measured for each in of_part if each.measured}
    return Recorded(date=today(), commit=commit, machine=machine(), ratios=ratios)


# --- what is shown -------------------------------------------------------------------------------------


def as_object(each: Compared) -> Measured:
    """The comparison as an object for JSON."""
    return {
        **(as_json(each.measured) if each.measured else {}),
        "recorded": each.recorded.ratio if each.recorded else None,
        "verdict": each.verdict,
    }


def show(comparisons: Comparisons, recorded: Mapping[str, Recorded], changes: Sequence[pages.Change] | None) -> None:
    """The pages whose code has changed, of which nothing is known without git; and the ratios, at the end."""
    console = Console(width=_WIDTH)
    console.print(NO_HISTORY if changes is None else pages_table(changes))
    console.print(ratios_table(comparisons))
    if recorded:
        of_parts = (f"{part} on {record.date} at {record.commit}" for part, record in recorded.items())
        console.print(f"recorded: {', '.join(of_parts)}", style="dim")
    else:
        console.print(NOTHING_RECORDED)


def ratios_table(comparisons: Comparisons) -> Table:
    table = Table(title="Ratios to peers of the same run: less is better")
    for column in ("part", "what", "ours", "peer", "ratio", "least to greatest", "recorded", "change", "verdict"):
        table.add_column(column, justify="left" if column in ("part", "what", "verdict") else "right")
    for name, of_part in comparisons.items():
        for each in of_part:
            table.add_row(name, *_cells(each), style=_STYLES.get(each.verdict))
    return table


def _cells(each: Compared) -> tuple[str, ...]:
    measured = each.measured
    return (
        each.what,
        *((_in_ms(measured.ours_s), _in_ms(measured.peer_s), f"{measured.ratio:.4g}") if measured else ("", "", "")),
        f"{measured.least:.4g} to {measured.greatest:.4g}" if measured else "",
        f"{each.recorded.ratio:.4g}" if each.recorded else "",
        "" if each.change is None else f"{each.change - 1:+.0%}",
        each.verdict,
    )


def _in_ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms"


def pages_table(changes: Sequence[pages.Change]) -> Table:
    table = Table(title="Pages of results whose code has changed since they were measured")
    for column in ("page", "part", "measured", "changed lines"):
        table.add_column(column, justify="right" if column == "changed lines" else "left")
    for change in changes:
        of = change.measurement
        lines = "unknown commit" if change.num_lines is None else f"{change.num_lines:,}"
        table.add_row(of.page, of.part, f"{of.date} at {of.commit}", lines)
    return table


if __name__ == "__main__":
    typer.run(main)

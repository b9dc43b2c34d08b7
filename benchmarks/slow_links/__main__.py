"""Runs live pools whose nodes have slow links, and prints a table. Exits 1 if a promise is broken.

Needs root on Linux, with `ip`, `iptables`, `nsenter`, `tc` and `unshare`. Leaves nothing behind, after Ctrl-C either.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.partitions.network import run_seeds, seed_options, why_not
from benchmarks.slow_links.one_run import LEAD_S, MEGABITS_PER_S, NODES, SLOTS, Result

ONE_RUN = "benchmarks.slow_links.one_run"
_HEADER = (
    "| seed | measured, 1 / 2 / 4 GPUs | promised in | GPUs on | moved | trained at | margin |\n"
    "|---|---|---|---|---|---|---|"
)


def _row(result: Result) -> str:
    speeds = " / ".join(f"{speed:.2f}" for speed in result.speeds.values())
    places = "one node" if len(set(result.places)) == 1 else "two nodes"
    margin = f"{result.margin_s:.1f} s" if result.finished else "not finished"
    cells = (
        str(result.seed),
        f"{speeds} iterations/s",
        f"{result.promised_in_s:.0f} s",
        places,
        ", ".join(result.moved) or "-",
        f"{result.iterations_per_s:.2f} iterations/s",
        margin,
    )
    return f"| {' | '.join(cells)} |"


def _title(result: Result) -> str:
    late = f"{abs(result.margin_s):.0f} s {'before its deadline' if result.margin_s >= 0 else 'late'}"
    moved = f"{', '.join(result.moved)} made room" if result.moved else "nobody makes room"
    return f"{moved}: wide trains at {result.iterations_per_s:.1f} iterations/s and ends {late}"


def draw(results: Mapping[str, Result], file: Path) -> None:
    """Which job has which GPU over time, by title. Dotted: the promise of the job that needs two."""
    from matplotlib.figure import Figure

    gpus = [f"{node}:{gpu}" for node in NODES for gpu in range(SLOTS)]
    colours: dict[str, str] = {"wide": "#c44e52", "a": "#4c72b0", "b": "#55a868", "c": "#8172b3"}
    end_s = max(max(result.promised_in_s, result.promised_in_s - result.margin_s) for result in results.values())
    figure = Figure(figsize=(9, 2.1 * len(results) + 0.4), layout="constrained")
    panels = figure.subplots(len(results), sharex=True, squeeze=False)[:, 0]
    for axes, (title, result) in zip(panels, results.items(), strict=True):
        for gpu, job_id, from_s, until_s in result.holds:
            row = gpus.index(gpu)
            axes.barh(row, until_s - from_s, left=from_s, height=0.8, color=colours[job_id])
            if until_s - from_s > end_s / 20:
                axes.text((from_s + until_s) / 2, row, job_id, ha="center", va="center", color="white")
        axes.axvline(result.promised_in_s, color="black", linestyle=":", linewidth=2)
        axes.axhline(SLOTS - 0.5, color="black", linewidth=0.8)
        axes.set_yticks(range(len(gpus)), gpus)
        axes.set_ylim(len(gpus) - 0.5, -0.5)
        axes.set_title(title, loc="left", fontsize="medium")
    panels[-1].set_xlim(-LEAD_S, end_s * 1.05)
    panels[-1].set_xlabel("seconds after the promise to wide (dotted: its deadline); the black line is the slow link")
    figure.savefig(file, dpi=120)


def main() -> int:
    parser = seed_options("python -m benchmarks.slow_links", __doc__, num_seeds=3, num_parallel=1)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the last seed")
    parser.add_argument("--above", type=Path, metavar="JSON", help="draw the last seed of this file above it")
    parser.add_argument("--megabits", type=int, default=MEGABITS_PER_S, help="of each link, a second (%(default)s)")
    arguments = parser.parse_args()
    if reason := why_not() or ("" if shutil.which("tc") else "not installed: tc"):
        parser.error(reason)
    print(_HEADER, flush=True)
    results = run_seeds(ONE_RUN, arguments, Result, _row, (str(arguments.megabits),))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    if arguments.picture is not None:
        above = json.loads(arguments.above.read_text())[-1:] if arguments.above is not None else []
        draw(
            {_title(result): result for result in (*(Result(**each) for each in above), results[-1])}, arguments.picture
        )
    return int(not all(result.is_kept for result in results))


if __name__ == "__main__":
    sys.exit(main())

"""Runs seeds, several at a time, and prints a table. Exits 1 if two generations could train at once.

Needs root on Linux, with `ip`, `iptables`, `nsenter` and `unshare`. Leaves nothing behind, after Ctrl-C either.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.isolated_seeds import run_isolated
from benchmarks.partitions.network import why_not
from benchmarks.partitions.one_run import Result

ONE_RUN = "benchmarks.partitions.one_run"
_HEADER = "| seed | partition | trained until, s | lost, s | overlap, s | rejoined |\n|---|---|---|---|---|---|"


def _row(result: Result) -> str:
    def seconds(value: float | None, none: str) -> str:
        return none if value is None else f"{value:.1f}"

    cells = (
        str(result.seed),
        result.partition,
        seconds(result.trained_until_s, "the end"),
        seconds(result.lost_s, "never"),
        seconds(result.overlap_s, ""),
        "yes" if result.rejoined else "no",
    )
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partitions", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="number of seeds (default: 50)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--parallel", type=int, default=2, help="seeds at a time (default: 2)")
    parser.add_argument("--out", type=Path, help="write all results to this file, as JSON")
    arguments = parser.parse_args()
    if reason := why_not():
        parser.error(reason)
    print(_HEADER, flush=True)
    objects = run_isolated(
        ONE_RUN,
        range(arguments.first, arguments.first + arguments.seeds),
        num_parallel=arguments.parallel,
        on_result=lambda result: print(_row(Result(**result)), flush=True),
    )
    results = [Result(**each) for each in objects]
    if arguments.out is not None:
        rows = [{**asdict(result), "overlap_s": result.overlap_s} for result in results]
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any((result.overlap_s or 0.0) > 0 for result in results))


if __name__ == "__main__":
    sys.exit(main())

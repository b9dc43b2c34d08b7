"""Runs seeds, several at a time, and prints a table. Exits 1 if two generations could train at once.

Needs root on Linux, with `ip`, `iptables`, `nsenter` and `unshare`. Leaves nothing behind, after Ctrl-C either.
"""

import json
import sys
from dataclasses import asdict

from benchmarks.partitions.network import run_seeds, seed_options, why_not
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
    parser = seed_options("python -m benchmarks.partitions", __doc__, num_seeds=50, num_parallel=2)
    arguments = parser.parse_args()
    if reason := why_not():
        parser.error(reason)
    print(_HEADER, flush=True)
    results = run_seeds(ONE_RUN, arguments, Result, _row)
    if arguments.out is not None:
        rows = [{**asdict(result), "overlap_s": result.overlap_s} for result in results]
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any((result.overlap_s or 0.0) > 0 for result in results))


if __name__ == "__main__":
    sys.exit(main())

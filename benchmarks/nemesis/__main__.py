"""Runs seeds, several at a time, and prints a table. Exits 1 if a history is not linearizable, a ledger not sound,
or a run void: without a decided command.

Needs root on Linux, with `ip`, `iptables`, `nsenter`, `unshare` and `strace`. Leaves nothing behind.
"""

import json
import sys
from collections import Counter
from typing import Any

from benchmarks.nemesis import machines
from benchmarks.partitions import network
from benchmarks.partitions.network import run_isolated, seed_options

_COLUMNS = ("seed", "faults", "calls", "no reply", "messages of the ledger", "quotes at most s old", "problems")


def _row(result: dict[str, Any]) -> str:
    cells = (
        result["seed"],
        ", ".join(f"{kind} {number}" for kind, number in sorted(Counter(map(_kind, result["faults"])).items())),
        sum(result["calls"].values()),
        sum(result["unanswered"].values()),
        result["messages"],
        result["quotes_age_s"],
        len(result["problems"]),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _kind(fault: str) -> str:
    """`full disk 4.2 s: server-1` is of the kind `full disk`."""
    return fault.split(":")[0].rsplit(" ", 2)[0]


def main() -> int:
    parser = seed_options("python -m benchmarks.nemesis", __doc__, num_seeds=100, num_parallel=1)
    parser.add_argument("--seconds", type=float, default=45.0, help="of faults in each seed (default: %(default)s)")
    arguments = parser.parse_args()
    if reason := network.why_not() or machines.why_not():
        parser.error(reason)
    print(f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}", flush=True)
    results: list[dict[str, Any]] = []

    def on_result(result: dict[str, Any]) -> None:
        print(_row(result), flush=True)
        results.append(result)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")

    run_isolated(
        "benchmarks.nemesis.one_run",
        range(arguments.first, arguments.first + arguments.seeds),
        num_parallel=arguments.parallel,
        on_result=on_result,
        arguments=[str(arguments.seconds)],
    )
    return int(any(result["problems"] for result in results))


if __name__ == "__main__":
    sys.exit(main())

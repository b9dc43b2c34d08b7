"""Runs seeds, several at a time, and prints a table. Exits 1 if two generations could train at once.

Needs root on Linux, with `ip`, `iptables`, `nsenter` and `unshare`. Leaves nothing behind, after Ctrl-C either.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.partitions.network import ISOLATED, why_not
from benchmarks.partitions.one_run import Result
from elasticflow.shared.runtime.process.process_termination import preexec_die_with_parent

TIMEOUT_S = 600.0
_HEADER = "| seed | partition | trained until, s | lost, s | overlap, s | rejoined |\n|---|---|---|---|---|---|"


async def run_seed(seed: int) -> Result:
    """Run one seed in namespaces of its own. Raises RuntimeError, TimeoutError."""
    with tempfile.TemporaryDirectory(prefix="partition-") as folder:
        process = await asyncio.create_subprocess_exec(
            *ISOLATED,
            *(sys.executable, "-m", "benchmarks.partitions.one_run", str(seed), folder),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=preexec_die_with_parent(),
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise RuntimeError(f"seed {seed} failed:\n{errors.decode()[-4000:]}")
    return Result(**json.loads(output.splitlines()[-1]))


async def run_seeds(seeds: range, num_parallel: int) -> list[Result]:
    """Print a row for each, in the order of their ends."""
    turn = asyncio.Semaphore(num_parallel)

    async def run(seed: int) -> Result:
        async with turn:
            result = await run_seed(seed)
        print(_row(result), flush=True)
        return result

    print(_HEADER, flush=True)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run(seed)) for seed in seeds]
    return [task.result() for task in running]


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
    for number in (signal.SIGINT, signal.SIGTERM):  # a process started in the background may ignore Ctrl-C
        signal.signal(number, signal.default_int_handler)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    results = asyncio.run(run_seeds(seeds, arguments.parallel))
    if arguments.out is not None:
        rows = [{**asdict(result), "overlap_s": result.overlap_s} for result in results]
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any((result.overlap_s or 0.0) > 0 for result in results))


if __name__ == "__main__":
    sys.exit(main())

"""Runs seeds, several at a time, and prints a table. Exits 1 if two generations could train at once.

Needs root on Linux, with `ip`, `iptables`, `nsenter` and `unshare`. Nothing is left behind, after Ctrl-C either.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.partitions.network import ISOLATED, why_not
from benchmarks.partitions.one_run import Result
from elasticflow.shared.runtime.process.process_termination import preexec_die_with_parent

TIMEOUT_S = 400.0


def run_seed(seed: int) -> Result:
    """Run one seed in namespaces of its own. Raises CalledProcessError, TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="partition-") as folder:
        command = [*ISOLATED, sys.executable, "-m", "benchmarks.partitions.one_run", str(seed), folder]
        finished = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            preexec_fn=preexec_die_with_parent(),
        )
    if finished.returncode:
        raise RuntimeError(f"seed {seed} failed:\n{finished.stderr[-4000:]}")
    return Result(**json.loads(finished.stdout.splitlines()[-1]))


def row(result: Result) -> str:
    def seconds(value: float | None, none: str) -> str:
        return none if value is None else f"{value:.1f}"

    return (
        f"| {result.seed} | {result.partition} | {seconds(result.trained_until_s, 'on')} | "
        f"{seconds(result.lost_s, 'never')} | {seconds(result.overlap_s, '')} | {'yes' if result.rejoined else 'no'} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partitions", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="number of seeds, from 0 (default: 50)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--parallel", type=int, default=2, help="seeds at a time (default: 2)")
    parser.add_argument("--out", type=Path, help="write all results to this file, as JSON")
    arguments = parser.parse_args()
    if reason := why_not():
        parser.error(reason)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results: list[Result] = []
    print("| seed | partition | trained until, s | lost, s | overlap, s | rejoined |\n|---|---|---|---|---|---|")
    with ThreadPoolExecutor(arguments.parallel) as threads:
        try:
            for result in threads.map(run_seed, range(arguments.first, arguments.first + arguments.seeds)):
                results.append(result)
                print(row(result), flush=True)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    if arguments.out is not None:
        rows = [vars_of(result) for result in results]
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any((result.overlap_s or -1.0) > 0 for result in results))


def vars_of(result: Result) -> dict[str, object]:
    return {name: getattr(result, name) for name in Result.__slots__} | {"overlap_s": result.overlap_s}


if __name__ == "__main__":
    sys.exit(main())

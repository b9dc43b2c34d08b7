"""Runs seeds of a benchmark, several at a time, each as a command with network and process namespaces of its own."""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.partitions.network import ISOLATED
from elasticflow.shared.runtime.process.process_termination import preexec_die_with_parent

Result = TypeVar("Result")
TIMEOUT_S = 600.0  # of one seed


def seed_options(prog: str, description: str | None, *, num_seeds: int, num_parallel: int) -> argparse.ArgumentParser:
    """A parser with --seeds, --first, --parallel and --out, and these defaults."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--seeds", type=int, default=num_seeds, help="number of seeds (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: %(default)s)")
    parser.add_argument("--parallel", type=int, default=num_parallel, help="seeds at a time (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write all results to this file, as JSON")
    return parser


def run_seeds(
    module: str,
    options: argparse.Namespace,
    made: Callable[..., Result],
    row: Callable[[Result], str],
    arguments: Sequence[str] = (),
) -> list[Result]:
    """The results of the seeds that the options of `seed_options` name; a row is printed of each, as soon as it ends.

    made: from the members of a JSON object. Raises as `run_isolated`.
    """
    objects = run_isolated(
        module,
        range(options.first, options.first + options.seeds),
        num_parallel=options.parallel,
        on_result=lambda result: print(row(made(**result)), flush=True),
        arguments=arguments,
    )
    return [made(**each) for each in objects]


def run_isolated(
    module: str,
    seeds: range,
    *,
    num_parallel: int,
    on_result: Callable[[dict[str, Any]], None],
    arguments: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The JSON objects that `python -m module SEED FOLDER ARGUMENTS` print last, by seed. Leaves nothing behind.

    on_result: called in the order of their ends. Raises RuntimeError with the error of a seed, TimeoutError.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # a process started in the background may ignore Ctrl-C
        signal.signal(number, signal.default_int_handler)
    return asyncio.run(_run_all(module, seeds, num_parallel, on_result, arguments))


async def _run_all(
    module: str, seeds: range, num_parallel: int, on_result: Callable[[dict[str, Any]], None], arguments: Sequence[str]
) -> list[dict[str, Any]]:
    turn = asyncio.Semaphore(num_parallel)

    async def run(seed: int) -> dict[str, Any]:
        async with turn:
            result = await run_seed(module, seed, arguments)
        on_result(result)
        return result

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run(seed)) for seed in seeds]
    return [task.result() for task in running]


async def run_seed(module: str, seed: int, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """One seed. Raises RuntimeError, TimeoutError."""
    with tempfile.TemporaryDirectory(prefix="seed-") as folder:
        process = await asyncio.create_subprocess_exec(
            *(*ISOLATED, sys.executable, "-m", module, str(seed), folder, *arguments),
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
    return json.loads(output.splitlines()[-1])

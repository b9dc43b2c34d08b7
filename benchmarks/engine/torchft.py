"""torchft beside this engine: replicas under its manager and lighthouse join, are killed and train.

It is no dependency of the project: it is used if importable, or installed into a temporary folder.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from rich.table import Table

from benchmarks.engine.parts import Options, Row, in_ms, table_of
from benchmarks.engine.step_log import NoStep, StepLog
from benchmarks.engine.torchrun import running

VERSION = "2026.10.26"
_STEADY_STEPS = 12


@contextmanager
def torchft_at_hand(*, install: bool) -> Iterator[dict[str, str] | None]:
    """The environment in which a process can import it, None if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        if install:
            for what in (
                ("--no-deps", f"torchft-nightly=={VERSION}"),
                ("opentelemetry-exporter-otlp-proto-http>=1.39",),
            ):
                pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *what)
                subprocess.run(pip, check=True)
        environment = {"PYTHONPATH": os.pathsep.join((folder, os.environ.get("PYTHONPATH", "")))}
        found = subprocess.run(
            (sys.executable, "-c", "import torchft"), env=os.environ | environment, capture_output=True
        )
        yield environment if found.returncode == 0 else None


def measure(options: Options) -> list[Row]:
    with torchft_at_hand(install=options.with_torchft) as environment:
        if environment is None:
            return [{"error": "torchft is not installed: --with-torchft does so, in a temporary folder"}]
        return [measure_torchft(size, environment) for size in options.million_parameters]


def table(rows: list[Row]) -> Table:
    drawn = table_of(
        "torchft: milliseconds",
        *("parameters", "step", "2 -> 4, from the command", "no training", "after SIGKILL", "error"),
    )
    for row in rows:
        drawn.add_row(
            f"{row.get('million_parameters', '')} M",
            *in_ms(row, "step_s", "join_s", "join_pause_s", "crash_s"),
            row.get("error", "")[:60],
        )
    return drawn


def measure_torchft(million_parameters: int, environment: dict[str, str]) -> Row:
    """A row: two replicas, then four, then one of the four is killed. error: its message if it failed."""
    row: Row = {"million_parameters": million_parameters}
    with tempfile.TemporaryDirectory() as name, ExitStack() as processes:
        folder = Path(name)
        try:
            processes.enter_context(_process(folder, environment, "lighthouse"))
            _change(folder, environment, million_parameters, processes, row)
        except NoStep as error:
            row["error"] = f"{error}; {_last_words(folder)}"
    return row


def _change(
    folder: Path,
    environment: dict[str, str],
    million_parameters: int,
    processes: ExitStack,
    row: Row,
) -> None:
    def start(number: int) -> subprocess.Popen[bytes]:
        arguments = ("replica", str(number), str(million_parameters))
        return processes.enter_context(_process(folder, environment, *arguments))

    log = StepLog(folder / "steps-0", million_parameters)
    start(0)
    start(1)
    row["step_s"] = step_s = log.steady(2, num_steps=_STEADY_STEPS, what="torchft with 2 replicas")
    asked_s = time.monotonic()
    last = [start(2), start(3)][-1]
    joined = log.first(lambda step: step.num_workers == 4, what="torchft, 2 -> 4")
    row["join_s"] = joined.at_s - asked_s
    log.steady(4, num_steps=_STEADY_STEPS, what="torchft with 4 replicas")
    ends_s = [step.at_s for step in log.read() if step.at_s > asked_s]
    row["join_pause_s"] = max(b - a for a, b in pairwise(ends_s)) - step_s
    killed_s = time.monotonic()
    os.kill(last.pid, signal.SIGKILL)
    time.sleep(step_s)  # the step in progress may have completed
    after = log.first(lambda step: step.at_s > killed_s and step.num_workers == 3, what="torchft, after SIGKILL")
    row["crash_s"] = after.at_s - killed_s


@contextmanager
def _process(folder: Path, environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = ("benchmarks.engine.torchft_script", str(folder), *arguments)
    with running(command, folder / f"{'-'.join(arguments[:2])}.log", environment) as process:
        yield process


def _last_words(folder: Path) -> str:
    """The last lines that the observed replica logged."""
    log = folder / "replica-0.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return " | ".join(lines[-3:])[-600:]

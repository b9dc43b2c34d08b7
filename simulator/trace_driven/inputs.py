"""What the commands read and where they write, and how they refuse it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import typer

from shared.errors import ElasticFlowError
from simulator.workload.bundled import bundled_throughputs, bundled_trace, bundled_traces
from simulator.workload.errors import refusal
from simulator.workload.jobs import Workload
from simulator.workload.throughputs import read_throughputs
from simulator.workload.trace import read_trace

CANNOT = 2  # exit code, as that of `eflow`


def workload_of(trace: str, throughputs: Path | None, *, skip_bad: bool, seed: int) -> Workload:
    """The jobs of a file, or of a bundled trace by its name; rows that are passed over are named on stderr."""
    file = bundled_trace(trace) if trace in bundled_traces() else Path(trace)
    tables = read_throughputs(throughputs or bundled_throughputs())
    workload = read_trace(file, tables, skip_bad, seed)
    for row in workload.skipped:
        note(f"passed over: {row}")
    return workload


def make_folder(folder: Path) -> None:
    """Where a run's files will go: that they can is found out before the run, which may take hours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise refusal(folder, f"no file can be written there: {error.strerror or error}") from error


@contextmanager
def refusing() -> Iterator[None]:
    """A failure that somebody has thought about ends in its sentence and exit code 2."""
    try:
        yield
    except ElasticFlowError as error:
        note(f"eflow: {error}")
        raise typer.Exit(CANNOT) from None


def note(text: str) -> None:
    """Something beside the result."""
    print(text, file=sys.stderr, flush=True)

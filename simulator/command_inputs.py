"""Inputs and output folders of the simulate commands, and how a command reports errors in them."""

import difflib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType

import typer

from elasticflow.shared.errors import BadSettings, ElasticFlowError
from elasticflow.simulator.workload.csv_table import bad_input
from elasticflow.simulator.workload.throughput_tables import NO_TYPE, read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import (
    ClusterShape,
    Workload,
    bundled_throughputs,
    bundled_trace,
    bundled_traces,
    throughputs_by_type,
    typed_pool,
)

CANNOT = 2  # exit code, as that of `eflow`
DEFAULT_NODES = 4


def cluster_of(nodes: int | None, gpus_per_node: int, pool: str) -> ClusterShape:
    """nodes: None if the user gave none. pool: as 4xV100,8xP100; empty: all GPUs are equal."""
    if not pool:
        return ClusterShape(num_nodes=DEFAULT_NODES if nodes is None else nodes, gpus_per_node=gpus_per_node)
    if nodes is not None:
        raise BadSettings(("--nodes and --pool both say how many GPUs there are; give one of them",))
    return ClusterShape.of_pool(typed_pool(pool), gpus_per_node)


def workload_of(
    trace: str, throughputs: Path | None, gpu_types: Sequence[str] = (NO_TYPE,), *, skip_bad: bool, seed: int
) -> Workload:
    """The jobs of a file, or of a bundled trace by its name; skipped rows are listed on stderr.

    gpu_types: of the pool. throughputs: None for the bundled tables.
    """
    file = _trace_file(trace)
    bundled = bundled_throughputs() if len(gpu_types) == 1 else throughputs_by_type()
    tables = read_throughputs(throughputs or bundled, gpu_types)
    workload = read_trace(file, tables, skip_bad, seed)
    for row in workload.skipped:
        note(f"skipped: {row}")
    if workload.other_columns:
        note(f"columns of {file.name} that mean nothing here: {', '.join(workload.other_columns)}")
    return workload


def _trace_file(trace: str) -> Path:
    """Raises BadInput if it is neither a bundled trace nor there."""
    bundled, file = bundled_traces(), Path(trace)
    if trace in bundled:
        return bundled_trace(trace)
    if not file.exists():
        close = difflib.get_close_matches(file.stem.lower(), bundled, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise bad_input(trace, f"is no file, and none of the bundled traces {', '.join(bundled)}{meant}")
    return file


def make_folder(folder: Path) -> None:
    """Make the output folder and check that files can be written there, before a run that may take hours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise bad_input(folder, f"no file can be written there: {error.strerror or error}") from error


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Print an ElasticFlowError as one sentence and exit with code 2."""
    try:
        yield
    except ElasticFlowError as error:
        note(f"eflow: {error}")
        raise typer.Exit(CANNOT) from None


def note(text: str) -> None:
    """Print a line that is not part of the result."""
    print(text, file=sys.stderr, flush=True)


# --- interruptible -------------------------------------------------------------------------------------
# Ctrl-C as a condition instead of an exception, so that a partial result can be shown.


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; the second one ends at once."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    earlier = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, earlier)

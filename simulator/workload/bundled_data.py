"""The small tables and traces of the package (simulator/data), for first runs and tests."""

from importlib.resources import files
from pathlib import Path

from elasticflow.simulator.workload.input_errors import refusal


def bundled_throughputs() -> Path:
    """The folder of the tables."""
    return Path(str(files("elasticflow.simulator") / "data" / "throughputs"))


def bundled_traces() -> tuple[str, ...]:
    """Names of the traces, sorted."""
    return tuple(sorted(file.stem for file in _trace_folder().glob("*.csv")))


def bundled_trace(name: str) -> Path:
    """The file of a trace, by its name."""
    if name not in bundled_traces():
        raise refusal(name, f"is not a bundled trace; choose one of {', '.join(bundled_traces())}")
    return _trace_folder() / f"{name}.csv"


def _trace_folder() -> Path:
    return Path(str(files("elasticflow.simulator") / "data" / "traces"))

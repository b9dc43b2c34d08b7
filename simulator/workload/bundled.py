"""The small tables and traces that come with the package (simulator/data), for a first look and for tests."""

from importlib.resources import files
from pathlib import Path

from simulator.workload.errors import refusal


def bundled_throughputs() -> Path:
    """The folder of the tables."""
    return Path(str(files("simulator") / "data" / "throughputs"))


def bundled_traces() -> tuple[str, ...]:
    """Names of the traces, sorted."""
    return tuple(sorted(file.stem for file in _trace_folder().glob("*.csv")))


def bundled_trace(name: str) -> Path:
    """The file of a trace, by its name."""
    if name not in bundled_traces():
        raise refusal(name, f"is no bundled trace; there are {', '.join(bundled_traces())}")
    return _trace_folder() / f"{name}.csv"


def _trace_folder() -> Path:
    return Path(str(files("simulator") / "data" / "traces"))

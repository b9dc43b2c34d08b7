"""Throughput tables: iterations per second of each model, at each global batch size, on 1, 2, 4, ... GPUs.

A folder holds one file a model, `<model>.csv`:

    global_batch_size,1,2,4,8
    64,6.0,8.6,10.4,
    128,3.6,5.7,8.5,10.0

A cell that is empty, `nan` or 0 says that the job does not run on that number of GPUs: that level is left out,
anywhere in the row. A batch size without any level is left out. Curves need not rise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticflow.shared.messages.limits import MAX_BATCH, MAX_GPUS
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.workload.csv_table import BadInput, Row, bad_input, parsed, read_lines, rows_of

BATCH_COLUMN = "global_batch_size"
MAX_RATE = 1e12  # iterations per second; more is a mistake in units


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughputs:
    """The curves of a folder. source: its name in errors."""

    source: str
    curves: Mapping[str, Mapping[int, ScalingCurve]]  # by model, by global batch size

    @property
    def models(self) -> tuple[str, ...]:
        """Names, sorted."""
        return tuple(sorted(self.curves))

    def batch_sizes(self, model_name: str) -> tuple[int, ...]:
        """Batch sizes with a curve, ascending; none for an unknown model."""
        return tuple(sorted(self.curves.get(model_name, ())))

    def curve(self, model_name: str, global_batch_size: int) -> ScalingCurve:
        """The curve; KeyError for an unknown model or batch size."""
        return self.curves[model_name][global_batch_size]


def read_throughputs(folder: Path) -> Throughputs:
    """All tables of a folder; BadInput names file and line of an error."""
    if not folder.is_dir():
        raise bad_input(folder, "is not a folder; give the folder of the throughput tables <model>.csv")
    files = sorted(folder.glob("*.csv"))
    if not files:
        nested = sorted(path.parent.name for path in folder.glob("*/*.csv"))
        hint = f"; there are some in {', '.join(dict.fromkeys(nested))}: name that folder" if nested else ""
        raise bad_input(folder, f"has no throughput table <model>.csv{hint}")
    return Throughputs(source=str(folder), curves={file.stem: _read_table(file) for file in files})


def _read_table(file: Path) -> dict[int, ScalingCurve]:
    (line, header), *lines = read_lines(file)
    num_gpus_L = _levels(file, line, header)
    curves: dict[int, ScalingCurve] = {}
    seen: dict[int, int] = {}  # batch size: line
    for row in rows_of(file, header, lines):
        if isinstance(row, BadInput):
            raise row
        batch_size = row.whole(BATCH_COLUMN, 1, MAX_BATCH)
        if batch_size in seen:
            raise row.bad_input(BATCH_COLUMN, f"is in line {seen[batch_size]} already; keep one of them")
        seen[batch_size] = row.line
        rates = {level: rate for level in num_gpus_L if (rate := rate_of(row, str(level)))}
        if rates:
            curves[batch_size] = ScalingCurve(tuple(rates), tuple(rates.values()))
    if not curves:
        raise bad_input(file, "no batch size has a throughput; add one, or remove the file")
    return curves


def _levels(file: Path, line: int, header: list[str]) -> tuple[int, ...]:
    expected = f"the header must be {BATCH_COLUMN},1,2,4,... (powers of two, ascending)"
    if header[0] != BATCH_COLUMN:
        raise bad_input(file, f"{expected}; it starts with {header[0]!r}", line=line)
    return levels_of(file, line, header[1:], expected)


def levels_of(file: Path, line: int, names: list[str], expected: str) -> tuple[int, ...]:
    """Numbers of GPUs that head the columns `names`; BadInput begins with `expected`."""
    levels = tuple(int(name) if name.isascii() and name.isdigit() else 0 for name in names)
    for name, level in zip(names, levels, strict=True):
        if not 1 <= level <= MAX_GPUS or level & (level - 1) or str(level) != name:
            raise bad_input(file, f"{expected}; {name!r} is not a power of two up to {MAX_GPUS}", line=line)
    if not levels:
        raise bad_input(file, f"{expected}; it has no number of GPUs", line=line)
    if list(levels) != sorted(set(levels)):
        raise bad_input(file, f"{expected}; these are not ascending", line=line)
    return levels


def rate_of(row: Row, column: str) -> float:
    """Iterations per second, or BadInput; 0 where the job does not run."""
    text = row.cells[column]
    if not text or text.lower() == "nan":
        return 0.0
    rate = parsed(text)
    if rate is None or not 0 <= rate <= MAX_RATE:
        raise row.bad_input(
            column, f"must be 0 to {MAX_RATE:g} iterations/s; leave it empty where the job does not run"
        )
    return rate

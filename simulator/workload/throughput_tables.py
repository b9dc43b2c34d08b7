"""Throughput tables: iterations per second of each model, at each global batch size, on 1, 2, 4, ... GPUs.

A folder holds one file a model, `<model>.csv`:

    global_batch_size,1,2,4,8
    64,6.0,8.6,10.4,
    128,3.6,5.7,8.5,10.0

A cell that is empty, `nan` or 0 says that the job does not run on that number of GPUs: that level is left out,
anywhere in the row. A batch size without any level is left out. Curves need not rise.

For a pool of several GPU types, a file has a row for each type and batch size:

    gpu_type,global_batch_size,1,2,4,8
    V100,64,6.0,8.6,10.4,
    K80,64,0.9,1.7,3.1,5.2

A file without the column is that of the pool's first type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elasticflow.shared.messages.limits import MAX_BATCH, MAX_GPUS
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.workload.csv_table import BadInput, Row, bad_input, parsed, read_lines, rows_of

TYPE_COLUMN, BATCH_COLUMN = "gpu_type", "global_batch_size"
MAX_RATE = 1e12  # iterations per second; more is a mistake in units
NO_TYPE = ""  # of tables without a type, and of the GPUs of a pool without types

Curves = Mapping[str, Mapping[int, ScalingCurve]]  # by model, by global batch size


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughputs:
    """The curves of a folder. source: its name in errors. curves: on the pool's first GPU type.

    by_type: on each of its types; empty if the pool has one type.
    """

    source: str
    curves: Curves
    by_type: Mapping[str, Curves] = field(default_factory=dict[str, Curves])

    @property
    def models(self) -> tuple[str, ...]:
        """Names, sorted."""
        return tuple(sorted(self.curves))

    def batch_sizes(self, model_name: str) -> tuple[int, ...]:
        """Batch sizes with a curve, ascending; none for an unknown model."""
        return tuple(sorted(self.curves.get(model_name, ())))

    def curve(self, model_name: str, global_batch_size: int) -> ScalingCurve:
        """The curve on the first type; KeyError for an unknown model or batch size."""
        return self.curves[model_name][global_batch_size]

    def curve_by_type(self, model_name: str, global_batch_size: int) -> dict[str, ScalingCurve]:
        """The curve on each type of the pool where the model runs; empty if the pool has one type."""
        found = {name: curves.get(model_name, {}).get(global_batch_size) for name, curves in self.by_type.items()}
        return {name: curve for name, curve in found.items() if curve is not None}


def read_throughputs(folder: Path, gpu_types: Sequence[str] = (NO_TYPE,)) -> Throughputs:
    """The tables of a folder for a pool of these types, at least one; BadInput names file and line of an error."""
    if not folder.is_dir():
        raise bad_input(folder, "is not a folder; give the folder of the throughput tables <model>.csv")
    files = sorted(folder.glob("*.csv"))
    if not files:
        nested = sorted(path.parent.name for path in folder.glob("*/*.csv"))
        hint = f"; there are some in {', '.join(dict.fromkeys(nested))}: name that folder" if nested else ""
        raise bad_input(folder, f"has no throughput table <model>.csv{hint}")
    recorded = dict[str, dict[str, dict[int, ScalingCurve]]]()
    for file in files:
        for gpu_type, curves in _read_table(file).items():
            recorded.setdefault(gpu_type, {})[file.stem] = curves
    first = gpu_types[0]
    by_type = {gpu_type: recorded.get(gpu_type, {}) for gpu_type in gpu_types}
    by_type[first] = {**recorded.get(NO_TYPE, {}), **by_type[first]}
    for gpu_type, curves in by_type.items():
        if not curves:
            raise _unknown_type(folder, gpu_type, sorted(recorded.keys() - {NO_TYPE}))
    return Throughputs(source=str(folder), curves=by_type[first], by_type=by_type if len(by_type) > 1 else {})


def _unknown_type(folder: Path, gpu_type: str, known: list[str]) -> BadInput:
    has = f"it has {', '.join(known)}" if known else "its tables name no type"
    if gpu_type == NO_TYPE:
        return bad_input(folder, f"has no throughput table without a GPU type; {has}; name the types with --pool")
    return bad_input(
        folder, f"has no throughputs of GPU type {gpu_type!r}; {has}; add rows with this {TYPE_COLUMN} to <model>.csv"
    )


def _read_table(file: Path) -> dict[str, dict[int, ScalingCurve]]:
    """Curves by type and batch size."""
    (line, header), *lines = read_lines(file)
    keys = [TYPE_COLUMN, BATCH_COLUMN] if header[0] == TYPE_COLUMN else [BATCH_COLUMN]
    num_gpus_L = _levels(file, line, header, keys)
    by_type: dict[str, dict[int, ScalingCurve]] = {}
    seen: dict[tuple[str, int], int] = {}  # type and batch size: line
    for row in rows_of(file, header, lines):
        if isinstance(row, BadInput):
            raise row
        gpu_type = row.text(TYPE_COLUMN) if TYPE_COLUMN in keys else NO_TYPE
        batch_size = row.whole(BATCH_COLUMN, 1, MAX_BATCH)
        if (gpu_type, batch_size) in seen:
            raise row.bad_input(BATCH_COLUMN, f"is in line {seen[gpu_type, batch_size]} already; keep one of them")
        seen[gpu_type, batch_size] = row.line
        rates = {level: rate for level in num_gpus_L if (rate := rate_of(row, str(level)))}
        if rates:
            by_type.setdefault(gpu_type, {})[batch_size] = ScalingCurve(tuple(rates), tuple(rates.values()))
    if not by_type:
        raise bad_input(file, "no batch size has a throughput; add one, or remove the file")
    return by_type


def _levels(file: Path, line: int, header: list[str], keys: list[str]) -> tuple[int, ...]:
    expected = f"the header must be {','.join(keys)},1,2,4,... (powers of two, ascending)"
    if header[: len(keys)] != keys:
        raise bad_input(file, f"{expected}; it starts with {header[0]!r}", line=line)
    return levels_of(file, line, header[len(keys) :], expected)


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

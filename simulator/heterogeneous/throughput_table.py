"""Throughputs by GPU type: iterations per second of each model on 1, 2, 4, ... GPUs of each type.

    model,gpu_type,1,2,4,8
    resnet50,V100,4.4,7.9,9.5,
    resnet50,K80,0.6,1.3,2.4,4.6

A cell that is empty, `nan` or 0 says that the model does not run on that number of GPUs of this type.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.workload.csv_table import BadInput, bad_input, read_lines, rows_of
from elasticflow.simulator.workload.throughput_tables import levels_of, rate_of

_KEYS = ["model", "gpu_type"]
_EXPECTED = f"the header must be {','.join(_KEYS)},1,2,4,... (powers of two, ascending)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputTable:
    """source: its name in errors. rates: by model, by GPU type, by number of GPUs; iterations/s."""

    source: str
    rates: Mapping[str, Mapping[str, Mapping[int, float]]]

    @property
    def models(self) -> tuple[str, ...]:
        """Names, sorted."""
        return tuple(sorted(self.rates))

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Types on which some model runs, sorted."""
        return tuple(sorted({name for by_type in self.rates.values() for name in by_type}))

    def throughputs(self, model: str, gpu_type: str) -> Mapping[int, float]:
        """Iterations/s by number of GPUs; empty if the model does not run there.

        Raises BadSettings for a model or a type that the table does not know.
        """
        if model not in self.rates:
            raise BadSettings((f"{self.source} has no model {model!r}; it has {', '.join(self.models)}",))
        if gpu_type not in self.gpu_types:
            raise BadSettings((f"{self.source} has no GPU type {gpu_type!r}; it has {', '.join(self.gpu_types)}",))
        return self.rates[model].get(gpu_type, {})

    def throughput_per_gpu(self, model: str, gpu_type: str) -> float:
        """Iterations/s of one GPU, at the smallest number on which the model runs; 0 if it runs on none."""
        rates = self.throughputs(model, gpu_type)
        return rates[min(rates)] / min(rates) if rates else 0.0


def read_throughput_table(file: Path) -> ThroughputTable:
    """The table of a CSV file; BadInput names file and line of an error."""
    (line, header), *lines = read_lines(file)
    if header[: len(_KEYS)] != _KEYS:
        raise bad_input(file, f"{_EXPECTED}; it is {','.join(header)}", line=line)
    levels = levels_of(file, line, header[len(_KEYS) :], _EXPECTED)
    rates = dict[str, dict[str, dict[int, float]]]()
    for row in rows_of(file, header, lines):
        if isinstance(row, BadInput):
            raise row
        by_type = rates.setdefault(row.text("model"), {})
        gpu_type = row.text("gpu_type")
        if gpu_type in by_type:
            raise row.bad_input("gpu_type", "has a row for this model already; keep one of them")
        by_type[gpu_type] = {level: rate for level in levels if (rate := rate_of(row, str(level)))}
    if not rates:
        raise bad_input(file, "has no throughputs; add a row for each model and GPU type")
    return ThroughputTable(source=str(file), rates=rates)


def gavel_throughputs() -> ThroughputTable:
    """The bundled excerpt of Gavel's published measurements on V100, P100 and K80."""
    return read_throughput_table(
        Path(str(files("elasticflow.simulator") / "data" / "throughputs_by_type" / "gavel.csv"))
    )

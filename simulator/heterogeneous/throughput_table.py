"""Throughputs by GPU type: iterations per second of each model on 1, 2, 4, ... GPUs of each type."""

from collections.abc import Mapping
from dataclasses import dataclass

from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import throughputs_by_type

GAVEL_TYPES = ("V100", "P100", "K80")  # the fastest first


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


def gavel_throughputs() -> ThroughputTable:
    """The bundled excerpt of Gavel's published measurements. A model here is a model there at one batch size."""
    tables = read_throughputs(throughputs_by_type(), GAVEL_TYPES)
    rates = {
        f"{model}_batch{batch_size}": {
            gpu_type: curve.rate_by_num_gpus for gpu_type, curve in tables.curve_by_type(model, batch_size).items()
        }
        for model in tables.models
        for batch_size in tables.batch_sizes(model)
    }
    return ThroughputTable(source=tables.source, rates=rates)

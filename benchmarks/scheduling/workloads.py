"""Inputs of the benchmark: the available traces, and generated workloads, for which no parameter was tuned."""

import re
from dataclasses import dataclass
from math import gcd
from pathlib import Path

from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.workload.generator import Arrivals, Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs, read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import (
    ClusterShape,
    Workload,
    bundled_throughputs,
    bundled_trace,
    bundled_traces,
)

PUBLISHED_GPUS = {"cluster10": 256, "cluster01": 512, "cluster03": 512, "cluster06": 512}
OTHERWISE_GPUS = 64
GPUS_PER_NODE = 8

_FOUND_TRACES, _FOUND_THROUGHPUTS = Path("../shared/traces"), Path("../shared/throughputs/A100")

_LARGE_JOBS = {1: 0.6, 2: 0.1, 4: 0.05, 8: 0.2, 16: 0.05}
GENERATED = {  # by name: recipe and seed
    "generated poisson": (Recipe(num_jobs=400, cluster_gpus=64, load=0.7), 11),
    "generated bursty": (
        Recipe(num_jobs=400, cluster_gpus=64, load=0.7, arrivals=Arrivals.BURSTY, median_gpu_hours=0.5),
        12,
    ),
    "generated diurnal": (
        Recipe(num_jobs=400, cluster_gpus=64, load=0.7, arrivals=Arrivals.DIURNAL, tightness=(0.8, 3.0)),
        13,
    ),
    "generated heavy-tailed": (
        Recipe(num_jobs=400, cluster_gpus=64, load=0.7, gpu_hours_sigma=2.5, num_gpus_weights=_LARGE_JOBS),
        14,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A workload, and the size of the cluster that it was published with, or made for."""

    workload: Workload
    published_gpus: int

    @property
    def name(self) -> str:
        return self.workload.name

    def first(self, num_jobs: int) -> "Case":
        """Its first jobs only."""
        return Case(workload=Workload.of(self.name, self.workload.jobs[:num_jobs]), published_gpus=self.published_gpus)


def tables(throughputs: Path | None) -> Throughputs:
    """The tables of a folder; without one, the published ones if they are there, else the bundled ones."""
    if throughputs is None:
        throughputs = _FOUND_THROUGHPUTS if _FOUND_THROUGHPUTS.is_dir() else bundled_throughputs()
    return read_throughputs(throughputs)


def trace_cases(traces: Path | None, known: Throughputs) -> list[Case]:
    """Every trace of a folder; the published ones if they are there, else the bundled ones. Bad rows are left out."""
    if traces is None and _FOUND_TRACES.is_dir():
        traces = _FOUND_TRACES
    if traces is None:
        files = [bundled_trace(name) for name in bundled_traces()]
    else:
        files = sorted(traces.glob("*.csv"))
        if not files:
            raise BadSettings((f"{traces} holds no trace *.csv",))
    return [
        Case(workload=read_trace(file, known, True, 0), published_gpus=_published_gpus(file.stem)) for file in files
    ]


def generated_cases(known: Throughputs) -> list[Case]:
    """The workloads of GENERATED."""
    return [
        Case(workload=generate(recipe, known, seed, name), published_gpus=recipe.cluster_gpus)
        for name, (recipe, seed) in GENERATED.items()
    ]


def cluster_of(num_gpus: int) -> ClusterShape:
    """Nodes of eight GPUs, of fewer where eight do not divide the number; a smaller cluster is one node."""
    per_node = num_gpus if num_gpus < GPUS_PER_NODE else gcd(num_gpus, GPUS_PER_NODE)
    return ClusterShape(num_nodes=num_gpus // per_node, gpus_per_node=per_node)


def _published_gpus(name: str) -> int:
    found = re.search(r"cluster\d+", name)
    return PUBLISHED_GPUS.get(found.group() if found else "", OTHERWISE_GPUS)

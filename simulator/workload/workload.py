"""A workload: the jobs that a simulation submits, each with its true curve, in the order of their submission.

Also where the bundled traces and tables are (simulator/data), for first runs and tests.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.gpus import GpuId, GpuRange, gpus_by_type
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.limits import MAX_GPUS
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.workload.csv_table import BadRow, Row, bad_input
from elasticflow.simulator.workload.throughput_tables import NO_TYPE

CLASSES = {
    "best_effort": JobClass.BEST_EFFORT,
    "soft_deadline": JobClass.SOFT,
    "padding": JobClass.PADDING,
}


def job_class_of(row: Row) -> JobClass:
    """The class in a row of a trace: one of three columns may say 1. BadInput if two do."""
    chosen = [column for column in CLASSES if row.flag(column)]
    if len(chosen) > 1:
        raise row.bad_input(chosen[1], f"cannot be 1 beside {chosen[0]}; choose one")
    return CLASSES[chosen[0]] if chosen else JobClass.SLO


TENANT = "trace"  # of jobs whose trace names none


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job. Times are in seconds on the clock of the trace.

    deadline_s: absolute; None for best effort, and only then.
    num_gpus, duration_s: requested GPUs and the time that the job ran on them, for the rigid baselines only;
    0 = unknown; num_gpus need be neither a power of two nor a level of the curve.
    priority: the greater first; None: that of its class for baselines, and else 1.
    state_bytes: parameters, optimizer and buffers, which a resize moves; 0 = unknown.
    curve: at all levels where the job makes progress and may run, also beyond the size of the cluster; on the pool's
    first GPU type. measured: the whole curve of its model, if the range excludes a part of it. measured_by_type: the
    same on each type where it runs; empty for a pool of one type.
    min_gpus, max_gpus: its range of GPUs; on each type, if its user asks for mixed_gpu_types.
    gpus_per_replica: so many GPUs of one node hold its model together; its curve has no fewer.
    """

    job_id: str
    submitted_at_s: float
    num_iterations: int
    model_name: str
    global_batch_size: int
    deadline_s: float | None
    job_class: JobClass
    num_gpus: int = 0
    duration_s: float = 0.0
    priority: float | None = None
    tenant: str = TENANT
    state_bytes: int = 0
    curve: ScalingCurve
    min_gpus: int = 1
    max_gpus: int | None = None
    gpus_per_replica: int = 1
    measured: ScalingCurve | None = None
    mixed_gpu_types: bool = False
    measured_by_type: Mapping[str, ScalingCurve] = field(default_factory=dict[str, ScalingCurve])

    def __post_init__(self) -> None:
        if not math.isfinite(self.submitted_at_s):
            raise ValueError(f"{self.job_id}: submitted at {self.submitted_at_s}")
        if self.num_iterations < 1:
            raise ValueError(f"{self.job_id}: a job needs at least one iteration")
        if (self.deadline_s is not None) != self.job_class.has_deadline:
            raise ValueError(f"{self.job_id}: slo and soft jobs have a deadline, the others have none")
        if self.deadline_s is not None and not self.submitted_at_s < self.deadline_s < math.inf:
            raise ValueError(f"{self.job_id}: the deadline must come after the submission")

    def measured_on(self, gpu_type: str) -> ScalingCurve | None:
        """The whole curve of its model on GPUs of this type; None if it does not run there."""
        return self.measured_by_type.get(gpu_type) if self.measured_by_type else self.measured or self.curve

    def curve_on(self, gpu_type: str) -> ScalingCurve | None:
        """Its curve on GPUs of this type; None if it does not run there within its range."""
        if not self.measured_by_type:
            return self.curve
        measured = self.measured_by_type.get(gpu_type)
        return measured and within(measured, GpuRange.of(max(self.min_gpus, self.gpus_per_replica), self.max_gpus))

    def without_gangs(self) -> "TraceJob":
        """The same job with its replica's GPUs as its fewest, wherever they are: for baselines."""
        return replace(self, gpus_per_replica=1, min_gpus=max(self.min_gpus, self.gpus_per_replica))

    def on_type(self, gpu_type: str) -> "TraceJob | None":
        """The same job for a pool of this type alone; None if it does not run there."""
        curve = self.curve_on(gpu_type)
        if curve is None:
            return None
        return replace(self, curve=curve, measured=self.measured_on(gpu_type), measured_by_type={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs ordered by (submitted_at_s, job_id), each id once. skipped: bad rows, which the reader left out.
    other_columns: of its file, which mean nothing here."""

    name: str
    jobs: tuple[TraceJob, ...]
    skipped: tuple[BadRow, ...] = ()
    other_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        keys = [(job.submitted_at_s, job.job_id) for job in self.jobs]
        if keys != sorted(keys):
            raise ValueError("jobs must be ordered by submission, then by id")
        if len({job.job_id for job in self.jobs}) < len(keys):
            raise ValueError("two jobs have the same id")

    @staticmethod
    def of(
        name: str, jobs: Iterable[TraceJob], skipped: Iterable[BadRow] = (), other_columns: Iterable[str] = ()
    ) -> "Workload":
        """The jobs in any order."""
        ordered = sorted(jobs, key=lambda job: (job.submitted_at_s, job.job_id))
        return Workload(name=name, jobs=tuple(ordered), skipped=tuple(skipped), other_columns=tuple(other_columns))

    def on_type(self, gpu_type: str) -> "Workload":
        """The jobs that run on this GPU type, for a pool of this type alone."""
        on_type = (job.on_type(gpu_type) for job in self.jobs)
        return replace(self, jobs=tuple(job for job in on_type if job is not None))


def within(measured: ScalingCurve, gpu_range: GpuRange) -> ScalingCurve | None:
    """The part of a curve within a range of GPUs; None if the job makes no progress there."""
    rates = {level: rate for level, rate in measured.rate_by_num_gpus.items() if gpu_range.allows(level)}
    return ScalingCurve(tuple(rates), tuple(rates.values())) if any(rates.values()) else None


def bundled_throughputs() -> Path:
    """The folder of the tables without a type."""
    return Path(str(files("elasticflow.simulator") / "data" / "throughputs"))


def throughputs_by_type() -> Path:
    """The folder of the tables for V100, P100 and K80: an excerpt of Gavel's published measurements."""
    return Path(str(files("elasticflow.simulator") / "data" / "throughputs_by_type"))


def bundled_traces() -> tuple[str, ...]:
    """Names of the traces, sorted."""
    return tuple(sorted(file.stem for file in _trace_folder().glob("*.csv")))


def bundled_trace(name: str) -> Path:
    """The file of a trace, by its name."""
    if name not in bundled_traces():
        raise bad_input(name, f"is not a bundled trace; choose one of {', '.join(bundled_traces())}")
    return _trace_folder() / f"{name}.csv"


def _trace_folder() -> Path:
    return Path(str(files("elasticflow.simulator") / "data" / "traces"))


# --- A pool with GPUs of several types, as users write it: `4xV100,8xP100,16xK80` ----------------------


@dataclass(frozen=True, slots=True)
class TypedPool:
    """num_gpus: of each type, in the same order."""

    gpu_types: tuple[str, ...]
    num_gpus: tuple[int, ...]

    @property
    def num_gpus_I(self) -> NDArray[np.int64]:
        return np.array(self.num_gpus)

    @property
    def num_gpus_by_type(self) -> dict[str, int]:
        return dict(zip(self.gpu_types, self.num_gpus, strict=True))

    @property
    def total_gpus(self) -> int:
        return sum(self.num_gpus)

    def __str__(self) -> str:
        return ",".join(f"{count}x{name}" for name, count in zip(self.gpu_types, self.num_gpus, strict=True))


def typed_pool(text: str) -> TypedPool:
    """The pool that `text` describes; BadSettings names the part that is wrong."""
    counts = gpus_by_type(text, "pool")
    return TypedPool(tuple(counts), tuple(counts.values()))


# --- cluster shape -------------------------------------------------------------------------------------
# The shape of a simulated cluster: how many nodes and GPUs it has, and of which types.


class SimulatedNode(NamedTuple):
    gpu_type: str
    num_gpus: int


@dataclass(frozen=True, kw_only=True)  # not slotted: cached properties
class ClusterShape:
    """num_nodes machines with gpus_per_node GPUs each; neither need be a power of two.

    pool: its types; None: all GPUs are equal. A node has GPUs of one type, the last one of a type what is left.
    """

    num_nodes: int
    gpus_per_node: int
    pool: TypedPool | None = None

    @staticmethod
    def of_pool(pool: TypedPool, gpus_per_node: int) -> "ClusterShape":
        """Nodes of the first type come first, so that it is the first type of the simulated pool, too."""
        num_nodes = sum(math.ceil(count / max(gpus_per_node, 1)) for count in pool.num_gpus)
        return ClusterShape(num_nodes=num_nodes, gpus_per_node=gpus_per_node, pool=pool)

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1, not {count}"
            for name, count in (("nodes", self.num_nodes), ("GPUs per node", self.gpus_per_node))
            if count < 1
        ]
        if not problems and self.num_gpus > MAX_GPUS:
            problems.append(f"{self.num_gpus} GPUs are more than the {MAX_GPUS} that a pool may have")
        if problems:
            raise BadSettings(tuple(problems))

    @cached_property
    def num_gpus_by_type(self) -> Mapping[str, int]:
        """The number of GPUs by type, in the order of the types; the type is "" if all GPUs are equal."""
        if self.pool is None:
            return {NO_TYPE: self.num_nodes * self.gpus_per_node}
        return self.pool.num_gpus_by_type

    @property
    def num_gpus(self) -> int:
        return sum(self.num_gpus_by_type.values())

    @property
    def gpu_types(self) -> tuple[str, ...]:
        return tuple(self.num_gpus_by_type)

    @cached_property
    def nodes(self) -> Mapping[str, SimulatedNode]:
        """The nodes by id, in the order of their names."""
        digits = len(str(self.num_nodes - 1))
        shapes = (
            SimulatedNode(gpu_type, min(self.gpus_per_node, count - first))
            for gpu_type, count in self.num_gpus_by_type.items()
            for first in range(0, count, self.gpus_per_node)
        )
        return {f"node-{number:0{digits}d}": shape for number, shape in enumerate(shapes)}

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The ids of the nodes, in the order of their names."""
        return tuple(self.nodes)

    def gpus_of(self, node_id: str) -> tuple[GpuId, ...]:
        return tuple(GpuId(node_id, index) for index in range(self.nodes[node_id].num_gpus))

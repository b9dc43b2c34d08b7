"""Inputs of the simulated pool: its nodes, its settings, and the commands of its users."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import ThroughputMeasured
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.limits import MAX_GPUS
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.baselines.policy_catalogue import AdmissionPolicy
from elasticflow.simulator.timing.training_time import single_gpu_steps
from elasticflow.simulator.workload.throughput_tables import NO_TYPE
from elasticflow.simulator.workload.workload import TraceJob, TypedPool, Workload

TENANT = "trace"
NEVER_S = 1e11  # progress is known exactly, so it may be extrapolated without limit
AT_ONCE_S = 1e-3  # until a lost node is detected


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
        """In the order of the types; the type is "" if all GPUs are equal."""
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
        """By id, in the order of their names."""
        digits = len(str(self.num_nodes - 1))
        shapes = (
            SimulatedNode(gpu_type, min(self.gpus_per_node, count - first))
            for gpu_type, count in self.num_gpus_by_type.items()
            for first in range(0, count, self.gpus_per_node)
        )
        return {f"node-{number:0{digits}d}": shape for number, shape in enumerate(shapes)}

    @property
    def node_ids(self) -> tuple[str, ...]:
        """In the order of their names."""
        return tuple(self.nodes)

    def gpus_of(self, node_id: str) -> tuple[GpuId, ...]:
        return tuple(GpuId(node_id, index) for index in range(self.nodes[node_id].num_gpus))


def pool_config(
    workload: Workload,
    resize_cost: ResizeCost,
    *,
    admission: AdmissionPolicy = "selective",
    reserve_nodes: int = 0,
    confidence: float | None = None,
    speed_noise: float = 0.0,
    gpu_types: Sequence[str] = (NO_TYPE,),
    stop_free: bool = False,
) -> PoolConfig:
    """Settings with the true curves and costs, without margins for error."""
    return PoolConfig(
        resize_cost_s=0.0,
        resize_cost_s_by_num_gpus=dict(zip(resize_cost.num_gpus_C, resize_cost.seconds_C, strict=True)),
        progress_timeout_s=NEVER_S,
        admission=admission,
        reserve_nodes=reserve_nodes,
        throughput_margin=0.0,
        confidence=confidence,
        speed_spread=speed_noise or PoolConfig().speed_spread,
        deadline_slack_s=0.0,
        heartbeat_timeout_s=AT_ONCE_S,
        stall_timeout_s=NEVER_S,
        stop_free=stop_free,
        curves=dict(_curve(job, gpu_type, gpu_types[0]) for gpu_type in gpu_types for job in workload.jobs),
    )


def _curve(job: TraceJob, gpu_type: str, first: str) -> tuple[str, Mapping[int, float]]:
    """Its profile key on a type and the curve there: 0 at levels where it runs on other types only, so that none is
    unknown, which would have to be measured."""
    spec = replace(spec_of(job), gpu_type="" if gpu_type == first else gpu_type)  # specs do not name the first type
    curve, others = job.measured_on(gpu_type), job.measured_by_type.values()
    elsewhere = sorted({level for other in others for level in other.num_gpus_L})
    return spec.configured_key, dict.fromkeys(elsewhere, 0.0) | (dict(curve.rate_by_num_gpus) if curve else {})


def single_gpu_profiles(
    workload: Workload, gpu_types: Sequence[str], mix_efficiency: float | None, at_s: float
) -> Iterator[ThroughputMeasured]:
    """Step times of one GPU by profile and type, as profiling runs report them; none where no job can be mixed."""
    seen = set[str]()
    for gpu_type, job in product(gpu_types, workload.jobs):
        profile_key, rates = _curve(job, gpu_type, gpu_types[0])
        if mix_efficiency is None or len(gpu_types) == 1 or profile_key in seen or not rates.get(1):
            continue
        seen.add(profile_key)
        yield ThroughputMeasured(
            profile_key=profile_key,
            num_gpus=1,
            iterations_per_s=rates[1],
            single_gpu=single_gpu_steps(rates[1], job.global_batch_size, mix_efficiency),
            job_id=job.job_id,
            generation=1,
            source="profile",
            at_s=at_s,
        )


def submission(job: TraceJob) -> SubmitJob:
    """The command of the job's user."""
    return SubmitJob(job_id=job.job_id, tenant=TENANT, spec=spec_of(job))


def spec_of(job: TraceJob) -> JobSpec:
    return JobSpec(
        training_function="trace:Job",
        model_name=job.model_name,
        global_batch_size=job.global_batch_size,
        max_iterations=job.num_iterations,
        job_class=job.job_class,
        deadline_s=job.deadline_s,
        min_gpus=job.min_gpus,
        max_gpus=job.max_gpus,
        mixed_gpu_types=job.mixed_gpu_types,
    )

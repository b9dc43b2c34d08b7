"""Inputs of the simulated pool: its nodes, its settings, and the commands of its users."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.limits import MAX_GPUS
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.simulator.baselines.policy_catalogue import AdmissionPolicy
from elasticflow.simulator.workload.workload import TraceJob, Workload

TENANT = "trace"
NEVER_S = 1e11  # progress is known exactly, so it may be extrapolated without limit
AT_ONCE_S = 1e-3  # until a lost node is detected


class SimulatedType(NamedTuple):
    """A GPU type. speed: of its GPUs over those of which the trace has curves."""

    name: str
    speed: float


ONE_TYPE = SimulatedType(name="", speed=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """num_nodes machines with gpus_per_node GPUs each; neither need be a power of two. Nodes have the types in turn."""

    num_nodes: int
    gpus_per_node: int
    gpu_types: tuple[SimulatedType, ...] = (ONE_TYPE,)

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

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def node_ids(self) -> tuple[str, ...]:
        """In the order of their names."""
        digits = len(str(self.num_nodes - 1))
        return tuple(f"node-{number:0{digits}d}" for number in range(self.num_nodes))

    def type_of(self, node_id: str) -> SimulatedType:
        """The type of all GPUs of the node."""
        return self.gpu_types[int(node_id.rpartition("-")[2]) % len(self.gpu_types)]

    def gpus_of(self, node_id: str) -> tuple[GpuId, ...]:
        return tuple(GpuId(node_id, index) for index in range(self.gpus_per_node))


def pool_config(
    workload: Workload,
    resize_cost: ResizeCost,
    *,
    admission: AdmissionPolicy = "selective",
    reserve_nodes: int = 0,
    confidence: float | None = None,
    speed_noise: float = 0.0,
    gpu_types: Sequence[SimulatedType] = (ONE_TYPE,),
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
        curves=dict(_curve(job, gpu_type, gpu_types[0]) for gpu_type in gpu_types for job in workload.jobs),
    )


def _curve(job: TraceJob, gpu_type: SimulatedType, first: SimulatedType) -> tuple[str, dict[int, float]]:
    """Its profile key on a type and the curve there. Specs do not name the first type of a pool."""
    spec = replace(spec_of(job), gpu_type="" if gpu_type == first else gpu_type.name)
    rates = (job.measured or job.curve).rate_by_num_gpus
    return spec.measured_key, {num_gpus: rate * gpu_type.speed for num_gpus, rate in rates.items()}


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
    )

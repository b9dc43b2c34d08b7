"""Inputs of the simulated pool: its policies and settings, and the commands of its users."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import ThroughputMeasured
from elasticflow.shared.messages.job_spec import TORCHRUN, JobSpec
from elasticflow.shared.messages.pool_config import BestEffortRule, PoolConfig
from elasticflow.shared.state.policy import Policy
from elasticflow.simulator.baselines.policy_catalogue import AdmissionPolicy
from elasticflow.simulator.timing.training_time import single_gpu_steps
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.failures_and_speed_noise import SpeedNoise
from elasticflow.simulator.workload.throughput_tables import NO_TYPE
from elasticflow.simulator.workload.workload import TraceJob, Workload

FAR_APART = "cluster"  # the level of GPUs on several nodes
NEVER_S = 1e11  # progress is known exactly, so it may be extrapolated without limit
AT_ONCE_S = 1e-3  # until a lost node is detected


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPool:
    """The policies of a pool, which decide in their order, and its settings.

    policies: None: the services' own. migrates_promised: whether jobs with a deadline migrate for blocks; False for
    baselines that know one speed for each number of GPUs. config: settings of a live pool, whose monitor corrects the
    curves; None: policies know the true curves and costs. by_front: jobs of the workload arrive only by `submit`, from
    a front that has several such pools.
    """

    policies: Mapping[str, Policy[Any]] | None = None
    admission: AdmissionPolicy = "selective"
    best_effort: BestEffortRule = "shortest-first"
    reserve_nodes: int = 0
    confidence: float | None = None
    migrates_promised: bool = True
    config: PoolConfig | None = None
    by_front: bool = False

    def settings(
        self,
        workload: Workload,
        training: TrainingModel,
        gpu_types: Sequence[str] = (NO_TYPE,),
        noise: SpeedNoise | None = None,
    ) -> PoolConfig:
        """The settings of the live pool, or the true curves and costs, without margins for error."""
        if self.config is not None:
            return self.config
        curves = dict(_curve(job, gpu_type, gpu_types[0]) for gpu_type in gpu_types for job in workload.jobs)
        if training.places is not None and self.migrates_promised:
            curves |= {f"{key}@{FAR_APART}": training.places.apart(rates) for key, rates in curves.items()}
        cost = training.resize_cost
        return PoolConfig(
            resize_cost_s=0.0,
            resize_cost_s_by_num_gpus=dict(zip(cost.num_gpus_C, cost.seconds_C, strict=True)),
            progress_timeout_s=NEVER_S,
            admission=self.admission,
            best_effort=self.best_effort,
            reserve_nodes=self.reserve_nodes,
            throughput_margin=0.0,
            confidence=self.confidence,
            speed_spread=noise.sigma if noise is not None else PoolConfig().speed_spread,
            deadline_slack_s=0.0,
            heartbeat_timeout_s=AT_ONCE_S,
            stall_timeout_s=NEVER_S,
            stop_free=training.changes is not None,
            migration_budget=PoolConfig().migration_budget if self.migrates_promised else 0.0,
            curves=curves,
        )


OUR_POOL = SimulatedPool()


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
        if job.gpus_per_replica > 1:
            continue
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
    return SubmitJob(job_id=job.job_id, tenant=job.tenant, spec=spec_of(job))


def spec_of(job: TraceJob) -> JobSpec:
    return JobSpec(
        # a job with several GPUs for each replica is a script, which restarts at each change
        training_function="trace:Job" if job.gpus_per_replica == 1 else f"trace:{TORCHRUN}",
        model_name=job.model_name,
        global_batch_size=job.global_batch_size,
        max_iterations=job.num_iterations,
        job_class=job.job_class,
        deadline_s=job.deadline_s,
        min_gpus=job.min_gpus,
        max_gpus=job.max_gpus,
        gpus_per_replica=job.gpus_per_replica,
        mixed_gpu_types=job.mixed_gpu_types,
        priority=1.0 if job.priority is None else job.priority,
    )

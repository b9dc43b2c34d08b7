"""The services' own policies on the jobs of the comparison with Gavel: no rounds, free resizes, known curves.

A job without a deadline is best effort, one with a deadline of class slo. Its range of GPUs is that of its levels. As
in the linear programs it limits the GPUs of each type, because all jobs ask for mixed types.
"""

import math
from collections.abc import Sequence

from benchmarks.heterogeneous.rounds import ThroughputTable, TypedJob
from elasticflow.shared.messages.gpu_limits import GpuRange
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import FREE, ScalingCurve
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.simulation import Simulation
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, TypedPool, Workload, within

BATCH_SIZE = 128  # of every job: the models of the table are named with theirs
GPUS_PER_NODE = 8


def simulate_own(
    jobs: Sequence[TypedJob], table: ThroughputTable, pool: TypedPool, mix_efficiency: float | None
) -> Result:
    """Run all jobs to their ends; deterministic. mix_efficiency: None allows no mix."""
    workload = Workload.of("typed jobs", (_trace_job(job, table, pool) for job in jobs))
    training = TrainingModel(resize_cost=FREE, mix_efficiency=mix_efficiency)
    return Simulation(workload, ClusterShape.of_pool(pool, GPUS_PER_NODE), training).run()


def mean_completion_s(result: Result) -> float:
    """The mean time from submission to end, over the jobs that ended."""
    times_s = [fate.finished_at_s - fate.job.submitted_at_s for fate in result.fates if fate.finished_at_s is not None]
    return sum(times_s) / len(times_s)


def _trace_job(job: TypedJob, table: ThroughputTable, pool: TypedPool) -> TraceJob:
    rates = {gpu_type: table.throughputs(job.model, gpu_type) for gpu_type in pool.gpu_types}
    measured = {name: ScalingCurve(tuple(by_num), tuple(by_num.values())) for name, by_num in rates.items() if by_num}
    gpu_range = GpuRange(min(job.levels), max(job.levels))
    curves = (within(curve, gpu_range) for curve in measured.values())
    has_deadline = math.isfinite(job.deadline_s)
    return TraceJob(
        job_id=job.job_id,
        submitted_at_s=job.arrived_at_s,
        num_iterations=math.ceil(job.num_iterations),
        model_name=job.model,
        global_batch_size=BATCH_SIZE,
        deadline_s=job.deadline_s if has_deadline else None,
        job_class=JobClass.SLO if has_deadline else JobClass.BEST_EFFORT,
        curve=next(curve for curve in curves if curve is not None),
        min_gpus=min(job.levels),
        max_gpus=max(job.levels),
        mixed_gpu_types=True,
        measured_by_type=measured,
    )

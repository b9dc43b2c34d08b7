"""The numbers of a simulation by GPU type."""

from collections.abc import Mapping

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.trace.result import HOUR_S, Result


def numbers_by_type(result: Result) -> Mapping[str, Mapping[str, object]]:
    """By type, in the order of the pool.

    jobs: admitted there. promised: those of class slo. gpu_hours: held by jobs, stops included. utilization: their part
    of all GPU-hours of the type in the makespan.
    """
    return {gpu_type: _numbers(result, gpu_type, count) for gpu_type, count in result.cluster.num_gpus_by_type.items()}


def _numbers(result: Result, gpu_type: str, num_gpus: int) -> Mapping[str, object]:
    admitted = [fate for fate in result.fates if fate.admitted_on == gpu_type]
    promised = [fate for fate in admitted if fate.job.job_class is JobClass.SLO]
    gpu_seconds = sum(
        occupancy.num_gpus_by_type.get(gpu_type, 0) * occupancy.held_s
        for fate in result.fates
        for occupancy in fate.occupancies
    )
    return {
        "gpus": num_gpus,
        "jobs": len(admitted),
        "promised": len(promised),
        "met": sum(fate.met for fate in promised),
        "late": sum(result.is_late(fate) for fate in promised),
        "gpu_hours": gpu_seconds / HOUR_S,
        "utilization": gpu_seconds / (num_gpus * result.makespan_s) if result.makespan_s else 0.0,
    }

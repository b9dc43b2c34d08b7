"""Certificates of a simulation on several GPU types: the part of each type is checked as a pool of its own."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from elasticflow.shared.messages.events import AllocationDecided, JobAdmitted, JobRejected, PlanEvent
from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.shared.state.gpu_types import as_recorded, parts
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.trace.simulated_pool import ClusterShape
from elasticflow.simulator.verification.trace_verification import TraceVerification
from elasticflow.simulator.workload.workload import Workload


class VerificationByType:
    """Observes a simulation. The numbers are sums over the types; see `TraceVerification`."""

    def __init__(self, workload: Workload, cluster: ClusterShape, resize_cost: ResizeCost) -> None:
        self._by_type = {
            gpu_type: TraceVerification(workload.on_type(gpu_type), resize_cost) for gpu_type in cluster.gpu_types
        }

    @property
    def certificates_checked(self) -> int:
        return sum(each.certificates_checked for each in self._by_type.values())

    @property
    def certificate_failures(self) -> int:
        return sum(each.certificate_failures for each in self._by_type.values())

    @property
    def unproven(self) -> int:
        return sum(each.unproven for each in self._by_type.values())

    @property
    def failures(self) -> list[str]:
        return [failure for each in self._by_type.values() for failure in each.failures]

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        """Check the events of each type against the part of the pool that has this type."""
        by_recorded = parts(before)
        for name, verification in self._by_type.items():
            recorded = as_recorded(before, name)
            part = by_recorded[recorded]
            verification.decided(part, tuple(_of_type(part, recorded, events)), now_s)


def _of_type(part: PoolState, recorded: str, events: Iterable[PlanEvent]) -> Iterator[PlanEvent]:
    """Admission's decisions on this type, and its part of an allocation."""
    for event in events:
        match event:
            case JobAdmitted(gpu_type=gpu_type) | JobRejected(gpu_type=gpu_type):
                if gpu_type == recorded:
                    yield event
            case AllocationDecided():
                yield replace(
                    event,
                    num_gpus_by_job={job: n for job, n in event.num_gpus_by_job.items() if job in part.live_jobs},
                    planned={job: share for job, share in event.planned.items() if job in part.live_jobs},
                )
            case _:
                pass

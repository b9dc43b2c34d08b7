"""Certificates of a simulation on several GPU types: the part of each type is checked as a pool of its own."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from elasticflow.shared.messages.events import (
    AllocationDecided,
    GpuTypeChanged,
    JobAdmitted,
    JobAmended,
    JobRejected,
    PlanEvent,
)
from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.shared.state.fold.ledger_fold import apply
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
        """Check the events of each type against the part of the pool that has this type.

        A changed promise is checked against the part after it: then its job is on its new type.
        """
        unchecked = list[PlanEvent]()
        for event in events:
            unchecked.append(event)
            if isinstance(event, JobAmended | GpuTypeChanged):
                self._check(before, unchecked[:-1], now_s)
                for each in unchecked:
                    before = apply(before, each, before.sequence + 1)
                unchecked = []
                for verification, part, _ in self._parts(before):
                    verification.changed(part, event, now_s)
        self._check(before, unchecked, now_s)

    def _check(self, before: PoolState, events: Sequence[PlanEvent], now_s: float) -> None:
        for verification, part, recorded in self._parts(before):
            of_type = events if part is before else tuple(_of_type(part, recorded, events))
            verification.decided(part, of_type, now_s)

    def _parts(self, state: PoolState) -> Iterator[tuple[TraceVerification, PoolState, str]]:
        by_recorded = parts(state)
        for name, verification in self._by_type.items():
            recorded = as_recorded(state, name)
            yield verification, by_recorded[recorded], recorded


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

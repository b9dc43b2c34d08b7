"""What came of a simulation: the fate of each job, and the numbers that are made of all of them.

Judged by what the world did, never by a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from shared.messages.events import RejectionReason
from shared.messages.job import JobClass
from shared.scheduling.scaling_curve import ScalingCurve
from simulator.trace_driven.pool import ClusterShape
from simulator.trace_driven.world import Outage, Stay
from simulator.workload.jobs import TraceJob, Workload

if TYPE_CHECKING:
    from simulator.trace_driven.simulation import Simulation

HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of one job. Neither admitted nor rejected, nor finished: not before the simulation was stopped.

    decided_at_s: later than its submission where it waited for a node to come back.
    """

    job: TraceJob
    admitted: bool
    rejection: RejectionReason | None
    decided_at_s: float | None
    finished_at_s: float | None
    stays: tuple[Stay, ...]

    @property
    def met(self) -> bool:
        """It had a deadline, and ended by then."""
        if self.job.deadline_s is None or self.finished_at_s is None:
            return False
        return self.finished_at_s <= self.job.deadline_s

    @property
    def gpu_seconds(self) -> float:
        return sum(stay.gpu_seconds for stay in self.stays)


@dataclass(frozen=True, kw_only=True)  # not slotted: what is counted once is kept
class Result:
    """partial: the simulation was stopped at ended_at_s, and jobs that had not ended then have no finish."""

    workload: Workload
    cluster: ClusterShape
    fates: tuple[Fate, ...]  # in the order of the workload
    outages: tuple[Outage, ...]  # in the order of their beginning
    num_migrations: int
    ended_at_s: float
    partial: bool

    @property
    def submitted(self) -> tuple[Fate, ...]:
        """Of jobs that had come when the simulation ended."""
        return tuple(
            fate for fate in self.fates if not self.partial or fate.job.submitted_at_s <= self.ended_at_s
        )

    @property
    def num_slo(self) -> int:
        """Jobs of class slo that were submitted."""
        return sum(fate.job.job_class is JobClass.SLO for fate in self.submitted)

    @property
    def num_admitted(self) -> int:
        return sum(fate.admitted for fate in self.fates)

    @property
    def num_rejected(self) -> int:
        return sum(fate.rejection is not None for fate in self.fates)

    def num_met(self, job_class: JobClass = JobClass.SLO) -> int:
        """Jobs of this class that ended by their deadline."""
        return sum(fate.met for fate in self.fates if fate.job.job_class is job_class)

    def num_late(self, job_class: JobClass = JobClass.SLO) -> int:
        """Admitted jobs of this class whose deadline passed before they ended: of class slo, broken promises."""
        return sum(self._is_late(fate) for fate in self.fates if fate.job.job_class is job_class)

    def _is_late(self, fate: Fate) -> bool:
        deadline_s = fate.job.deadline_s
        if not fate.admitted or fate.met or deadline_s is None:
            return False
        return fate.finished_at_s is not None or not self.partial or deadline_s < self.ended_at_s

    @property
    def num_unfinished(self) -> int:
        return sum(fate.admitted and fate.finished_at_s is None for fate in self.fates)

    @property
    def deadline_satisfactory_ratio(self) -> float | None:
        """Jobs of class slo that met their deadline over all of them, the rejected among them."""
        return self.num_met() / self.num_slo if self.num_slo else None

    @cached_property
    def makespan_s(self) -> float:
        """From the first submission to the last end."""
        ends_s = [fate.finished_at_s for fate in self.fates if fate.finished_at_s is not None]
        if self.partial:
            ends_s.append(self.ended_at_s)
        return max(ends_s) - self.workload.jobs[0].submitted_at_s if ends_s else 0.0

    @property
    def cluster_efficiency(self) -> float:
        """The mean over the makespan of equation 8 (ElasticFlow, section 6.1): each GPU counts with its part of
        its job's throughput, measured in the throughput of one GPU alone."""
        if not self.makespan_s:
            return 0.0
        alone_s = sum(
            stay.iterations / rate_alone(fate.job.curve) for fate in self.fates for stay in fate.stays
        )
        return alone_s / (self.cluster.num_gpus * self.makespan_s)

    @property
    def mean_jct_best_effort_s(self) -> float | None:
        """From submission to end, over the best-effort jobs that ended."""
        times_s = [
            fate.finished_at_s - fate.job.submitted_at_s
            for fate in self.fates
            if fate.job.job_class is JobClass.BEST_EFFORT and fate.finished_at_s is not None
        ]
        return sum(times_s) / len(times_s) if times_s else None

    @property
    def num_resizes(self) -> int:
        """Stops after a job's first, migrations aside."""
        return sum(max(len(fate.stays) - 1, 0) for fate in self.fates) - self.num_migrations

    @property
    def num_outages(self) -> int:
        """Times that a node went down."""
        return len(self.outages)

    @property
    def gpu_hours(self) -> float:
        """Held by jobs, stops included."""
        return sum(fate.gpu_seconds for fate in self.fates) / HOUR_S

    def numbers(self) -> Mapping[str, object]:
        """The numbers of this run, by the names under which they are published."""
        return {
            "jobs": len(self.submitted),
            "admitted": self.num_admitted,
            "rejected": self.num_rejected,
            "met": self.num_met(),
            "late": self.num_late(),
            "soft_met": self.num_met(JobClass.SOFT),
            "soft_late": self.num_late(JobClass.SOFT),
            "unfinished": self.num_unfinished,
            "deadline_satisfactory_ratio": self.deadline_satisfactory_ratio,
            "cluster_efficiency": self.cluster_efficiency,
            "makespan_s": self.makespan_s,
            "mean_jct_best_effort_s": self.mean_jct_best_effort_s,
            "resizes": self.num_resizes,
            "migrations": self.num_migrations,
            "outages": self.num_outages,
            "gpu_hours": self.gpu_hours,
        }


def rate_alone(curve: ScalingCurve) -> float:
    """Iterations/s on one GPU; of a job that needs more, one GPU's part at its smallest level."""
    return curve.iterations_per_s_L[0] / curve.num_gpus_L[0]


def result_of(simulation: Simulation, *, partial: bool) -> Result:
    """What has become of each job so far."""
    stays_by_job: dict[str, list[Stay]] = {}
    for stay in simulation.world.stays:
        stays_by_job.setdefault(stay.job_id, []).append(stay)
    return Result(
        workload=simulation.workload,
        cluster=simulation.cluster,
        fates=tuple(
            Fate(
                job=job,
                admitted=job.job_id in simulation.admitted,
                rejection=simulation.rejected.get(job.job_id),
                decided_at_s=simulation.decided_at_s.get(job.job_id),
                finished_at_s=simulation.finished_at_s.get(job.job_id),
                stays=tuple(stays_by_job.get(job.job_id, ())),
            )
            for job in simulation.workload.jobs
        ),
        outages=tuple(simulation.world.outages),
        num_migrations=simulation.num_migrations,
        ended_at_s=simulation.now_s,
        partial=partial,
    )

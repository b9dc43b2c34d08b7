"""One run as the command line describes it, and its published numbers."""

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.simulator.baselines.baseline import UserRequest
from elasticflow.simulator.baselines.policy_catalogue import BASELINES, OURS, policies_named
from elasticflow.simulator.timing.mixed_types import MEASURED_MIX_EFFICIENCY
from elasticflow.simulator.timing.overhead import Overhead, overhead_model
from elasticflow.simulator.trace.completion_times import completion_numbers
from elasticflow.simulator.trace.failures_and_speed_noise import Failures, SpeedNoise
from elasticflow.simulator.trace.idle_time import IdleTimeMeter
from elasticflow.simulator.trace.node_ends import NodeEnds
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.result_by_type import numbers_by_type
from elasticflow.simulator.trace.simulated_pool import ClusterShape
from elasticflow.simulator.trace.simulation import Observer, Simulation
from elasticflow.simulator.verification.verification_by_type import VerificationByType
from elasticflow.simulator.workload.workload import Workload

if TYPE_CHECKING:
    from elasticflow.simulator.bound import Bound

BY_TYPE = "by_type"  # of the published numbers: None if all GPUs are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A workload on a cluster under a policy. policy, overhead: names; BadSettings if unknown.

    mix_efficiency: part of the sum of the throughputs on each type that a job on several types has; None: no job is.
    Baselines know no GPU types: BadSettings on a cluster of several.
    """

    workload: Workload
    cluster: ClusterShape
    policy: str = "selective"
    overhead: str = "reference"
    reserve_nodes: int = 0
    failures: Failures | None = None
    ends: NodeEnds | None = None
    confidence: float | None = None
    noise: SpeedNoise | None = None
    mix_efficiency: float | None = MEASURED_MIX_EFFICIENCY

    def __post_init__(self) -> None:
        if len(self.cluster.gpu_types) > 1 and self.policy in BASELINES:
            ours = " or ".join(OURS)
            raise BadSettings((f"policy {self.policy!r} knows no GPU types; on a pool of several choose {ours}",))

    @property
    def overheads(self) -> Overhead:
        return overhead_model(self.overhead, self.cluster.num_gpus)

    @property
    def resize_cost(self) -> ResizeCost:
        """The cost that policies plan with, for every job."""
        return self.overheads.most(self.workload.jobs)

    def verification(self) -> VerificationByType | None:
        """An observer that checks certificates; None for baselines and unknown speeds, which have none."""
        if self.policy not in OURS or self.noise is not None:
            return None
        return VerificationByType(self.workload, self.cluster, self.resize_cost)

    def simulation(self, *observers: Observer | None, measures_idle_time: bool = False) -> Simulation:
        """The simulation, with these observers. To measure idle time takes one pass over all jobs at each instant."""
        jobs = self.workload.jobs
        requests = {job.job_id: UserRequest(num_gpus=job.num_gpus, priority=job.priority) for job in jobs}
        chosen = policies_named(self.policy, requests)
        return Simulation(
            self.workload,
            self.cluster,
            chosen.policies,
            resize_cost=self.resize_cost,
            admission=chosen.admission,
            reserve_nodes=self.reserve_nodes,
            failures=self.failures,
            ends=self.ends,
            confidence=self.confidence,
            noise=self.noise,
            costs=self.overheads.by_job(self.workload.jobs),
            changes=self.overheads.changes,
            mix_efficiency=self.mix_efficiency,
            observers=tuple(observer for observer in observers if observer is not None),
            idle_time_meter=IdleTimeMeter() if measures_idle_time else None,
        )

    def bound(self) -> "Bound":
        """The most deadlines that any policy can meet here, with knowledge of the future and of true speeds."""
        from elasticflow.simulator.bound import clairvoyant_bound  # its solver takes a while to load

        workload = self.workload if self.noise is None else self.noise.revealed(self.workload)
        return clairvoyant_bound(workload, self.cluster.num_gpus_by_type, self.overheads.least(workload.jobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A result with the cost of computing it. wall_s: real seconds of the simulation alone."""

    run: SimulatedRun
    result: Result
    certificates_checked: int | None  # None: the policy gives no certificates
    certificate_failures: int | None
    unproven: int | None  # rejections without a proof: the search found no plan
    failures: tuple[str, ...]  # what is wrong with certificates, one sentence each
    wall_s: float
    peak_rss_mb: float  # of the whole process so far

    def numbers(self, bound: "Bound | None" = None) -> Mapping[str, object]:
        """The published numbers of the run, in their order."""
        result, met_of_bound = self.result, None
        if bound is not None and bound.jobs_met:
            met_of_bound = result.num_met() / bound.jobs_met
        return {
            "trace": self.run.workload.name,
            "num_gpus": self.run.cluster.num_gpus,
            "overhead": self.run.overhead,
            "policy": self.run.policy,
            **result.numbers(),
            **completion_numbers(result),
            **(result.idle_time.numbers() if result.idle_time is not None else {}),
            BY_TYPE: numbers_by_type(result) if len(result.cluster.gpu_types) > 1 else None,
            "bound": bound.jobs_met if bound is not None else None,
            "bound_exact": bound.exact if bound is not None else None,
            "bound_gpu_hours": bound.gpu_hours if bound is not None else None,
            "feasible_alone": bound.feasible_alone if bound is not None else None,
            "fraction_of_bound": met_of_bound,
            "certificates_checked": self.certificates_checked,
            "certificate_failures": self.certificate_failures,
            "unproven": self.unproven,
            "wall_s": round(self.wall_s, 3),
            "peak_rss_mb": round(self.peak_rss_mb, 1),
            "partial": result.partial,
        }


def execute(
    run: SimulatedRun,
    simulation: Simulation,
    verification: VerificationByType | None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run `simulation`, which `run` made, observed by `verification`."""
    began_s = time.perf_counter()
    result = simulation.run(stop)
    return Outcome(
        run=run,
        result=result,
        certificates_checked=verification.certificates_checked if verification else None,
        certificate_failures=verification.certificate_failures if verification else None,
        unproven=verification.unproven if verification else None,
        failures=tuple(verification.failures) if verification else (),
        wall_s=time.perf_counter() - began_s,
        peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )

"""One run, said in the words of the command line, and its numbers."""

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.scheduling.resize_cost import ResizeCost
from simulator.trace_driven.failures import Failures
from simulator.trace_driven.pool import ClusterShape
from simulator.trace_driven.result import Result
from simulator.trace_driven.simulation import Observer, Simulation
from simulator.trace_driven.speed_noise import SpeedNoise
from simulator.trace_driven.strategies import OURS, strategy
from simulator.trace_driven.verification import Verification
from simulator.workload.jobs import Workload
from simulator.workload.overhead import Overhead, overhead_model

if TYPE_CHECKING:
    from simulator.bound import Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A workload on a cluster under a policy. policy, overhead: names; BadSettings where they are none."""

    workload: Workload
    cluster: ClusterShape
    policy: str = "selective"
    overhead: str = "reference"
    reserve_nodes: int = 0
    failures: Failures | None = None
    confidence: float | None = None
    noise: SpeedNoise | None = None

    @property
    def overheads(self) -> Overhead:
        return overhead_model(self.overhead, self.cluster.num_gpus)

    @property
    def resize_cost(self) -> ResizeCost:
        """What policies count on, for every job."""
        return self.overheads.most(self.workload.jobs)

    def verification(self) -> Verification | None:
        """To watch the simulation, if its policy promises anything for certain: baselines do not, and nobody can where
        speeds are not known."""
        if self.policy not in OURS or self.noise is not None:
            return None
        return Verification(self.workload, self.resize_cost)

    def simulation(self, *observers: Observer | None) -> Simulation:
        """Ready to run, before the eyes of these."""
        chosen = strategy(self.policy, self.workload)
        return Simulation(
            self.workload,
            self.cluster,
            chosen.policies,
            resize_cost=self.resize_cost,
            admission=chosen.admission,
            reserve_nodes=self.reserve_nodes,
            failures=self.failures,
            confidence=self.confidence,
            noise=self.noise,
            costs=self.overheads.by_job(self.workload.jobs),
            observers=tuple(observer for observer in observers if observer is not None),
        )

    def bound(self) -> "Bound":
        """What no policy can beat here, however well it foresees, true speeds included."""
        from simulator.bound import clairvoyant_bound  # inside: its solver takes a while to load

        workload = self.workload if self.noise is None else self.noise.revealed(self.workload)
        return clairvoyant_bound(workload, self.cluster.num_gpus, self.overheads.least(workload.jobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A result with what it cost to get it. wall_s: real seconds, of the simulation alone."""

    trial: Trial
    result: Result
    certificates_checked: int | None  # None: the policy gives none
    certificate_failures: int | None
    not_proved: int | None  # refusals for which there is no proof, only that no way was found
    failures: tuple[str, ...]  # what is wrong with certificates, a sentence each
    wall_s: float
    peak_rss_mb: float  # of the whole process so far

    def numbers(self, bound: "Bound | None" = None) -> Mapping[str, object]:
        """Everything that is published of a run, in the order in which it is."""
        result, met_of_bound = self.result, None
        if bound is not None and bound.jobs_met:
            met_of_bound = result.num_met() / bound.jobs_met
        return {
            "trace": self.trial.workload.name,
            "num_gpus": self.trial.cluster.num_gpus,
            "overhead": self.trial.overhead,
            "policy": self.trial.policy,
            **result.numbers(),
            "bound": bound.jobs_met if bound is not None else None,
            "bound_exact": bound.exact if bound is not None else None,
            "bound_gpu_hours": bound.gpu_hours if bound is not None else None,
            "feasible_alone": bound.feasible_alone if bound is not None else None,
            "fraction_of_bound": met_of_bound,
            "certificates_checked": self.certificates_checked,
            "certificate_failures": self.certificate_failures,
            "not_proved": self.not_proved,
            "wall_s": round(self.wall_s, 3),
            "peak_rss_mb": round(self.peak_rss_mb, 1),
            "partial": result.partial,
        }


def run(
    trial: Trial,
    simulation: Simulation,
    verification: Verification | None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """simulation: the trial's, under the eyes of its verification."""
    began_s = time.perf_counter()
    result = simulation.run(stop)
    return Outcome(
        trial=trial,
        result=result,
        certificates_checked=verification.certificates_checked if verification else None,
        certificate_failures=verification.certificate_failures if verification else None,
        not_proved=verification.not_proved if verification else None,
        failures=tuple(verification.failures) if verification else (),
        wall_s=time.perf_counter() - began_s,
        peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )

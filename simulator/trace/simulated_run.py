"""One run as the command line describes it, and its published numbers."""

import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import TYPE_CHECKING, get_args

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.pool_config import BestEffortRule
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.baselines.baseline import UserRequest
from elasticflow.simulator.baselines.policy_catalogue import BASELINES, OURS, WITH_BLOCKS, policies_named
from elasticflow.simulator.timing.overhead import Overhead, overhead_model
from elasticflow.simulator.timing.training_time import MEASURED_MIX_EFFICIENCY, PUBLISHED_SLOWDOWN, Places
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.failures_and_speed_noise import Deviations, Failures, NodeEnds, SpeedNoise
from elasticflow.simulator.trace.result import HOUR_S, Fate, Result
from elasticflow.simulator.trace.simulation import Observer, SimulatedPool, Simulation
from elasticflow.simulator.verification.trace_verification import VerificationByType
from elasticflow.simulator.workload.workload import ClusterShape, Workload

if TYPE_CHECKING:
    from elasticflow.simulator.bound import Bound

# --- completion times ----------------------------------------------------------------------------------
# How long jobs take and wait in a result: means, medians, classes of size, utilization, intervals between decisions.
#
# Source of the classes: Amoeba, Table 2; a size is requested GPUs times duration.

SIZES_GPU_S = {"small": (0.0, 1e4), "medium": (1e4, 2e5), "large": (2e5, float("inf"))}  # from, and to below


def completion_numbers(result: Result) -> Mapping[str, float | None]:
    """The numbers by name; None where no job ended that would count.

    Times run from a job's submission to its end, or to its first GPUs (queueing), over the jobs that ended. A job of
    unknown size is in no class. utilization: GPU-hours held over those of the pool, over the makespan.
    max_slowdown_best_effort: see `_slowdown`. max_stops_best_effort: the most starts of one job.
    scheduling_interval_s: between two instants at which any job got other GPUs.
    """
    ended = [fate for fate in result.fates if fate.finished_at_s is not None]
    by_size = {
        name: [fate for fate in ended if least <= _size_gpu_s(fate) < most and _size_gpu_s(fate)]
        for name, (least, most) in SIZES_GPU_S.items()
    }
    best_effort = [fate for fate in ended if fate.job.job_class is JobClass.BEST_EFFORT]
    placed_at_s = sorted({occupancy.placed_at_s for fate in result.fates for occupancy in fate.occupancies})
    spans_h = result.cluster.num_gpus * result.makespan_s / HOUR_S
    return {
        **_mean_and_median("jct", map(_jct_s, ended)),
        **{
            name: value
            for size, fates in by_size.items()
            for name, value in _mean_and_median(f"jct_{size}", map(_jct_s, fates)).items()
        },
        "mean_jct_best_effort_s": result.mean_jct_best_effort_s,
        "max_slowdown_best_effort": max(map(_slowdown, best_effort), default=None),
        "max_stops_best_effort": max((len(fate.occupancies) for fate in best_effort), default=None),
        **_mean_and_median("queueing", map(_queueing_s, ended)),
        "utilization": result.gpu_hours / spans_h if spans_h else None,
        "scheduling_interval_s": (
            (placed_at_s[-1] - placed_at_s[0]) / (len(placed_at_s) - 1) if len(placed_at_s) > 1 else None
        ),
    }


def _mean_and_median(what: str, times_s: Iterable[float]) -> Mapping[str, float | None]:
    known = list(times_s)
    return {
        f"mean_{what}_s": mean(known) if known else None,
        f"median_{what}_s": median(known) if known else None,
    }


def _jct_s(fate: Fate) -> float:
    assert fate.finished_at_s is not None
    return fate.finished_at_s - fate.job.submitted_at_s


def _slowdown(fate: Fate) -> float:
    """Its completion time over its time alone on its fewest GPUs, without any stop."""
    curve = fate.job.curve
    return _jct_s(fate) * curve.throughput(curve.levels[0]) / fate.job.num_iterations


def _queueing_s(fate: Fate) -> float:
    return min(occupancy.placed_at_s for occupancy in fate.occupancies) - fate.job.submitted_at_s


def _size_gpu_s(fate: Fate) -> float:
    return fate.job.num_gpus * fate.job.duration_s


# --- The numbers of a simulation by GPU type -----------------------------------------------------------


def numbers_by_type(result: Result) -> Mapping[str, Mapping[str, object]]:
    """The numbers by type, in the order of the pool.

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


# --- best-effort rules ---------------------------------------------------------------------------------

BEST_EFFORT_RULES: tuple[BestEffortRule, ...] = get_args(BestEffortRule)


def best_effort_rule(name: str) -> BestEffortRule:
    """The rule of this name. BadSettings for an unknown name."""
    for rule in BEST_EFFORT_RULES:
        if name == rule:
            return rule
    raise BadSettings((f"best effort {name!r} is no rule; choose one of {', '.join(BEST_EFFORT_RULES)}",))


# --- simulated run -------------------------------------------------------------------------------------

BY_TYPE = "by_type"  # of the published numbers: None if all GPUs are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A workload on a cluster under a policy. policy, overhead: names; BadSettings if unknown.

    mix_efficiency: part of the sum of the throughputs on each type that a job on several types has; None: no job is.
    slowdown_apart: of a job on eight nodes instead of one; 1: all places are equal. by_front: see `SimulatedPool`.
    Baselines know no GPU types: BadSettings on a cluster of several.
    """

    workload: Workload
    cluster: ClusterShape
    policy: str = "selective"
    overhead: str = "reference"
    best_effort: BestEffortRule = "shortest-first"
    reserve_nodes: int = 0
    failures: Failures | None = None
    ends: NodeEnds | None = None
    confidence: float | None = None
    noise: SpeedNoise | None = None
    mix_efficiency: float | None = MEASURED_MIX_EFFICIENCY
    slowdown_apart: float = PUBLISHED_SLOWDOWN
    by_front: bool = False

    def __post_init__(self) -> None:
        if len(self.cluster.gpu_types) > 1 and self.policy in BASELINES:
            ours = " or ".join(OURS)
            raise BadSettings((f"policy {self.policy!r} knows no GPU types; on a pool of several choose {ours}",))
        if self.best_effort != BEST_EFFORT_RULES[0] and self.policy in BASELINES:
            ours = " or ".join(OURS)
            raise BadSettings(
                (f"policy {self.policy!r} has a rule of its own; for a rule of best effort choose {ours}",)
            )

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
        return VerificationByType(self.workload, self.cluster, self.resize_cost, self.places)

    def simulation(self, *observers: Observer | None, measures_idle_time: bool = False) -> Simulation:
        """The simulation, with these observers. To measure idle time takes one pass over all jobs at each instant."""
        workload = self.workload
        if self.policy in BASELINES:
            workload = replace(workload, jobs=tuple(job.without_gangs() for job in workload.jobs))
        jobs = workload.jobs
        requests = {job.job_id: UserRequest(num_gpus=job.num_gpus, priority=job.priority) for job in jobs}
        chosen = policies_named(self.policy, requests)
        training = TrainingModel(
            resize_cost=self.resize_cost,
            costs=self.overheads.by_job(jobs),
            changes=self.overheads.changes,
            mix_efficiency=self.mix_efficiency,
            places=self.places,
        )
        pool = SimulatedPool(
            policies=chosen.policies,
            admission=chosen.admission,
            best_effort=self.best_effort,
            reserve_nodes=self.reserve_nodes,
            confidence=self.confidence,
            migrates_promised=self.policy in (OURS if self.places is None else WITH_BLOCKS),
            by_front=self.by_front,
        )
        deviations = Deviations(failures=self.failures, ends=self.ends, noise=self.noise)
        seen_by = tuple(observer for observer in observers if observer is not None)
        simulation = Simulation(workload, self.cluster, training, pool, deviations, seen_by)
        if measures_idle_time:
            simulation.measure_idle_time()
        return simulation

    @property
    def places(self) -> Places | None:
        """None if the place of a job makes no difference."""
        if self.slowdown_apart <= 1:
            return None
        return Places(
            slowdown=self.slowdown_apart,
            gpus_per_node=self.cluster.gpus_per_node,
            num_nodes=self.cluster.num_nodes,
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
    placements_checked: int | None  # of promised jobs
    promised_apart: int | None  # of these, on more nodes than a block needs
    packings_checked: int | None  # over time, of promised jobs, with their migrations paid
    packings_missing: int | None  # sought and not found
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
            "placements_checked": self.placements_checked,
            "promised_apart": self.promised_apart,
            "packings_checked": self.packings_checked,
            "packings_missing": self.packings_missing,
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
        placements_checked=verification.blocks.placements if verification else None,
        promised_apart=verification.blocks.apart if verification else None,
        packings_checked=verification.packings_checked if verification else None,
        packings_missing=verification.packings_missing if verification else None,
        failures=tuple(verification.failures) if verification else (),
        wall_s=time.perf_counter() - began_s,
        peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )

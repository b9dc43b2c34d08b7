"""Every baseline through a whole small workload, on the engine that runs the services' own policies."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import pytest

from elasticflow.shared.messages.events import AllocationDecided, PlanEvent
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.baseline import UserRequest
from elasticflow.simulator.baselines.policy_catalogue import BASELINES, baseline_policies, planners
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, Workload, bundled_throughputs, bundled_trace
from tests.support.trace_jobs import job as trace_job

CLUSTER = ClusterShape(num_nodes=2, gpus_per_node=8)  # half of what the trace was made for: GPUs are scarce
RIGID = (
    "gandiva",
    "tiresias",
    "tiresias-3250-7200",
    "themis",
    "themis-slots-60",
    "themis-slots-240",
    "chronus",
    "chronus-ticks",
    "static-priority",
)
REJECTING = ("elasticflow-algorithms", "edf-admission", "edf-admission-64")


class Watch:
    """The decisions and their times."""

    def __init__(self) -> None:
        self.allocations: list[tuple[float, Mapping[str, int]]] = []

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        for event in events:
            if isinstance(event, AllocationDecided):
                self.allocations.append((now_s, event.num_gpus_by_job))


@lru_cache
def small() -> Workload:
    whole = read_trace(bundled_trace("small"), read_throughputs(bundled_throughputs()))
    return Workload.of("small", whole.jobs[:60])


@lru_cache
def simulated(name: str) -> tuple[Result, Watch]:
    workload, watch = small(), Watch()
    requested = {job.job_id: UserRequest(num_gpus=job.num_gpus) for job in workload.jobs}
    admission, allocator = baseline_policies(BASELINES[name], requested)
    policies = {"admission": admission, "allocator": allocator, "placement": planners()["placement"]}
    simulation = Simulation(
        workload,
        CLUSTER,
        TrainingModel(resize_cost=reference_cost(CLUSTER.num_gpus)),
        SimulatedPool(policies=policies),
        observers=(watch,),
    )
    return simulation.run(), watch


@pytest.mark.parametrize("name", BASELINES)
def test_all_admitted_jobs_end_and_no_gpu_is_allocated_twice(name: str) -> None:
    result, watch = simulated(name)
    for _, shares in watch.allocations:
        assert sum(shares.values()) <= CLUSTER.num_gpus
    for fate in result.fates:
        assert fate.decided_at_s is not None
        assert (fate.finished_at_s is not None) == fate.admitted
    if name not in REJECTING:
        assert result.num_rejected == 0


@pytest.mark.parametrize("name", RIGID)
def test_a_rigid_job_holds_what_was_requested_or_nothing(name: str) -> None:
    result, _ = simulated(name)
    for fate in result.fates:
        assert len({stay.num_gpus for stay in fate.occupancies}) == 1


@pytest.mark.parametrize("name", sorted(set(BASELINES) - set(RIGID)))
def test_an_elastic_job_comes_in_several_sizes(name: str) -> None:
    result, _ = simulated(name)
    assert any(len({stay.num_gpus for stay in fate.occupancies}) > 1 for fate in result.fates)


def test_admission_and_elastic_scaling_each_meet_more_deadlines() -> None:
    """The paper's sources of improvement (ElasticFlow, figure 9), on a small trace."""
    met = {name: sum(fate.met for fate in simulated(name)[0].fates) for name in BASELINES}
    assert min(met["edf-admission"], met["edf-elastic-late-last"]) > met["edf"]
    assert met["edf"] > max(met[name] for name in RIGID)
    assert met["chronus"] > met["gandiva"]


def test_admission_by_earliest_deadline_makes_no_job_late() -> None:
    result, _ = simulated("edf-admission")
    assert 0 < result.num_admitted < len(result.fates)
    assert result.num_late(JobClass.SLO) == 0


def test_the_same_workload_twice_is_decided_the_same() -> None:
    first = simulated("pollux-fixed-batch")[1].allocations
    simulated.cache_clear()
    assert simulated("pollux-fixed-batch")[1].allocations == first


def test_the_priority_of_a_trace_decides_who_runs_first() -> None:
    """Three rigid jobs that arrive together on one GPU: the greatest priority of the trace runs first."""
    jobs = [
        replace(trace_job(name, 100, 0.0, None, job_class=JobClass.BEST_EFFORT), num_gpus=1, priority=priority)
        for name, priority in (("low", 1.0), ("high", 9.0), ("middle", 3.0))
    ]
    workload = Workload.of("priorities", jobs)
    run = SimulatedRun(workload=workload, cluster=ClusterShape(num_nodes=1, gpus_per_node=1), policy="static-priority")
    result = run.simulation().run()
    finished = sorted(result.fates, key=lambda fate: fate.finished_at_s or math.inf)
    assert [fate.job.job_id for fate in finished] == ["high", "middle", "low"]

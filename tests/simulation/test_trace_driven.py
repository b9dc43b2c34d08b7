"""The trace-driven simulation: resizes cost time, the ledger follows true progress, equal inputs give equal results."""

import csv
import json
import math
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.events import PlanEvent
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.baseline import UserRequest
from elasticflow.simulator.baselines.policy_catalogue import POLICY_NAMES, policies_named
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.timing.training_time import DONE_WITHIN_S
from elasticflow.simulator.trace.cluster_state import ClusterState, TrainingModel
from elasticflow.simulator.trace.failures_and_speed_noise import DAY_S, HOUR_S, Deviations, Failures, SpeedNoise
from elasticflow.simulator.trace.plots import Pieces, efficiency, held_gpus
from elasticflow.simulator.trace.result import Result, write_tables
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.verification.trace_verification import TraceVerification
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload, bundled_throughputs, bundled_trace

SIXTEEN = ClusterShape(num_nodes=2, gpus_per_node=8)
OFTEN = Failures(seed=3, mean_up_s=6 * HOUR_S, mean_down_s=HOUR_S)
COST = ResizeCost((1, 4), (5.0, 9.0))
TRAINING = TrainingModel(resize_cost=COST)


def job(job_id: str = "a", **changes: object) -> TraceJob:
    """Runs on exactly 4 GPUs, at 2 iterations a second."""
    made = TraceJob(
        job_id=job_id,
        submitted_at_s=100.0,
        num_iterations=1_000,
        model_name="net",
        global_batch_size=64,
        deadline_s=5_000.0,
        job_class=JobClass.SLO,
        curve=ScalingCurve((4,), (2.0,)),
    )
    return replace(made, **changes)


def simulated(*jobs: TraceJob, cluster: ClusterShape = SIXTEEN, failures: Failures | None = None) -> Result:
    return Simulation(Workload.of("test", jobs), cluster, TRAINING, deviations=Deviations(failures=failures)).run()


def test_a_job_of_known_state_stops_for_its_own_time_and_promises_hold(tmp_path: Path) -> None:
    model = {"seconds": 1.0, "seconds_per_byte": 1e-6, "seconds_per_doubling": 0.5}
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"seconds_by_num_gpus": {"1": 30.0}, "stop_model": model}))
    jobs = [replace(each, state_bytes=10**6 * (number % 3)) for number, each in enumerate(small(40).jobs)]
    simulated_run = SimulatedRun(workload=Workload.of("known", jobs), cluster=SIXTEEN, overhead=f"measured {file}")
    verification = simulated_run.verification()
    simulation = simulated_run.simulation(verification)
    simulation.run()
    assert verification is not None
    assert verification.certificates_checked > 0
    assert not verification.failures
    state_bytes = {job.job_id: job.state_bytes for job in jobs}
    for occupancy in simulation.cluster_state.occupancies:
        known = state_bytes[occupancy.job_id]
        own_s = 1.0 + 1e-6 * known + 0.5 * math.log2(occupancy.num_gpus) if known else 30.0
        assert occupancy.starts_s - occupancy.placed_at_s == pytest.approx(own_s)


def test_workers_of_an_ended_job_are_reported_stopped_so_that_the_fold_can_forget_it() -> None:
    simulation = SimulatedRun(workload=small(20), cluster=SIXTEEN).simulation()
    simulation.run()
    ended = simulation.state.ended_jobs
    assert len(ended) == 20
    assert not any(job.stopping for job in ended.values())


def test_a_job_that_waits_for_months_gets_gpus() -> None:
    months = [
        job(name, job_class=JobClass.BEST_EFFORT, deadline_s=None, num_iterations=round(2 * 40 * DAY_S))
        for name in "ab"
    ]
    result = simulated(*months, cluster=ClusterShape(num_nodes=1, gpus_per_node=4))
    assert result.num_unfinished == 0


def test_a_simulation_of_slices_shorter_than_a_stop_ends() -> None:
    result = (
        SimulatedRun(
            workload=small(4),
            cluster=ClusterShape(num_nodes=1, gpus_per_node=1),
            policy="gandiva",
            overhead="400",
        )
        .simulation()
        .run()
    )
    assert not result.partial
    assert result.num_unfinished > 0
    assert max(fate.occupancies[-1].left_at_s for fate in result.fates if fate.occupancies) < 10 * DAY_S


def test_a_stop_of_days_does_not_end_the_simulation() -> None:
    waiting = job("a", job_class=JobClass.BEST_EFFORT, deadline_s=None)
    simulated_run = SimulatedRun(workload=Workload.of("one", [waiting]), cluster=SIXTEEN, overhead="1000000")
    assert simulated_run.simulation().run().num_unfinished == 0


def test_a_pool_that_is_down_for_months_does_not_end_the_simulation() -> None:
    waiting = job("a", job_class=JobClass.BEST_EFFORT, deadline_s=None, num_iterations=round(400 * DAY_S))
    failures = Failures(seed=1, mean_up_s=5 * DAY_S, mean_down_s=100 * DAY_S)
    result = simulated(waiting, cluster=ClusterShape(num_nodes=1, gpus_per_node=4), failures=failures)
    assert max(outage.to_s - outage.from_s for outage in result.outages if outage.to_s) > 90 * DAY_S
    assert result.num_unfinished == 0


def small(num_jobs: int = 100) -> Workload:
    workload = read_trace(bundled_trace("small"), read_throughputs(bundled_throughputs()))
    return Workload.of("small", workload.jobs[:num_jobs])


@cache
def run_of_small(policy: str = "selective", failures: Failures | None = None) -> Result:
    workload = small()
    chosen = policies_named(policy, {job.job_id: UserRequest(num_gpus=job.num_gpus) for job in workload.jobs})
    return Simulation(
        workload,
        SIXTEEN,
        TrainingModel(resize_cost=reference_cost(SIXTEEN.num_gpus)),
        SimulatedPool(policies=chosen.policies, admission=chosen.admission),
        Deviations(failures=failures),
    ).run()


RUNS = [*((policy, None) for policy in POLICY_NAMES), ("selective", OFTEN), ("tiresias", OFTEN)]
every_run = pytest.mark.parametrize(("policy", "failures"), RUNS)


def test_jobs_with_a_range_hold_no_other_number_of_gpus_and_promises_stand() -> None:
    ranged = [
        replace(
            one,
            min_gpus=least,
            curve=ScalingCurve(*zip(*levels, strict=True)),
            measured=one.curve,
        )
        for number, one in enumerate(small(60).jobs)
        for least in ((1, 2, 4)[number % 3],)
        if (levels := [point for point in one.curve.rate_by_num_gpus.items() if point[0] >= least])
    ]
    workload = Workload.of("ranged", ranged)
    verification = TraceVerification(workload, COST)
    result = Simulation(workload, SIXTEEN, TRAINING, observers=(verification,)).run()
    held = {(fate.job.min_gpus, occupancy.num_gpus) for fate in result.fates for occupancy in fate.occupancies}
    assert all(num_gpus >= least for least, num_gpus in held)
    assert {least for least, _ in held} == {1, 2, 4}
    assert result.numbers()["late"] == verification.certificate_failures == 0
    assert verification.certificates_checked >= len(ranged)


# --- by hand --------------------------------------------------------------------------------------------


def test_a_job_ends_after_its_stop_and_its_iterations() -> None:
    (fate,) = simulated(job()).fates
    assert fate.finished_at_s == pytest.approx(100.0 + 9.0 + 500.0, abs=2 * DONE_WITHIN_S)
    (occupancy,) = fate.occupancies
    assert (occupancy.placed_at_s, occupancy.starts_s, occupancy.num_gpus) == (100.0, 109.0, 4)
    assert fate.met
    assert fate.gpu_seconds == pytest.approx(4 * 509.0, abs=1e-4)


def test_the_numbers_of_two_jobs_side_by_side() -> None:
    """Each holds 4 of 16 GPUs, which by its curve do four times the work of one GPU."""
    result = simulated(job("a"), job("b", submitted_at_s=109.0, num_iterations=100))
    numbers = result.numbers()
    assert numbers["jobs"] == numbers["admitted"] == numbers["met"] == 2
    assert numbers["late"] == numbers["resizes"] == numbers["migrations"] == numbers["unfinished"] == 0
    assert numbers["deadline_satisfactory_ratio"] == 1.0
    assert numbers["makespan_s"] == pytest.approx(509.0, abs=1e-4)
    assert numbers["gpu_hours"] == pytest.approx(4 * (509.0 + 59.0) / 3600, abs=1e-6)
    assert numbers["cluster_efficiency"] == pytest.approx((1_000 + 100) / 0.5 / (16 * 509.0), rel=1e-6)
    assert numbers["mean_jct_best_effort_s"] is None


def test_a_deadline_that_nothing_can_meet_is_rejected_and_counts_against() -> None:
    numbers = simulated(job("a"), job("b", deadline_s=300.0)).numbers()
    assert (numbers["admitted"], numbers["rejected"], numbers["met"]) == (1, 1, 1)
    assert numbers["deadline_satisfactory_ratio"] == 0.5


def test_best_effort_jobs_have_a_completion_time_and_no_deadline() -> None:
    numbers = simulated(job(deadline_s=None, job_class=JobClass.BEST_EFFORT)).numbers()
    assert numbers["mean_jct_best_effort_s"] == pytest.approx(509.0, abs=1e-4)
    assert numbers["deadline_satisfactory_ratio"] is None


def test_a_cluster_need_not_be_a_power_of_two() -> None:
    result = simulated(*(job(f"{number}") for number in range(4)), cluster=ClusterShape(num_nodes=2, gpus_per_node=7))
    assert result.num_met() == 4  # three side by side, one after them
    ends_s = sorted(fate.finished_at_s or math.inf for fate in result.fates)
    assert ends_s == pytest.approx([609.0, 609.0, 609.0, 1118.0], abs=1e-4)


@pytest.mark.parametrize(("num_nodes", "gpus_per_node"), [(0, 8), (2, 0), (-1, 8), (1 << 17, 2)])
def test_a_cluster_without_gpus_or_with_too_many_is_refused(num_nodes: int, gpus_per_node: int) -> None:
    with pytest.raises(BadSettings):
        ClusterShape(num_nodes=num_nodes, gpus_per_node=gpus_per_node)


# --- the cluster_state ------------------------------------------------------------------------------------------


def test_no_job_takes_a_gpu_that_another_holds_or_whose_node_is_lost() -> None:
    cluster_state = ClusterState(SIXTEEN, TRAINING)
    cluster_state.occupy(job("a"), 1, SIXTEEN.gpus_of("node-0")[:4], 0.0)
    with pytest.raises(AssertionError, match="another job holds"):
        cluster_state.occupy(job("b"), 1, SIXTEEN.gpus_of("node-0")[2:6], 0.0)
    cluster_state = ClusterState(SIXTEEN, TRAINING)
    cluster_state.lose("node-1", 0.0)
    with pytest.raises(AssertionError, match="node is lost"):
        cluster_state.occupy(job("b"), 1, (GpuId("node-1", 0),), 0.0)


def test_progress_survives_every_resize_and_each_resize_costs_a_stop() -> None:
    cluster_state, gpus = ClusterState(SIXTEEN, TRAINING), SIXTEEN.gpus_of("node-0")[:4]
    cluster_state.occupy(job(), 1, gpus, 0.0)
    assert cluster_state.iteration("a", 8.0) == 0.0
    assert cluster_state.iteration("a", 10.25) == 2.5
    cluster_state.release("a", 10.25)
    assert cluster_state.iteration("a", 50.0) == 2.5
    training = cluster_state.occupy(job(), 2, gpus, 50.0)
    assert cluster_state.iteration("a", 60.0) == 4.5
    assert training.done_at_s == pytest.approx(59.0 + 997.5 / 2, abs=2 * DONE_WITHIN_S)
    assert [occupancy.iterations for occupancy in cluster_state.occupancies] == [2.5]


# --- every policy, with failures and without --------------------------------------------------------------


@every_run
def test_work_is_conserved(policy: str, failures: Failures | None) -> None:
    """What a job did on all its occupancies is what it was asked to do, each at exactly its curve's rate."""
    for fate in run_of_small(policy, failures).fates:
        assert (fate.finished_at_s is not None) == fate.admitted
        if not fate.admitted:
            assert not fate.occupancies
            continue
        assert sum(occupancy.iterations for occupancy in fate.occupancies) == pytest.approx(
            fate.job.num_iterations, abs=1e-3
        )
        for occupancy in fate.occupancies:
            trained_s = max(occupancy.left_at_s - occupancy.starts_s, 0.0)
            rate = fate.job.curve.throughput(occupancy.num_gpus)
            assert occupancy.iterations == pytest.approx(rate * trained_s, abs=1e-3)
        assert fate.occupancies[0].placed_at_s >= fate.job.submitted_at_s
        assert fate.occupancies[-1].left_at_s == fate.finished_at_s
        for occupancy, following in pairwise(fate.occupancies):
            assert occupancy.left_at_s <= following.placed_at_s
            assert occupancy.generation < following.generation


@every_run
def test_no_more_gpus_are_held_than_are_up(policy: str, failures: Failures | None) -> None:
    result = run_of_small(policy, failures)
    changes: list[tuple[float, int]] = []
    for fate in result.fates:
        for occupancy in fate.occupancies:
            changes += [
                (occupancy.placed_at_s, occupancy.num_gpus),
                (occupancy.left_at_s, -occupancy.num_gpus),
            ]
    for outage in result.outages:
        changes.append((outage.from_s, 8))
        changes += [(outage.to_s, -8)] if outage.to_s is not None else []
    held = 0
    for _, change in sorted(changes):  # at one instant, jobs leave before others arrive
        held += change
        assert 0 <= held <= SIXTEEN.num_gpus


def test_nodes_fail_and_their_jobs_continue_on_others() -> None:
    result = run_of_small("selective", OFTEN)
    assert result.num_outages > 3
    assert result.num_unfinished == 0
    nodes_down = [(outage.from_s, outage.to_s or math.inf) for outage in result.outages]
    assert all(from_s < to_s for from_s, to_s in nodes_down)


def test_no_more_nodes_are_down_at_once_than_allowed() -> None:
    always = Failures(seed=1, mean_up_s=HOUR_S, mean_down_s=DAY_S, max_down=1)
    outages = run_of_small("edf", always).outages
    assert len(outages) > 1
    assert all(earlier.to_s is not None and earlier.to_s <= later.from_s for earlier, later in pairwise(outages))


class ProgressInTheLedger:
    """Compares at every decision each job's progress by the ledger with the true one."""

    def __init__(self) -> None:
        self.cluster_state: ClusterState | None = None
        self.num_compared = 0

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        assert self.cluster_state is not None
        for job_id, training in self.cluster_state.trainings.items():
            known = before.live_jobs.get(job_id)
            if known is None or known.generation != training.generation or known.broken:
                continue  # the decision has just placed it
            reported = float(known.iteration)
            if known.training:
                reported += training.progress.iterations_per_s * (now_s - known.progressed_at_s)
            assert reported == pytest.approx(training.iteration_at(now_s), abs=1e-3)
            self.num_compared += 1


@pytest.mark.parametrize("failures", [None, OFTEN])
def test_the_ledger_gives_the_exact_progress_of_each_job(failures: Failures | None) -> None:
    watcher = ProgressInTheLedger()
    simulation = Simulation(small(), SIXTEEN, TRAINING, deviations=Deviations(failures=failures), observers=(watcher,))
    watcher.cluster_state = simulation.cluster_state
    simulation.run()
    assert watcher.num_compared > 500


# --- a run is its inputs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("--failures", "3", "--up-hours", "6"), ("--policy", "gandiva")])
def test_two_runs_print_the_same_bytes(options: tuple[str, ...]) -> None:
    """In processes of their own, whose sets and dicts of strings are ordered differently."""

    def printed(hash_seed: str) -> str:
        command = [
            sys.executable,
            "-m",
            "elasticflow.simulator",
            "simulate",
            "--trace",
            "small",
            "--nodes",
            "2",
            "--json",
        ]
        environment = {"PYTHONHASHSEED": hash_seed, "PATH": "", "HOME": "."}
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [*command, *options], capture_output=True, check=False, env=environment, cwd=root, text=True
        )
        numbers = json.loads(done.stdout)
        del numbers["wall_s"], numbers["peak_rss_mb"]
        return json.dumps(numbers)

    assert printed("1") == printed("2")


def test_an_interrupted_run_gives_its_numbers_and_is_partial() -> None:
    simulation = Simulation(small(), SIXTEEN, TRAINING)
    result = simulation.run(stop=lambda: simulation.num_settled >= 20)
    assert result.partial
    assert 0 < result.num_met() < 25
    assert result.num_admitted + result.num_rejected < 100
    assert all(occupancy.left_at_s <= result.ended_at_s for fate in result.fates for occupancy in fate.occupancies)


def test_an_interrupted_run_counts_no_job_that_had_not_arrived(tmp_path: Path) -> None:
    workload = Workload.of("two", [job("now", submitted_at_s=100.0), job("later", submitted_at_s=9e4, deadline_s=1e5)])
    simulation = Simulation(workload, SIXTEEN, TRAINING)
    result = simulation.run(stop=lambda: simulation.num_settled == 1)
    assert result.partial
    assert (result.numbers()["jobs"], result.deadline_satisfactory_ratio) == (1, 1.0)
    write_tables(result, tmp_path)
    assert {row["subject"] for row in events_in(tmp_path)} == {"now"}


def events_in(folder: Path) -> list[dict[str, str]]:
    with (folder / "events.csv").open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def test_a_submission_that_waits_for_a_node_is_decided_when_the_node_rejoins(tmp_path: Path) -> None:
    failures = Failures(seed=3, mean_up_s=2 * HOUR_S, mean_down_s=8 * HOUR_S)
    one = ClusterShape(num_nodes=1, gpus_per_node=8)
    jobs = [job(f"j{at}", submitted_at_s=at * 1e4, deadline_s=1e6) for at in range(8)]
    simulated_run = SimulatedRun(
        workload=Workload.of("spread", jobs), cluster=one, policy="first-come", failures=failures
    )
    write_tables(simulated_run.simulation().run(), tmp_path)
    is_up, num_waited = True, 0
    submitted_s: dict[str, float] = {}
    for row in events_in(tmp_path):
        at_s = float(row["at_s"])
        match row["event"]:
            case "lost" | "joined":
                is_up = row["event"] == "joined"
            case "submitted":
                submitted_s[row["subject"]] = at_s
            case "admitted":
                assert is_up
                num_waited += at_s > submitted_s[row["subject"]]
            case _:
                pass
    assert num_waited > 0


# --- below the bound --------------------------------------------------------------------------------------


def test_the_bound_forgives_what_the_simulation_forgives() -> None:
    """A microsecond of each job: nothing in hours, one more deadline where jobs take a second."""
    fast = ScalingCurve((1,), (1e6,))
    jobs = [
        job(f"{at}", curve=fast, num_iterations=1_000_001, submitted_at_s=1.0, deadline_s=at + 2.0) for at in range(3)
    ]
    one = ClusterShape(num_nodes=1, gpus_per_node=1)
    simulated_run = SimulatedRun(workload=Workload.of("brief", jobs), cluster=one, policy="edf", overhead="none")
    assert simulated_run.simulation().run().num_met() == 3
    assert simulated_run.bound().jobs_met == pytest.approx(3.0)


def test_the_bound_forgives_the_rounding_of_a_clock_far_from_zero() -> None:
    """Beside 5e10 s, floats of seconds lie 7.6e-6 apart."""
    fast = ScalingCurve((1,), (1e6,))
    far = job(curve=fast, num_iterations=1_000_003, submitted_at_s=5e10, deadline_s=5e10 + 1)
    simulated_run = SimulatedRun(workload=Workload.of("far", [far]), cluster=SIXTEEN, policy="edf", overhead="none")
    assert simulated_run.simulation().run().num_met() == 1
    assert simulated_run.bound().jobs_met == pytest.approx(1.0)


def test_the_bound_counts_jobs_shorter_than_the_forgiven_time() -> None:
    blink = job(curve=ScalingCurve((1,), (1e9,)), num_iterations=1)
    simulated_run = SimulatedRun(workload=Workload.of("blink", [blink]), cluster=SIXTEEN, overhead="none")
    assert simulated_run.simulation().run().num_met() == 1
    assert simulated_run.bound().jobs_met == pytest.approx(1.0)


@pytest.mark.parametrize(("seed", "num_met"), [(1, 1), (6, 1), (7, 0), (4, 0)])
def test_the_bound_knows_the_true_speeds(seed: int, num_met: int) -> None:
    """The curve says 101 s, the deadline 100 s."""
    hasty = job(num_iterations=202, deadline_s=200.0)
    noise = SpeedNoise(seed=seed, sigma=0.1)
    simulated_run = SimulatedRun(
        workload=Workload.of("hasty", [hasty]), cluster=SIXTEEN, policy="edf", overhead="none", noise=noise
    )
    assert (noise.speeds(simulated_run.workload)["a"] > 1.01) == num_met
    assert simulated_run.simulation().run().num_met() == num_met
    assert simulated_run.bound().jobs_met == pytest.approx(num_met)


# --- over time ------------------------------------------------------------------------------------------


def test_means_of_pieces_over_intervals() -> None:
    pieces = Pieces.of([(0.0, 2.0, 4.0), (1.0, 3.0, 2.0)])
    assert pieces.means(np.array([0.0, 1.0, 2.0, 4.0])).tolist() == [4.0, 6.0, 1.0]
    assert Pieces.of([]).means(np.array([0.0, 1.0])).tolist() == [0.0]


def test_the_timelines_add_up_to_the_numbers() -> None:
    result = run_of_small()
    start_s = result.workload.jobs[0].submitted_at_s
    edges_s_B = np.linspace(start_s, start_s + result.makespan_s, 50)
    assert efficiency(result).means(edges_s_B).mean() == pytest.approx(result.cluster_efficiency, rel=1e-6)
    held_hours = held_gpus(result).means(edges_s_B).mean() * result.makespan_s / 3600
    assert held_hours == pytest.approx(result.gpu_hours, rel=1e-6)

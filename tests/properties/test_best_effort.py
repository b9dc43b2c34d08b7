"""Shares of tenants are as fair as whole levels allow, and no job without a promise waits without end."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.allocation.best_effort import Claim, fair_shares
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.result import Fate
from elasticflow.simulator.trace.simulation import Simulation
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload

LEVELS = st.sampled_from([(1,), (1, 2), (1, 2, 4), (2, 4), (4,), (1, 2, 4, 8)])
TENANTS = "abc"


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    return [
        Claim(
            name=f"job-{number}",
            tenant=draw(st.sampled_from(TENANTS)),
            weight=draw(st.sampled_from([0.5, 1.0, 2.0])),
            levels=draw(LEVELS),
            order=(number,),
        )
        for number in range(draw(st.integers(0, 12)))
    ]


WEIGHTS = st.fixed_dictionaries({tenant: st.sampled_from([1.0, 2.0, 5.0]) for tenant in TENANTS})


@given(claims(), st.integers(0, 20), WEIGHTS, st.randoms(use_true_random=False))
def test_shares_are_levels_within_the_gpus_and_do_not_depend_on_the_order_of_claims(
    wanted: list[Claim], num_gpus: int, weights: dict[str, float], chance: object
) -> None:
    shares = fair_shares(wanted, num_gpus, weights)
    assert sum(shares.values()) <= num_gpus
    assert all(share in claim.levels for claim in wanted if (share := shares.get(claim.name)))
    shuffled = list(wanted)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fair_shares(shuffled, num_gpus, weights) == shares


@given(claims(), st.integers(0, 20), WEIGHTS)
def test_no_gpu_is_idle_that_a_job_could_use(wanted: list[Claim], num_gpus: int, weights: dict[str, float]) -> None:
    shares = fair_shares(wanted, num_gpus, weights)
    idle = num_gpus - sum(shares.values())
    for claim in wanted:
        share = shares.get(claim.name, 0)
        above = [level for level in claim.levels if level > share]
        assert not above or above[0] - share > idle


@given(claims(), st.integers(0, 20), WEIGHTS)
def test_a_tenant_that_wants_more_is_behind_by_less_than_one_step(
    wanted: list[Claim], num_gpus: int, weights: dict[str, float]
) -> None:
    """With single GPUs, where each step fits."""
    singles = [
        Claim(name=claim.name, tenant=claim.tenant, weight=claim.weight, levels=(1,), order=claim.order)
        for claim in wanted
    ]
    shares = fair_shares(singles, num_gpus, weights)
    by_tenant, wants = defaultdict[str, int](int), set[str]()
    for claim in singles:
        by_tenant[claim.tenant] += shares.get(claim.name, 0)
        if claim.name not in shares:
            wants.add(claim.tenant)
    for behind in wants:
        for ahead in {claim.tenant for claim in singles}:
            last_step = (by_tenant[ahead] - 1) / weights[ahead]
            assert last_step <= by_tenant[behind] / weights[behind]


# --- waiting and stops ---------------------------------------------------------------------------------

COST_S = 2.0
WAIT, RUN = PoolConfig().best_effort_wait_factor, PoolConfig().best_effort_run_factor
SINGLE = ScalingCurve((1,), (1.0,))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Jobs of different lengths on one GPU each; many pass the long ones."""
    num_jobs = draw(st.integers(10, 30))
    at_s, jobs = 0.0, list[TraceJob]()
    for number in range(num_jobs):
        at_s += draw(st.integers(0, 120))
        jobs.append(
            TraceJob(
                job_id=f"job-{number:02}",
                submitted_at_s=float(at_s),
                num_iterations=draw(st.sampled_from([20, 90, 100, 110, 300])),
                model_name="net",
                global_batch_size=64,
                deadline_s=None,
                job_class=JobClass.BEST_EFFORT,
                curve=SINGLE,
            )
        )
    return Workload.of("drawn", jobs)


def num_iterations_at(fate: Fate, at_s: float) -> float:
    done = 0.0
    for held in fate.occupancies:
        done += max(min(held.left_at_s, at_s) - held.starts_s, 0.0)
    return done


def holds_at(fate: Fate, at_s: float) -> bool:
    return any(held.placed_at_s <= at_s < held.left_at_s for held in fate.occupancies)


def placed_at(fate: Fate, at_s: float) -> float:
    return max(held.placed_at_s for held in fate.occupancies if held.placed_at_s <= at_s)


def overdue_at_s(fate: Fate, at_s: float) -> float:
    """From when on it would be overdue if it waited from at_s on."""
    left = fate.job.num_iterations - num_iterations_at(fate, at_s)
    return due_s(fate) - left


def due_s(fate: Fate) -> float:
    return fate.job.submitted_at_s + (1.0 + WAIT) * fate.job.num_iterations


@settings(max_examples=25)
@given(workloads(), st.integers(1, 2))
def test_shorter_jobs_pass_a_job_for_three_times_its_length_and_stop_one_after_twenty_stops(
    workload: Workload, num_gpus: int
) -> None:
    cluster = ClusterShape(num_nodes=1, gpus_per_node=num_gpus)
    result = Simulation(workload, cluster, TrainingModel(resize_cost=ResizeCost.flat(COST_S))).run()
    assert all(fate.finished_at_s is not None for fate in result.fates)
    for fate in result.fates:
        *stopped, _ = fate.occupancies
        assert all(held.left_at_s - held.placed_at_s >= (1.0 + RUN) * COST_S - 1e-6 for held in stopped)
        assert len(stopped) <= fate.job.num_iterations / (RUN * COST_S)
    starts_s = sorted({held.placed_at_s for fate in result.fates for held in fate.occupancies})
    for at_s in starts_s:  # a decision: those that wait too long are passed by none
        late = [
            fate
            for fate in result.fates
            if fate.job.submitted_at_s <= at_s
            and (fate.finished_at_s or 0.0) > at_s
            and not holds_at(fate, at_s)
            and overdue_at_s(fate, at_s) <= at_s - 1e-6
        ]
        for waits in late:
            for other in result.fates:
                if holds_at(other, at_s) and placed_at(other, at_s) == at_s:
                    assert due_s(other) <= due_s(waits) + 1e-6

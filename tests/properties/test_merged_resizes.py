"""Whatever numbers of GPUs are wanted for while earlier changes are under way: the last ones come true.

Placement, executors and a ledger on virtual time; messages come late, in any order, and twice; workers die, or none
does. The simulated world asserts at each start and switch that no other generation of the job trains, and no GPU has
two workers.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import AllocationDecided, PlanDecided
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.pipeline.cluster import NO_FAULTS, POOL, Arrival, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.pipeline.virtual_workers import TimingModel
from elasticflow.simulator.timing.training_time import TrainingTime
from testbed.histories import LINEAR, best_effort
from tests.support.example_specs import examples

JOBS: tuple[str, ...] = ("a", "b")
ARRIVAL_S, ADMITTED_S = 5.0, 15.0  # when all nodes are there; when both jobs are admitted
CRASHES_S = 25.0  # workers are killed for so long
CALM_S = 90.0  # virtual; a switch takes a start, its timeout and some messages
ENDLESS = best_effort(max_iterations=10**9)
SIZES = st.sampled_from((0, 1, 2, 4))
ALLOCATIONS = st.lists(st.tuples(st.floats(0.0, 5.0), SIZES, SIZES), min_size=1, max_size=8)


def allocate(cluster: VirtualCluster, num_gpus_by_job: dict[str, int]) -> None:
    """Append an allocation, whatever the state is."""
    now_s, based_on = cluster.loop.now_s, len(cluster.records)
    allocated = AllocationDecided(num_gpus_by_job=num_gpus_by_job, valid_until_s=None, at_s=now_s)
    decision = PlanDecided(service="allocator", based_on=based_on, now_s=now_s, events=(allocated,))
    data = codec.encode(decision, id=f"allocation-{based_on}", recorded_at_s=now_s)
    cluster.append(subjects.plan(POOL), data, message_id=f"allocation-{based_on}")


@examples(40)
@given(
    allocations=ALLOCATIONS,
    stop_free=st.booleans(),
    start_s=st.sampled_from((0.2, 1.5, 4.0)),
    max_delay_s=st.sampled_from((0.005, 0.3, 1.0)),
    crash_every_s=st.sampled_from((None, 4.0)),
    seed=st.integers(0, 2**32),
)
def test_the_last_allocation_is_reached_and_one_generation_trains_at_a_time(
    allocations: list[tuple[float, int, int]],
    stop_free: bool,
    start_s: float,
    max_delay_s: float,
    crash_every_s: float | None,
    seed: int,
) -> None:
    scenario = Scenario(
        num_gpus_by_node={"node-0": 4, "node-1": 4},
        config=PoolConfig(
            curves={"linear/b64": LINEAR},
            stop_free=stop_free,
            max_restarts=1000,
            max_nodes_lost_at_start=1000,
            heartbeat_timeout_s=max(6.0, 24.0 * max_delay_s),  # a sixth of it is for a reply
        ),
        timing_model=TimingModel(
            true_curves={"linear/b64": LINEAR},
            training=TrainingTime.of_cost(ResizeCost.flat(start_s), stop_s=0.02),
            give_up_s=30.0,
        ),
        arrivals=tuple(
            Arrival(at_s=ARRIVAL_S, command=SubmitJob(job_id=job_id, tenant="lab", spec=ENDLESS)) for job_id in JOBS
        ),
    )
    faults = replace(
        NO_FAULTS,
        max_delay_s=max_delay_s,
        duplicate_probability=0.3,
        worker_crash_every_s=crash_every_s,
        until_s=ADMITTED_S + CRASHES_S,
    )
    with VirtualCluster(scenario, lambda: (ADMISSION, PLACEMENT), seed=seed, faults=faults) as cluster:
        cluster.run_for(ADMITTED_S)
        wanted = dict.fromkeys(JOBS, 0)
        for gap_s, *num_gpus in allocations:
            cluster.run_for(gap_s)
            wanted = dict(zip(JOBS, num_gpus, strict=True))
            allocate(cluster, wanted)
        cluster.run_for(CALM_S)
        jobs = cluster.state.live_jobs
        assert {job_id: len(jobs[job_id].gpus) for job_id in JOBS} == wanted
        assert {job_id: jobs[job_id].training for job_id in JOBS} == {j: n > 0 for j, n in wanted.items()}
        assert not any(job.is_switching or job.stopping for job in jobs.values())
        assert cluster.environment.num_processes == sum(wanted.values()), "one process for each GPU, and no other"
        assert list(violations(cluster.entries)) == []

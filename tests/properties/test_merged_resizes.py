"""Whatever numbers of GPUs are wished for while earlier changes are under way: the last ones come true.

Placement, executors and a ledger on virtual time; messages come late, in any order, and twice; workers die, or none
does. The simulated world asserts at each start and switch that no other generation of the job trains, and no GPU has
two workers.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.admission.policy import POLICY as ADMISSION
from services.placement.policy import POLICY as PLACEMENT
from shared.messages import codec, subjects
from shared.messages.cluster import PoolConfig
from shared.messages.commands import SubmitJob
from shared.messages.events import AllocationDecided, PlanDecided
from simulator.cluster import POOL, Arrival, Scenario, VirtualCluster
from simulator.faults import NO_FAULTS
from simulator.invariants import violations
from simulator.physics import Physics
from tests.examples import examples
from tests.histories import LINEAR, best_effort

JOBS: tuple[str, ...] = ("a", "b")
ARRIVAL_S, ADMITTED_S = 5.0, 15.0  # when all nodes are there; when both jobs are admitted
CRASHES_S = 25.0  # so long some workers are killed
CALM_S = 90.0  # virtual; a hand-over takes a start, its patience and some messages
ENDLESS = best_effort(max_iterations=10**9)
SIZES = st.sampled_from((0, 1, 2, 4))
WISHES = st.lists(st.tuples(st.floats(0.0, 5.0), SIZES, SIZES), min_size=1, max_size=8)


def wish(cluster: VirtualCluster, num_gpus_by_job: dict[str, int]) -> None:
    """What the allocator would decide, whatever it knows."""
    now_s, based_on = cluster.engine.now_s, cluster.ledger.last_sequence
    allocated = AllocationDecided(num_gpus_by_job=num_gpus_by_job, valid_until_s=None, at_s=now_s)
    decision = PlanDecided(service="allocator", based_on=based_on, now_s=now_s, events=(allocated,))
    data = codec.encode(decision, id=f"wish-{based_on}", recorded_at_s=now_s)
    cluster.ledger.append(subjects.plan(POOL), data, message_id=f"wish-{based_on}")


@examples(40)
@given(
    wishes=WISHES,
    stop_free=st.booleans(),
    start_s=st.sampled_from((0.2, 1.5, 4.0)),
    max_delay_s=st.sampled_from((0.005, 0.3, 1.0)),
    crash_every_s=st.sampled_from((None, 4.0)),
    seed=st.integers(0, 2**32),
)
def test_the_last_wish_comes_true_and_one_generation_trains_at_a_time(
    wishes: list[tuple[float, int, int]],
    stop_free: bool,
    start_s: float,
    max_delay_s: float,
    crash_every_s: float | None,
    seed: int,
) -> None:
    scenario = Scenario(
        num_gpus_by_node={"node-0": 4, "node-1": 4},
        config=PoolConfig(curves={"linear/b64": LINEAR}, stop_free=stop_free, max_restarts=1000),
        physics=Physics(true_curves={"linear/b64": LINEAR}, start_s=start_s, give_up_s=30.0),
        arrivals=tuple(
            Arrival(at_s=ARRIVAL_S, command=SubmitJob(job_id=job_id, tenant="lab", spec=ENDLESS))
            for job_id in JOBS
        ),
    )
    faults = replace(
        NO_FAULTS,
        max_delay_s=max_delay_s,
        duplicate_probability=0.3,
        worker_crash_every_s=crash_every_s,
        until_s=ADMITTED_S + CRASHES_S,
    )
    cluster = VirtualCluster(scenario, (ADMISSION, PLACEMENT), seed=seed, faults=faults)
    engine = cluster.engine
    engine.run(engine.now_s + ADMITTED_S)
    wished = dict.fromkeys(JOBS, 0)
    for gap_s, *num_gpus in wishes:
        engine.run(engine.now_s + gap_s)
        wished = dict(zip(JOBS, num_gpus, strict=True))
        wish(cluster, wished)
    engine.run(engine.now_s + CALM_S)
    jobs = cluster.state.live_jobs
    assert {job_id: len(jobs[job_id].gpus) for job_id in JOBS} == wished
    assert {job_id: jobs[job_id].training for job_id in JOBS} == {j: n > 0 for j, n in wished.items()}
    assert not any(job.handed_over or job.stopping for job in jobs.values())
    assert cluster.world.num_processes == sum(wished.values()), (
        "one process for each GPU, and none is left over"
    )
    assert list(violations(cluster.ledger.entries)) == []

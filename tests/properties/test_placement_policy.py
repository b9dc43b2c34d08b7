"""Placement on whole pools over many allocations: which jobs it moves, and that it terminates."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.placement.policy import MAX_SWITCH_S, POLICY, decide
from elasticflow.shared.messages import events
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.topology import pool_topology
from testbed.histories import NOW_S, History, pool, spec
from tests.support.placement_strategies import gpu_counts

JOB_IDS = tuple(f"job-{number}" for number in range(7))
CURVES = {
    "linear/b64@node": {2: 2.0, 4: 4.0, 8: 8.0},
    "linear/b64@cluster": {2: 1.0, 4: 3.0, 8: 4.0},
}


@st.composite
def pools(draw: st.DrawFn) -> History:
    """A pool with jobs of every class, none of which has GPUs yet."""
    history = pool(
        *draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)),
        resize_cost_s=draw(st.sampled_from([0.0, 2.0, 30.0])),
        racks=draw(st.sampled_from([{}, {"node-0": "a/1", "node-1": "a/2", "node-2": "b"}])),
        curves=draw(st.sampled_from([{}, CURVES])),
        stop_free=draw(st.booleans()),
    )
    jobs = {
        job_id: Job(
            job_id=job_id,
            tenant="lab",
            spec=spec(job_class=draw(st.sampled_from(list(JobClass)))),
            phase=draw(st.sampled_from([Phase.ADMITTED] * 4 + [Phase.PROFILING])),
            decided_at_s=NOW_S,
            decided_sequence=history.state.sequence,
        )
        for job_id in JOB_IDS
    }
    sequence = history.state.sequence
    history.state = replace(history.state, live_jobs=Map(jobs), allocation_based_on=sequence)
    return history


def allocated(state: PoolState, shares: dict[str, int]) -> PoolState:
    jobs = state.live_jobs
    for job_id, num_gpus in shares.items():
        plan = (NOW_S, NOW_S + 200.0, float(num_gpus)) if jobs[job_id].promised else ()
        jobs = jobs.set(job_id, replace(jobs[job_id], num_gpus=num_gpus, planned_share=plan))
    return replace(state, live_jobs=jobs)


@given(st.data(), pools())
def test_under_any_allocations_jobs_move_for_blocks_alone_and_placement_ends(
    data: st.DataObject, history: History
) -> None:
    """A job that a promised one displaces may be promised too, or starting."""
    has_distances = pool_topology(history.state).has_distances
    for turn in range(4):
        now_s = NOW_S + turn * MAX_SWITCH_S
        shares = data.draw(gpu_counts(history.state.num_gpus, JOB_IDS))
        history.state = allocated(history.state, shares)
        changing = {job_id for job_id, job in history.state.live_jobs.items() if len(job.gpus) != job.num_gpus}
        for round_number in range(20):
            before = history.state.live_jobs
            decided = history.decided(POLICY, now_s=now_s)
            if not decided:
                break
            placed = {placed_job.job_id for each in decided for placed_job in each.placements}
            migrated = {job_id for each in decided for job_id in each.migrated}
            assert placed == migrated | (changing if round_number == 0 else set())
            assert has_distances or not migrated
            for job_id in migrated:
                assert len(before[job_id].gpus) == shares[job_id] > 0
                assert not before[job_id].is_switching
            for job_id in placed:
                if history.state.live_jobs[job_id].gpus and data.draw(st.booleans()):
                    history.started(job_id)
        else:
            raise AssertionError("placement never comes to rest")
        jobs = history.state.live_jobs
        assert {job_id: len(job.gpus) for job_id, job in jobs.items()} == shares
        used = [gpu for job in jobs.values() for gpu in job.gpus]
        assert len(set(used)) == len(used)


@given(st.data(), pools())
def test_the_last_allocation_is_placed_whatever_came_before_it(data: st.DataObject, history: History) -> None:
    """A switch is not disturbed for a while, and the service never wakes without a decision."""
    now_s, shares = NOW_S, dict.fromkeys(JOB_IDS, 0)
    for _ in range(4):
        shares = data.draw(gpu_counts(history.state.num_gpus, JOB_IDS))
        history.state = allocated(history.state, shares)
        left_alone = {
            job_id
            for job_id, job in history.state.live_jobs.items()
            if job.is_switching and now_s < job.placed_at_s + MAX_SWITCH_S
        }
        for decided in history.decided(POLICY, now_s=now_s):
            assert left_alone.isdisjoint(placed_job.job_id for placed_job in decided.placements)
        for job_id, job in history.state.live_jobs.items():
            if job.gpus and data.draw(st.booleans()):
                history.started(job_id, at_s=now_s)
        now_s += data.draw(st.sampled_from([0.0, 0.1, MAX_SWITCH_S]))
    for _ in range(20):
        while history.decided(POLICY, now_s=now_s):
            pass
        wake_at_s = POLICY.wake_at_s(history.state)
        if wake_at_s is None:
            break
        assert wake_at_s > now_s, "it wakes without a decision"
        now_s = wake_at_s
    jobs = history.state.live_jobs
    assert {job_id: len(job.gpus) for job_id, job in jobs.items()} == shares
    used = [gpu for job in jobs.values() for gpu in job.gpus]
    assert len(set(used)) == len(used)


@given(st.data(), pools())
def test_placement_does_not_depend_on_the_order_of_jobs(data: st.DataObject, history: History) -> None:
    shares = data.draw(gpu_counts(history.state.num_gpus, JOB_IDS))
    state = allocated(history.state, shares)
    order = data.draw(st.permutations(JOB_IDS))
    reordered = replace(state, live_jobs=Map([(job_id, state.live_jobs[job_id]) for job_id in order]))
    assert decide(state, (), NOW_S) == decide(reordered, (), NOW_S)


def comes_to_rest(history: History, now_s: float) -> None:
    """Placement decides until it is content; all workers start and end as it says."""
    for _ in range(20):
        decided = history.decided(POLICY, now_s=now_s)
        for job_id, job in history.state.live_jobs.items():
            if job.gpus and not job.training:
                history.started(job_id, at_s=now_s)
            for left in history.state.live_jobs[job_id].stopping:
                history.then(
                    events.WorkersStopped(job_id=job_id, generation=left.generation, node_id=left.node_id, at_s=now_s)
                )
        if not decided:
            return
    raise AssertionError("placement never comes to rest")


@given(st.data(), pools())
def test_whatever_is_slow_a_share_stays_and_all_gpus_take_part_again_at_the_end(
    data: st.DataObject, history: History
) -> None:
    history.configured(stop_free=True)
    shares = data.draw(gpu_counts(history.state.num_gpus, JOB_IDS))
    history.state = allocated(history.state, shares)
    now_s = NOW_S
    comes_to_rest(history, now_s)
    for _ in range(data.draw(st.integers(1, 4))):
        for job_id in data.draw(st.lists(st.sampled_from(JOB_IDS), unique=True, max_size=4)):
            job = history.state.live_jobs[job_id]
            if job.gpus:
                lagged = events.WorkerLagged(
                    job_id=job_id,
                    generation=job.generation,
                    rank=data.draw(st.integers(0, len(job.gpus) - 1)),
                    slowdown=data.draw(st.sampled_from([1.5, 2.0, 3.0, 9.0])),
                    num_virtual_nodes=data.draw(st.sampled_from([0, 8])),
                    at_s=now_s,
                )
                history.then(lagged)
        now_s += data.draw(st.sampled_from([0.0, 30.0, 61.0, 300.0]))
        comes_to_rest(history, now_s)
        jobs = history.state.live_jobs
        assert {job_id: len(job.share_gpus) for job_id, job in jobs.items()} == shares
        assert all(set(job.gpus) <= set(job.share_gpus) for job in jobs.values())
        assert all(sum(job.virtual_nodes_by_rank) in (0, 8) for job in jobs.values())
        held = [gpu for job in jobs.values() for gpu in job.share_gpus]
        assert len(set(held)) == len(held)
    for _ in range(40):
        wake_at_s = POLICY.wake_at_s(history.state)
        if wake_at_s is None:
            break
        assert wake_at_s > now_s, "it wakes without a decision"
        now_s = wake_at_s
        comes_to_rest(history, now_s)
    jobs = history.state.live_jobs
    assert {job_id: len(job.gpus) for job_id, job in jobs.items()} == shares
    assert not any(job.predicted_speedup or job.virtual_nodes_by_rank for job in jobs.values())

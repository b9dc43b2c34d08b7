"""Placement on pools of two GPU types, of which GPUs of the other type join some jobs, over random allocations."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.placement.due_jobs import MAX_SWITCH_S, allocated_mix
from elasticflow.services.placement.policy import POLICY
from elasticflow.shared.messages import events
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.gpu_types import placed_mix
from elasticflow.shared.state.job import Job, Phase
from elasticflow.simulator.pipeline.invariants import state_violations
from testbed.histories import NOW_S, History, spec
from tests.support.worker_events import crashed, joined

JOB_IDS = tuple("abcdef")
TYPES = ("V100", "P100")
RECORDED = {"V100": "", "P100": "P100"}


@st.composite
def pools(draw: st.DrawFn) -> History:
    """Nodes of two types, and admitted jobs of each, none of which has GPUs yet."""
    history = History().configured(stop_free=draw(st.booleans()))
    for number, num_gpus in enumerate(draw(st.lists(st.integers(1, 5), min_size=2, max_size=5))):
        history.then(joined(f"first-{number}", f"node-{number}", num_gpus, TYPES[number % 2]))
    jobs = {
        job_id: Job(
            job_id=job_id,
            tenant="lab",
            spec=spec(
                job_class=draw(st.sampled_from([JobClass.SLO, JobClass.BEST_EFFORT])),
                gpu_type=draw(st.sampled_from(["", "P100"])),
            ),
            phase=Phase.ADMITTED,
            decided_at_s=NOW_S,
            decided_sequence=history.state.sequence,
        )
        for job_id in JOB_IDS
    }
    history.state = replace(history.state, live_jobs=Map(jobs), allocation_based_on=history.state.sequence)
    return history


@st.composite
def allocations(draw: st.DrawFn, history: History) -> events.AllocationDecided:
    """Shares on each type first; then what is left joins jobs of the other."""
    free = Counter[str]()
    for node in history.state.nodes.values():
        free[RECORDED[node.gpu_type]] += node.num_gpus
    shares, mixes = dict[str, int](), dict[str, dict[str, tuple[int, ...]]]()
    own = {job_id: history.state.live_jobs[job_id].spec.gpu_type for job_id in JOB_IDS}  # pyright: ignore
    for job_id in JOB_IDS:
        shares[job_id] = draw(st.sampled_from([n for n in (0, 1, 2, 4) if n <= free[own[job_id]]]))
        free[own[job_id]] -= shares[job_id]
    for job_id in draw(st.permutations(JOB_IDS)):
        other = "" if own[job_id] else "P100"
        added = draw(st.integers(0, free[other])) if shares[job_id] else 0
        if added:
            free[other] -= added
            mixes[job_id] = {own[job_id]: (3,) * shares[job_id], other: (1,) * added}
    return events.AllocationDecided(num_gpus_by_job=shares, valid_until_s=None, virtual_nodes_by_type=mixes, at_s=NOW_S)


@given(st.data(), pools())
def test_each_allocation_is_reached_and_no_gpu_is_given_twice(data: st.DataObject, history: History) -> None:
    now_s, allocation = NOW_S + 20.0, None
    for _ in range(4):
        allocation = data.draw(allocations(history))
        history.then(allocation)
        settle(history, now_s)
        for job_id, job in history.state.live_jobs.items():
            if job.gpus and data.draw(st.booleans()):
                history.started(job_id, at_s=now_s)
        a = history.state.live_jobs["a"]
        if a.training and data.draw(st.booleans()):
            history.then(crashed(a.generation, node=a.gpus[0].node_id))
        now_s += data.draw(st.sampled_from([0.0, 0.1, MAX_SWITCH_S]))
    for _ in range(3):  # survivors train, then their share is complete again
        for job_id, job in history.state.live_jobs.items():
            if job.gpus and not job.training:
                history.started(job_id, at_s=now_s)
        now_s += MAX_SWITCH_S
        settle(history, now_s)
    assert allocation is not None
    for job_id, job in history.state.live_jobs.items():
        assert len(job.own_gpus) == allocation.num_gpus_by_job[job_id]
        assert placed_mix(history.state, job) == allocated_mix(history.state, job)
        assert dict(placed_mix(history.state, job)) == allocation.virtual_nodes_by_type.get(job_id, {})


def settle(history: History, now_s: float) -> None:
    """Placement decides until it has nothing to do; each of its states is right."""
    for _ in range(20):
        if not history.decided(POLICY, now_s=now_s):
            return
        assert list(state_violations(history.state)) == []
    raise AssertionError("placement never comes to rest")

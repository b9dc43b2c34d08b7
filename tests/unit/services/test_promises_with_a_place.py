"""A promise counts on the speed of its place: admission, allocator and placement on one ledger."""

from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.monitor.policy import at_risk
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages.events import JobAdmitted, JobRejected, NodeJoined, NodeLost, PlacementDecided
from testbed.histories import NOW_S, History, pool, submit

APART = {"linear/b64@cluster": {2: 1.5, 4: 2.0}}


def after(history: History, *commands: Any, now_s: float) -> list[Any]:
    """What all three decide, in turn."""
    return [
        event
        for policy in (ADMISSION, ALLOCATOR, PLACEMENT)
        for event in history.decided(policy, *(commands if policy is ADMISSION else ()), now_s=now_s)
    ]


def with_two_jobs(**config: Any) -> History:
    """Two nodes of four GPUs, a job on one of each; both may hold no more."""
    history = pool(4, 4, curves=APART, admission="first-come", **config)
    for number in range(5):
        job_id = f"one-{number}"
        after(history, submit(job_id, max_gpus=1, deadline_s=NOW_S + 200.0), now_s=NOW_S)
        history.started(job_id)
    for job_id in ("one-0", "one-1", "one-2"):
        history.finished(job_id, at_s=NOW_S + 1.0)
    after(history, now_s=NOW_S + 1.0)
    assert {gpu.node_id for job in history.state.live_jobs.values() for gpu in job.gpus} == {"node-0", "node-1"}
    return history


def test_a_job_that_needs_a_whole_node_gets_one_and_its_speed() -> None:
    history = with_two_jobs()
    big = submit("big", min_gpus=4, max_gpus=4, deadline_s=NOW_S + 30.0)
    decided = after(history, big, now_s=NOW_S + 2.0)
    assert [event.pinned for event in decided if isinstance(event, JobAdmitted)] == [True], "28 s, 27 of them needed"
    (placed,) = [event for event in decided if isinstance(event, PlacementDecided)]
    assert len(placed.migrated) == 1
    assert len({gpu.node_id for gpu in history.state.live_jobs["big"].gpus}) == 1


def test_where_promised_jobs_never_migrate_a_promise_counts_on_the_slowest_place() -> None:
    history = with_two_jobs(migration_budget=0.0)
    big = submit("big", min_gpus=4, max_gpus=4, deadline_s=NOW_S + 40.0)
    (rejected,) = [event for event in after(history, big, now_s=NOW_S + 2.0) if isinstance(event, JobRejected)]
    assert rejected.earliest_deadline_s is not None
    assert rejected.earliest_deadline_s - NOW_S - 2.0 >= 100 / 2.0, "2 iterations/s on two nodes"


@pytest.mark.parametrize(("deadline_in_s", "pinned"), [(110.0, False), (103.5, True)])
def test_a_promise_has_room_for_a_migration_where_its_deadline_leaves_any(deadline_in_s: float, pinned: bool) -> None:
    """100 s on one GPU, 2 s to start, 2 s for a migration and a hundredth of the time."""
    history = pool(4, 4)
    command = submit("one", max_gpus=1, deadline_s=NOW_S + deadline_in_s)
    (admitted,) = [event for event in after(history, command, now_s=NOW_S) if isinstance(event, JobAdmitted)]
    assert admitted.pinned == pinned
    assert history.state.live_jobs["one"].pinned == pinned


def test_pinned_jobs_that_would_spoil_every_block_are_not_promised_beside_a_job_that_needs_one() -> None:
    history = pool(4, 4, admission="first-come")
    big = submit("big", min_gpus=4, max_gpus=4, max_iterations=400, deadline_s=NOW_S + 120.0)
    after(history, big, now_s=NOW_S)
    first, second = (submit(name, max_gpus=1, deadline_s=NOW_S + 102.5) for name in ("first", "second"))
    decided = after(history, first, now_s=NOW_S)
    assert [event.pinned for event in decided if isinstance(event, JobAdmitted)] == [True]
    decided = after(history, second, now_s=NOW_S)
    assert [event.reason for event in decided if isinstance(event, JobRejected)] == ["deadline"]


def test_in_a_pool_whose_places_are_equal_no_promise_needs_room() -> None:
    for sizes in ((8,), (1, 1, 1, 1)):
        history = pool(*sizes)
        command = submit("one", max_gpus=1, deadline_s=NOW_S + 102.5)
        (admitted,) = [event for event in after(history, command, now_s=NOW_S) if isinstance(event, JobAdmitted)]
        assert not admitted.pinned


SLOW_APART = {"linear/b64@cluster": {2: 1.5, 4: 2.0, 8: 3.0}}


def with_a_job_on_eight(*num_gpus: int) -> History:
    """A job that ends in time on the eight GPUs of one node alone, beside these other nodes."""
    history = pool(8, *num_gpus, curves=SLOW_APART, admission="first-come")
    big = submit("big", max_gpus=8, max_iterations=400, deadline_s=NOW_S + 60.0)
    (admitted,) = [event for event in after(history, big, now_s=NOW_S) if isinstance(event, JobAdmitted)]
    assert admitted.minimum_satisfactory_share[2::3] == (8.0,)
    history.started("big", at_s=NOW_S + 2.0)
    return history


def joins(history: History, *names: str, num_gpus: int = 4, at_s: float = NOW_S + 3.0) -> None:
    for name in names:
        history.then(NodeJoined(node_id=name, incarnation=f"{name}-{at_s}", num_gpus=num_gpus, device="cpu", at_s=at_s))


def test_a_promise_is_kept_when_nodes_join_that_make_worse_blocks() -> None:
    """Two nodes of 4 GPUs make a block of 8 on both, where the job would be slower than on 4."""
    history = with_a_job_on_eight()
    planned = history.state.live_jobs["big"].planned_share
    joins(history, "half-1", "half-2")
    assert at_risk(history.state, NOW_S + 4.0, None) == []
    after(history, now_s=NOW_S + 4.0)
    assert history.state.live_jobs["big"].planned_share == planned
    assert {gpu.node_id for gpu in history.state.live_jobs["big"].gpus} == {"node-0"}


def test_beside_an_older_promise_no_block_is_promised_that_only_worse_ones_leave() -> None:
    history = with_a_job_on_eight()
    joins(history, "half-1", "half-2")
    other = submit("other", min_gpus=8, max_gpus=8, max_iterations=60, deadline_s=NOW_S + 56.0)
    decided = after(history, other, now_s=NOW_S + 4.0)
    assert [type(event) for event in decided if isinstance(event, JobAdmitted | JobRejected)] == [JobRejected]
    smaller = submit("smaller", max_gpus=4, max_iterations=60, deadline_s=NOW_S + 56.0)
    decided = after(history, smaller, now_s=NOW_S + 4.0)
    assert [type(event) for event in decided if isinstance(event, JobAdmitted | JobRejected)] == [JobAdmitted]


def test_a_promise_beside_lost_nodes_holds_once_they_are_back() -> None:
    history = pool(8, 4, 4, curves=SLOW_APART, admission="first-come")
    for node_id in ("node-1", "node-2"):
        incarnation = history.state.nodes[node_id].incarnation
        history.then(NodeLost(node_id=node_id, incarnation=incarnation, reason="silent", at_s=NOW_S))
    big = submit("big", min_gpus=8, max_gpus=8, max_iterations=400, deadline_s=NOW_S + 60.0)
    (rejected,) = [event for event in after(history, big, now_s=NOW_S) if isinstance(event, JobRejected)]
    assert rejected.earliest_deadline_s is not None
    offered = submit("big", min_gpus=8, max_gpus=8, max_iterations=400, deadline_s=rejected.earliest_deadline_s)
    after(history, offered, now_s=NOW_S)
    history.started("big", at_s=NOW_S + 2.0)
    joins(history, "node-1", "node-2")
    assert at_risk(history.state, NOW_S + 4.0, None) == []

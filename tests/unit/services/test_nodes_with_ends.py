"""Given nodes with announced ends, what admission promises, and how their jobs move before they leave."""

from typing import Any

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.monitor.policy import at_risk, lost_a_node
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.pool import PoolState
from testbed.histories import NOW_S, History, pool, submit

LEAVE_S = 30.0


def ending(until: dict[int, float], *num_gpus: int, **config: Any) -> History:
    """Nodes of which some end so many seconds from now."""
    history = pool(**config)
    for number, count in enumerate(num_gpus):
        history.then(
            events.NodeJoined(
                node_id=f"node-{number}",
                incarnation=f"first-{number}",
                num_gpus=count,
                device="cpu",
                until_s=NOW_S + until[number] if number in until else None,
                at_s=NOW_S,
            )
        )
    return history


def announced(until_s: float, node: str = "node-1", at_s: float = NOW_S) -> events.NodeEndAnnounced:
    return events.NodeEndAnnounced(node_id=node, incarnation=f"first-{node[-1]}", until_s=until_s, at_s=at_s)


def planned(history: History, now_s: float = NOW_S) -> History:
    history.decided(ALLOCATOR, now_s=now_s)
    history.decided(PLACEMENT, now_s=now_s)
    return history


def nodes_of_job(state: PoolState, job_id: str) -> set[str]:
    return {gpu.node_id for gpu in state.live_jobs[job_id].gpus}


# --- admission ---------------------------------------------------------------------------------------------


def test_a_deadline_that_needs_a_node_beyond_its_end_is_rejected_with_the_reason() -> None:
    """300 iterations at 4/s take 77 s on 4 GPUs; with 2 of them only until 70 s from now they do not."""
    asked = submit("a", max_iterations=300, deadline_s=NOW_S + 80.0)
    (admitted,) = pool(2, 2).decided(ADMISSION, asked)
    assert isinstance(admitted, events.JobAdmitted)
    history = ending({1: 90.0}, 2, 2)
    (rejected,) = history.decided(ADMISSION, asked)
    assert isinstance(rejected, events.JobRejected)
    assert "it would fit if no node ended before that: node-1 in 90 s" in rejected.explanation
    assert rejected.earliest_deadline_s is not None
    later = submit("b", max_iterations=300, deadline_s=rejected.earliest_deadline_s)
    assert isinstance(history.decided(ADMISSION, later)[0], events.JobAdmitted), "the earliest deadline is right"
    # the offer has room for migrations; without it, up to 7 s earlier, the job would be pinned to its GPUs
    sooner = submit("c", max_iterations=300, deadline_s=rejected.earliest_deadline_s - 8.0)
    assert isinstance(ending({1: 90.0}, 2, 2).decided(ADMISSION, sooner)[0], events.JobRejected)


def test_an_end_that_is_not_the_reason_is_not_named() -> None:
    (rejected,) = ending({1: 90.0}, 2, 2).decided(ADMISSION, submit("a", max_iterations=900, deadline_s=NOW_S + 80.0))
    assert isinstance(rejected, events.JobRejected)
    assert "ended before" not in rejected.explanation


def test_a_promise_uses_the_node_until_it_is_drained() -> None:
    (admitted,) = ending({1: 90.0}, 2, 2).decided(ADMISSION, submit("a", max_iterations=240, deadline_s=NOW_S + 100.0))
    assert isinstance(admitted, events.JobAdmitted)
    share = admitted.minimum_satisfactory_share
    held = [(share[k], share[k + 1], share[k + 2]) for k in range(0, len(share), 3)]
    assert any(num_gpus == 4 for _, _, num_gpus in held)
    assert all(until_s <= NOW_S + 90.0 - LEAVE_S for _, until_s, num_gpus in held if num_gpus == 4)


def test_a_pool_of_nodes_that_all_end_promises_nothing_beyond() -> None:
    history = ending({0: 90.0, 1: 90.0}, 2, 2)
    (rejected,) = history.decided(ADMISSION, submit("a", max_iterations=300, deadline_s=NOW_S + 1_000.0))
    assert isinstance(rejected, events.JobRejected)
    assert rejected.earliest_deadline_s is None
    assert isinstance(history.decided(ADMISSION, submit("b", max_iterations=100))[0], events.JobAdmitted)


# --- the drain ---------------------------------------------------------------------------------------------


def test_a_job_leaves_a_node_before_its_end_and_keeps_its_promise() -> None:
    history = ending({1: 200.0}, 2, 2, stop_free=True)
    history.decided(ADMISSION, submit("a", max_iterations=800, deadline_s=NOW_S + 500.0))
    planned(history).started("a")
    assert nodes_of_job(history.state, "a") == {"node-0", "node-1"}
    assert ALLOCATOR.wake_at_s(history.state) == NOW_S + 170.0
    history.then(
        events.JobProgressed(
            job_id="a", generation=1, iteration=660, checkpoint_iteration=0, iterations_per_s=4.0, at_s=NOW_S + 169.0
        )
    )
    decided = history.decided(ALLOCATOR, now_s=NOW_S + 170.0)
    assert isinstance(decided[0], events.NodeDrainStarted)
    history.decided(PLACEMENT, now_s=NOW_S + 170.0)
    job = history.state.live_jobs["a"]
    assert (job.num_gpus, nodes_of_job(history.state, "a")) == (2, {"node-0"})
    assert job.previous_generation is not None
    assert job.previous_generation.trains, "it goes on without a stop"
    assert history.decided(ALLOCATOR, now_s=NOW_S + 170.0) == (), "once"
    assert at_risk(history.state, NOW_S + 171.0, None) == []
    history.then(events.NodeLost(node_id="node-1", incarnation="first-1", reason="left", at_s=NOW_S + 190.0))
    assert nodes_of_job(history.state, "a") == {"node-0"}


def test_a_job_whose_number_stays_moves_too() -> None:
    history = ending({1: 200.0}, 2)
    history.decided(ADMISSION, submit("a", max_gpus=2, max_iterations=300, deadline_s=NOW_S + 1_000.0))
    planned(history).started("a")
    assert nodes_of_job(history.state, "a") == {"node-0"}
    history.then(
        events.NodeJoined(node_id="node-1", incarnation="first-1", num_gpus=2, device="cpu", at_s=NOW_S + 1.0),
        announced(NOW_S + 40.0, "node-0", at_s=NOW_S + 5.0),
    )
    planned(history, NOW_S + 10.0)
    job = history.state.live_jobs["a"]
    assert (job.num_gpus, job.generation, nodes_of_job(history.state, "a")) == (2, 2, {"node-1"})


def test_jobs_without_a_promise_use_a_node_until_it_is_drained_and_then_wait() -> None:
    history = ending({0: 200.0}, 2)
    history.decided(ADMISSION, submit("a", job_class=JobClass.BEST_EFFORT, deadline_s=None, max_iterations=9_000))
    planned(history).started("a")
    assert nodes_of_job(history.state, "a") == {"node-0"}
    planned(history, NOW_S + 170.0)
    assert history.state.live_jobs["a"].gpus == ()


def test_a_new_job_starts_on_nodes_that_stay() -> None:
    history = ending({0: 90.0}, 2, 2)
    history.decided(ADMISSION, submit("a", max_gpus=2, max_iterations=50))
    planned(history)
    assert nodes_of_job(history.state, "a") == {"node-1"}


def test_an_end_announced_later_puts_promises_at_risk() -> None:
    history = ending({}, 2, 2)
    history.decided(ADMISSION, submit("a", max_iterations=300, deadline_s=NOW_S + 80.0))
    planned(history).started("a")
    assert at_risk(history.state, NOW_S + 1.0, None) == []
    history.then(announced(NOW_S + 40.0, at_s=NOW_S + 1.0))
    assert lost_a_node(history.state, NOW_S + 2.0)
    (risk,) = at_risk(history.state, NOW_S + 1.0, None)
    assert risk.job_id == "a"


def test_an_end_that_moves_later_ends_the_drain() -> None:
    history = ending({1: 40.0}, 2, 2)
    history.decided(ADMISSION, submit("a", max_iterations=300, deadline_s=NOW_S + 1_000.0))
    planned(history, NOW_S + 10.0).started("a", at_s=NOW_S + 12.0)
    assert nodes_of_job(history.state, "a") == {"node-0"}
    history.then(announced(NOW_S + 2_000.0, at_s=NOW_S + 20.0))
    planned(history, NOW_S + 20.0)
    assert nodes_of_job(history.state, "a") == {"node-0", "node-1"}

"""A straggler is reported, and gets another GPU if no worker has to stop."""

from typing import Any

import pytest

from elasticflow.history.pool_views import node_views
from elasticflow.services.placement.policy import POLICY
from elasticflow.services.placement.stragglers import SETTLED_S
from elasticflow.shared.messages import events
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.messages.worker_protocol.from_worker import Lagged
from elasticflow.shared.state.pool import SlowGpu, slow_gpus_at
from testbed.histories import NOW_S, History, best_effort, gpus, pool, spec
from tests.support.executor_node import ExecutorNode
from tests.unit.services.placement.test_policy import admitted, allocated

SETTLED_AT_S = NOW_S + SETTLED_S
KEPT_S = 600.0


def lagged(rank: int = 0, generation: int = 1, at_s: float = SETTLED_AT_S) -> events.WorkerLagged:
    return events.WorkerLagged(job_id="a", generation=generation, rank=rank, slowdown=2.0, at_s=at_s)


def training(*num_gpus: int, job: Any = None, **config: Any) -> History:
    """A job on two GPUs, in a pool of nodes."""
    history = pool(*num_gpus, **{"stop_free": True} | config)
    admitted(history, "a", job or best_effort())
    allocated(history, a=2).decided(POLICY)
    return history.started("a")


def placed(history: History, now_s: float = SETTLED_AT_S) -> list[tuple[GpuId, ...]]:
    return [each.gpus for decided in history.decided(POLICY, now_s=now_s) for each in decided.placements]


# --- the event --------------------------------------------------------------------------------------------


def test_rank_0_s_executor_reports_a_straggler_once_and_again_while_it_lasts() -> None:
    node = ExecutorNode().training(2)
    said = Lagged(rank=1, slowdown=2.0)
    node.reports(said).reports(said).settle()
    (event,) = node.emitted_of(events.WorkerLagged)
    assert (event.rank, event.generation, event.slowdown) == (1, 1, 2.0)
    node.at(NOW_S + KEPT_S / 2 - 1).reports(said)
    assert len(node.emitted_of(events.WorkerLagged)) == 1
    node.at(NOW_S + KEPT_S / 2 + 1).settle()
    assert len(node.emitted_of(events.WorkerLagged)) == 1, "no report says that it lasts"
    node.reports(said)
    assert len(node.emitted_of(events.WorkerLagged)) == 2
    assert node.unchanged_by(event)


def test_a_gpu_counts_as_slow_for_a_while() -> None:
    history = training(4).then(lagged(1))
    slow = SlowGpu(gpu_index=1, slowdown=2.0, job_id="a", generation=1, since_s=SETTLED_AT_S)
    (gpu,) = gpus("node-0:1")
    assert slow_gpus_at(history.state, SETTLED_AT_S) == {gpu: slow}
    assert slow_gpus_at(history.state, SETTLED_AT_S + KEPT_S) == {}
    (view,) = node_views(history.state)
    assert view.slow_until_s == {1: SETTLED_AT_S + KEPT_S}


@pytest.mark.parametrize("event", [lagged(generation=7), lagged(rank=2)], ids=["another generation", "no such rank"])
def test_an_impossible_report_is_ignored(event: events.WorkerLagged) -> None:
    history = training(4)
    before = history.state.nodes
    assert history.then(event).state.nodes == before


# --- what follows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [best_effort(), spec()], ids=["best effort", "promised"])
def test_its_worker_gets_the_nearest_free_gpu_and_the_rank_stays(job: Any) -> None:
    history = training(2, 4, job=job, racks={"node-0": "r", "node-1": "r"})
    before = history.state.live_jobs["a"].gpus
    assert {gpu.node_id for gpu in before} == {"node-0"}
    (after,) = placed(history.then(lagged(1)))
    assert (after[0], after[1].node_id) == (before[0], "node-1")
    assert history.state.live_jobs["a"].is_switching, "no worker stops"
    same_node = training(4).then(lagged(0))
    ((first, second),) = placed(same_node)
    assert (first.node_id, first.gpu_index in (2, 3), second.gpu_index) == ("node-0", True, 1)


def test_a_job_that_has_just_been_placed_settles_first() -> None:
    history = training(4).then(lagged(0, at_s=NOW_S + 15.0))
    assert placed(history, NOW_S + 15.0) == []
    assert POLICY.wake_at_s(history.state) == SETTLED_AT_S
    assert len(placed(history, SETTLED_AT_S)) == 1


@pytest.mark.parametrize(
    "history",
    [
        lambda: training(2).then(lagged()),
        lambda: training(4, stop_free=False).then(lagged()),
        lambda: training(4, slow_gpu_s=0.0).then(lagged()),
        lambda: training(2, 2).then(lagged(), lagged(1)),
    ],
    ids=["no GPU is free", "workers would have to stop", "only reported", "two of two are slow"],
)
def test_without_a_better_gpu_no_worker_moves(history: Any) -> None:
    made = history()
    if len(made.state.nodes) > 1:  # the other node is busy with one that takes both
        admitted(made, "b", best_effort())
        allocated(made, a=2, b=2).decided(POLICY)
    assert placed(made) == []
    assert POLICY.wake_at_s(made.state) is None


SLOW = gpus("node-0:1")[0]


def placed_after(history: History, num_gpus: int, now_s: float = SETTLED_AT_S) -> set[GpuId]:
    """GPUs of a job that comes when the first one gives all of its back."""
    admitted(history, "b", best_effort())
    allocated(history, a=0, b=num_gpus).decided(POLICY, now_s=now_s)
    return set(history.state.live_jobs["b"].gpus)


@pytest.mark.parametrize("num_gpus", [1, 2, 4])
def test_a_new_job_avoids_slow_gpus_where_others_are_connected_as_well(num_gpus: int) -> None:
    slow, nothing_known = training(4, 4).then(lagged(1)), training(4, 4)
    assert SLOW not in placed_after(slow, num_gpus)
    assert SLOW in placed_after(nothing_known, max(num_gpus, 2)), "it would be the first to be taken"


@pytest.mark.parametrize("nodes", [(2, 2), (4, 2, 2)], ids=["too few", "further apart"])
def test_a_slow_gpu_is_used_where_all_others_are_taken(nodes: tuple[int, ...]) -> None:
    assert SLOW in placed_after(training(*nodes).then(lagged(1)), 4)


def test_a_gpu_that_no_longer_counts_as_slow_is_used_like_any_other() -> None:
    now_s = SETTLED_AT_S + KEPT_S
    assert placed_after(training(4, 4).then(lagged(1)), 1, now_s) == placed_after(training(4, 4), 1, now_s)


def test_no_job_moves_back_to_a_gpu_that_counts_as_slow() -> None:
    history = training(2, 2).then(lagged(1))
    (pieces,) = placed(history)
    history.started("a")
    assert len({gpu.node_id for gpu in pieces}) == 2
    assert placed(history, SETTLED_AT_S + 2 * SETTLED_S) == []

"""A straggler is reported. If no worker has to stop, it gets another GPU, or its job goes on with less work on it."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.cli.listings import alive_word
from elasticflow.history.job_history import job_history
from elasticflow.history.pool_views import node_views
from elasticflow.services.executor.decisions.local_events_and_actions import GpusJudged
from elasticflow.services.placement.policy import POLICY
from elasticflow.services.placement.stragglers import SETTLED_S
from elasticflow.shared.messages import events
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.worker_protocol.from_worker import Lagged
from elasticflow.shared.scheduling.jobs.scheduler_view import held_num_gpus
from elasticflow.shared.state.pool import SlowGpu, slow_gpus_at
from testbed.histories import NOW_S, History, best_effort, gpus, pool, spec
from tests.support.executor_node import ExecutorNode
from tests.support.two_types import with_step_times
from tests.support.worker_events import joined, lost
from tests.unit.services.placement.test_policy import admitted, allocated

SETTLED_AT_S = NOW_S + SETTLED_S
KEPT_S = 600.0


def lagged(
    rank: int = 0,
    generation: int = 1,
    at_s: float = SETTLED_AT_S,
    slowdown: float = 2.0,
    num_virtual_nodes: int = 0,
) -> events.WorkerLagged:
    return events.WorkerLagged(
        job_id="a",
        generation=generation,
        rank=rank,
        slowdown=slowdown,
        num_virtual_nodes=num_virtual_nodes,
        at_s=at_s,
    )


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
    said = Lagged(rank=1, slowdown=2.0, num_virtual_nodes=8)
    node.reports(said).reports(said).settle()
    (event,) = node.emitted_of(events.WorkerLagged)
    assert (event.rank, event.generation, event.slowdown, event.num_virtual_nodes) == (1, 1, 2.0, 8)
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


# --- a GPU that fails by its driver's judgement -----------------------------------------------------------

FAILS = "needs a reset"


def failing(history: History, gpu: GpuId, at_s: float = SETTLED_AT_S, **changes: Any) -> events.GpuFailing:
    event = events.GpuFailing(
        node_id=gpu.node_id,
        incarnation=history.state.nodes[gpu.node_id].incarnation,
        gpu_index=gpu.gpu_index,
        reason=FAILS,
        at_s=at_s,
    )
    return replace(event, **changes)


def test_the_executor_reports_a_failing_gpu_once_and_again_while_it_lasts() -> None:
    node = ExecutorNode().training(2)
    node.note(GpusJudged(failing=((1, FAILS),), at_s=NOW_S))
    (event,) = node.emitted_of(events.GpuFailing)
    assert (event.node_id, event.gpu_index, event.reason) == ("node-0", 1, FAILS)
    node.note(GpusJudged(failing=((1, FAILS),), at_s=NOW_S + KEPT_S / 2))
    assert len(node.emitted_of(events.GpuFailing)) == 1
    node.note(GpusJudged(failing=((1, FAILS),), at_s=NOW_S + KEPT_S / 2 + 1))
    assert len(node.emitted_of(events.GpuFailing)) == 2
    node.note(GpusJudged(failing=((1, "needs a reboot of its machine"),), at_s=NOW_S + KEPT_S / 2 + 2))
    assert len(node.emitted_of(events.GpuFailing)) == 3
    node.note(GpusJudged(failing=(), at_s=NOW_S + 3 * KEPT_S))
    assert len(node.emitted_of(events.GpuFailing)) == 3
    assert node.unchanged_by(event)


def test_a_job_leaves_a_failing_gpu_and_its_history_says_why() -> None:
    history = training(2, 4, racks={"node-0": "r", "node-1": "r"})
    first, second = history.state.live_jobs["a"].gpus
    event = failing(history, second)
    history.then(event, replace(event, at_s=SETTLED_AT_S + KEPT_S / 2 + 1.0))
    (after,) = placed(history)
    assert (after[0], after[1].node_id) == (first, "node-1")
    said = [text for text in sentences(history) if FAILS in text]
    assert said == [f"GPU {second.gpu_index} of node-0 needs a reset; it counts as slow"], "the repetition says nothing"
    view = node_views(history.state)[0]
    assert view.failing == {second.gpu_index: FAILS}
    assert alive_word(view, SETTLED_AT_S).plain == f"GPU {second.gpu_index} needs a reset"


def test_a_new_job_avoids_a_failing_gpu() -> None:
    history = training(4, 4)
    assert SLOW not in placed_after(history.then(failing(history, SLOW)), 2)


@pytest.mark.parametrize("changes", [{"incarnation": "other"}, {"gpu_index": 9}, {"node_id": "node-7"}])
def test_an_impossible_failure_is_ignored(changes: dict[str, Any]) -> None:
    history = training(4)
    before = history.state.nodes
    assert history.then(failing(history, SLOW, **changes)).state.nodes == before


# --- no GPU is free ---------------------------------------------------------------------------------------


def measured(num_gpus: int, slowdown: float, *, job: Any = None, rank: int = 1, **config: Any) -> History:
    """A job with 8 virtual nodes holds all GPUs of a node; one of them is slow."""
    history = with_step_times(pool(num_gpus, **{"stop_free": True} | config), "bitwise", 8)
    admitted(history, "a", job or best_effort())
    allocated(history, a=num_gpus).decided(POLICY)
    return history.started("a").then(lagged(rank, slowdown=slowdown))


def generation(history: History, now_s: float = SETTLED_AT_S) -> events.PlacedJob:
    (decided,) = history.decided(POLICY, now_s=now_s)
    (placed_job,) = decided.placements
    return placed_job


def sentences(history: History) -> list[str]:
    entries = [(sequence, NOW_S, message) for sequence, message in enumerate(history.messages, 1)]
    return [entry.text for entry in job_history(entries, "a")]


@pytest.mark.parametrize("job", [best_effort(), spec()], ids=["best effort", "promised"])
def test_a_slow_gpu_carries_fewer_virtual_nodes(job: Any) -> None:
    history = measured(2, 2.0, job=job)
    relieved = generation(history)
    assert (relieved.gpus, relieved.virtual_nodes_by_rank) == (gpus("node-0:0", "node-0:1"), (6, 2))
    assert relieved.predicted_speedup == pytest.approx(8 / 6)
    job_now = history.state.live_jobs["a"]
    assert job_now.is_switching, "no worker stops"
    assert (job_now.num_gpus, held_num_gpus(job_now), job_now.reserved_gpus) == (2, 2, ())
    assert sentences(history)[-1] == (
        "generation 2 is placed on node-0:0,1 with virtual nodes 6:2, fewer on GPUs that count as slow; predicted: "
        "1.33 times the speed of even parts on its whole share; generation 1 trains until all workers are ready"
    )


@pytest.mark.parametrize("job", [best_effort(), spec()], ids=["best effort", "promised"])
def test_a_gpu_that_delays_others_more_than_it_helps_is_left_out_and_stays_reserved(job: Any) -> None:
    history = measured(4, 3.0, job=job)
    relieved = generation(history)
    assert (relieved.gpus, relieved.virtual_nodes_by_rank) == (gpus("node-0:0", "node-0:2", "node-0:3"), ())
    assert relieved.predicted_speedup == pytest.approx(2.0)
    job_now = history.state.live_jobs["a"]
    assert job_now.is_switching
    assert (job_now.num_gpus, held_num_gpus(job_now)) == (4, 4), "each plan counts its share"
    assert job_now.share_gpus == gpus("node-0:0", "node-0:1", "node-0:2", "node-0:3")
    assert node_views(history.state)[0].jobs == ("a",) * 4
    assert sentences(history)[-1] == (
        "generation 2 is placed on node-0:0,2,3, without node-0:1 of its share, which counts as slow; predicted: 2.00 "
        "times the speed of even parts on its whole share; generation 1 trains until all workers are ready"
    )
    history.started("a", at_s=SETTLED_AT_S)
    assert history.decided(POLICY, now_s=SETTLED_AT_S + SETTLED_S) == ()


def test_an_unknown_number_of_virtual_nodes_is_never_named() -> None:
    history = training(2).then(lagged(slowdown=3.0))
    relieved = generation(history)
    assert (relieved.gpus, relieved.virtual_nodes_by_rank) == (gpus("node-0:1"), ())
    assert relieved.predicted_speedup == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("history", "counts"),
    [
        (lambda: training(2), (6, 2)),
        (lambda: with_step_times(training(2), "bitwise", 8), (6, 2)),
        (lambda: with_step_times(training(2), "bitwise", 16), (6, 2)),
    ],
    ids=["not measured", "measured", "the class has changed since"],
)
def test_the_number_of_virtual_nodes_is_that_of_the_report(history: Any, counts: tuple[int, ...]) -> None:
    """Another one would fail the job."""
    assert generation(history().then(lagged(1, num_virtual_nodes=8))).virtual_nodes_by_rank == counts


@pytest.mark.parametrize(
    "history",
    [
        lambda: measured(4, 1.5),
        lambda: measured(4, 3.0, stop_free=False),
        lambda: measured(4, 3.0, slow_gpu_s=0.0),
        lambda: measured(4, 3.0, job=best_effort(training_function="train:__torchrun__")),
        lambda: training(2, job=best_effort(min_gpus=2)).then(lagged(slowdown=9.0)),
    ],
    ids=[
        "three would be as slow",
        "workers would have to stop",
        "only reported",
        "a script would have to",
        "needs two",
    ],
)
def test_a_job_that_would_not_be_faster_stays_as_it_is(history: Any) -> None:
    made = history()
    assert made.decided(POLICY, now_s=SETTLED_AT_S) == ()
    assert POLICY.wake_at_s(made.state) is None


def test_a_job_that_needs_all_of_its_gpus_keeps_a_virtual_node_on_each() -> None:
    relieved = generation(measured(4, 3.0, job=best_effort(min_gpus=4)))
    assert (len(relieved.gpus), relieved.virtual_nodes_by_rank) == (4, (3, 1, 2, 2))


@pytest.mark.parametrize(("num_gpus", "slowdown"), [(2, 2.0), (4, 3.0)], ids=["carries fewer", "left out"])
def test_a_gpu_takes_part_as_before_once_it_no_longer_counts_as_slow(num_gpus: int, slowdown: float) -> None:
    history = measured(num_gpus, slowdown)
    share = history.state.live_jobs["a"].gpus
    generation(history)
    history.started("a", at_s=SETTLED_AT_S + 1.0)
    assert POLICY.wake_at_s(history.state) == SETTLED_AT_S + KEPT_S
    assert history.decided(POLICY, now_s=SETTLED_AT_S + KEPT_S - 1.0) == ()
    back = generation(history, SETTLED_AT_S + KEPT_S)
    assert back == events.PlacedJob(job_id="a", generation=3, gpus=share)
    job = history.state.live_jobs["a"]
    assert (job.predicted_speedup, job.reserved_gpus, job.is_switching) == (0.0, (), True)
    assert sentences(history)[-1].endswith("; its GPUs no longer count as slow")
    history.started("a", at_s=SETTLED_AT_S + KEPT_S)
    assert history.decided(POLICY, now_s=SETTLED_AT_S + KEPT_S + 1.0) == ()
    assert POLICY.wake_at_s(history.state) is None


def test_a_gpu_that_is_still_slow_is_relieved_again() -> None:
    """A report of the relieved generation does not count: with few samples, each takes longer on a healthy GPU, too."""
    history = measured(2, 2.0)
    generation(history)
    history.started("a", at_s=SETTLED_AT_S + 1.0).then(lagged(1, generation=2, at_s=SETTLED_AT_S + KEPT_S / 2 + 1.0))
    back_s = SETTLED_AT_S + KEPT_S
    assert generation(history, back_s).virtual_nodes_by_rank == ()
    history.started("a", at_s=back_s).then(lagged(1, generation=3, at_s=back_s + 10.0, slowdown=5.0))
    assert history.decided(POLICY, now_s=back_s + 10.0) == ()
    assert POLICY.wake_at_s(history.state) == back_s + SETTLED_S
    assert generation(history, back_s + SETTLED_S).virtual_nodes_by_rank == (7, 1)


def test_a_second_slow_gpu_is_relieved_beside_the_first() -> None:
    history = measured(4, 2.0)
    assert generation(history).virtual_nodes_by_rank == ()
    history.started("a", at_s=SETTLED_AT_S + 1.0)
    history.then(events.WorkersStopped(job_id="a", generation=1, node_id="node-0", at_s=SETTLED_AT_S + 2.0))
    later_s = SETTLED_AT_S + 2 * SETTLED_S
    relieved = generation(history.then(lagged(2, generation=2, at_s=later_s, slowdown=2.0)), later_s)
    assert (relieved.gpus, relieved.virtual_nodes_by_rank) == (
        gpus("node-0:0", "node-0:1", "node-0:2", "node-0:3"),
        (3, 1, 3, 1),
    )


def test_a_gpu_that_becomes_free_replaces_one_that_is_left_out() -> None:
    history = measured(4, 3.0)
    generation(history)
    history.started("a", at_s=SETTLED_AT_S + 1.0).then(joined("new", "node-1", num_gpus=1))
    history.then(events.WorkersStopped(job_id="a", generation=1, node_id="node-0", at_s=SETTLED_AT_S + 2.0))
    replaced = generation(history, SETTLED_AT_S + 2 * SETTLED_S)
    assert (replaced.gpus, replaced.predicted_speedup) == (
        gpus("node-0:0", "node-1:0", "node-0:2", "node-0:3"),
        0.0,
    )


def test_no_other_job_gets_a_gpu_that_is_left_out() -> None:
    history = measured(4, 3.0)
    generation(history)
    history.started("a", at_s=SETTLED_AT_S + 1.0).then(joined("new", "node-1", num_gpus=2))
    admitted(history, "b", best_effort())
    allocated(history, a=4, b=2)
    history.decided(POLICY, now_s=SETTLED_AT_S + 2.0)
    assert {gpu.node_id for gpu in history.state.live_jobs["b"].gpus} == {"node-1"}


def test_another_share_or_a_loss_ends_the_relief() -> None:
    shrunk = measured(4, 3.0)
    generation(shrunk)
    allocated(shrunk.started("a", at_s=SETTLED_AT_S + 1.0), a=2)
    fewer = generation(shrunk, SETTLED_AT_S + 10.0)
    assert (len(fewer.gpus), fewer.predicted_speedup) == (2, 0.0)
    assert SLOW not in fewer.gpus
    on_two_nodes = with_step_times(pool(2, 2, stop_free=True), "bitwise", 8)
    admitted(on_two_nodes, "a", best_effort())
    allocated(on_two_nodes, a=4).decided(POLICY)
    on_two_nodes.started("a").then(lagged(1, slowdown=3.0))
    generation(on_two_nodes)
    on_two_nodes.started("a", at_s=SETTLED_AT_S + 1.0).then(lost("node-1", "first-1"))
    survivors = generation(on_two_nodes, SETTLED_AT_S + 10.0)
    assert (survivors.gpus, survivors.predicted_speedup) == (gpus("node-0:0"), 0.0)


def test_the_loss_of_a_node_with_only_left_out_gpus_stops_no_worker() -> None:
    history = with_step_times(pool(1, 1, 2, stop_free=True), "bitwise", 8)
    admitted(history, "a", best_effort())
    allocated(history, a=4).decided(POLICY)
    rank = history.state.live_jobs["a"].gpus.index(gpus("node-1:0")[0])
    history.started("a").then(lagged(rank, slowdown=3.0))
    generation(history)
    history.started("a", at_s=SETTLED_AT_S + 1.0).then(lost("node-1", "first-1"))
    assert history.state.live_jobs["a"].training
    allocated(history, a=2)
    fewer = generation(history, SETTLED_AT_S + 10.0)
    assert len(fewer.gpus) == 2


def test_a_gpu_that_was_slow_wakes_nobody_for_a_gpu_that_is_free_now() -> None:
    """The service would wake at once and decide nothing, again and again."""
    history = training(2).then(lagged())
    assert history.decided(POLICY, now_s=SETTLED_AT_S) == ()
    history.then(replace(joined("new", "node-1", num_gpus=1), at_s=SETTLED_AT_S + KEPT_S + 60.0))
    assert history.decided(POLICY, now_s=SETTLED_AT_S + KEPT_S + 60.0) == ()
    assert POLICY.wake_at_s(history.state) is None

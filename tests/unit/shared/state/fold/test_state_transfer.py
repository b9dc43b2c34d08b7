"""Given this history of a job whose workers switch to its next generation, then this state."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.state.job import Phase, PreviousGeneration
from testbed.histories import NOW_S, History, gpus, pool
from tests.support.executor_node import TIMELINE
from tests.support.worker_events import (
    admitted,
    crashed,
    finished,
    job,
    joined,
    lost,
    placed,
    profile_requested,
    progressed,
    stopped,
)


def training(*names: str) -> History:
    """Job a trains in generation 1 on these GPUs of a pool that is stop-free."""
    history = pool(4, 4, stop_free=True).then(admitted(), placed(1, *names))
    return history.started("a", at_s=NOW_S + 2.0).then(progressed(1, 20, checkpoint=10))


AMENDED = events.JobAmended(
    job_id="a",
    max_iterations=300,
    deadline_s=NOW_S + 200.0,
    minimum_satisfactory_share=(),
    gpu_seconds=0.0,
    at_s=NOW_S + 3.0,
)


def started(generation: int, iteration: int, *, at_s: float = 6.0) -> events.GenerationStarted:
    return events.GenerationStarted(
        job_id="a",
        generation=generation,
        num_gpus=2,
        iteration=iteration,
        resize=TIMELINE,
        at_s=NOW_S + at_s,
    )


def placed_together(at_s: float, **names: str) -> events.PlacementDecided:
    """The second generation of several jobs."""
    placements = tuple(
        events.PlacedJob(job_id=job_id, generation=2, gpus=gpus(*on.split())) for job_id, on in names.items()
    )
    return events.PlacementDecided(placements=placements, at_s=NOW_S + at_s)


# --- who is handed over ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "after",
    [("node-0:0", "node-0:1"), ("node-1:0",), ("node-0:1", "node-1:0")],
    ids=["growth", "migration", "both"],
)
def test_a_training_job_switches_without_a_stop(after: tuple[str, ...]) -> None:
    history = training("node-0:0").then(placed(2, *after))
    a = job(history)
    assert (a.generation, a.gpus, a.training, a.stopping) == (2, gpus(*after), False, ())
    assert a.previous_generation == PreviousGeneration(generation=1, gpus=gpus("node-0:0"))
    assert (a.is_switching, a.training_generation) == (True, 1)
    assert set(a.nodes) == {"node-0", *(gpu.node_id for gpu in gpus(*after))}


def test_other_counts_of_virtual_nodes_on_the_same_gpus_are_a_generation_without_a_stop() -> None:
    on = ("node-0:0", "node-0:1")
    history = training(*on).then(placed(2, *on, virtual_nodes_by_rank=(6, 2)))
    a = job(history)
    assert (a.generation, a.gpus, a.virtual_nodes_by_rank, a.stopping) == (2, gpus(*on), (6, 2), ())
    assert (a.is_switching, a.training_generation) == (True, 1)
    assert job(history.then(placed(3, "node-0:0"))).virtual_nodes_by_rank == ()


def stops(history: History) -> bool:
    a = job(history)
    return a.previous_generation is None and {s.generation for s in a.stopping} == {1}


def test_in_a_pool_that_is_not_stop_free_all_workers_stop() -> None:
    history = pool(4).then(admitted(), placed(1, "node-0:0")).started("a")
    assert stops(history.then(placed(2, "node-0:0", "node-0:1")))


def test_a_suspended_broken_outdated_or_starting_job_stops() -> None:
    assert stops(training("node-0:0").then(placed(2)))
    for event in (crashed(1), AMENDED):
        assert stops(training("node-0:0").then(event, placed(2, "node-0:0", "node-0:1")))
    not_yet = pool(4, stop_free=True).then(admitted(), placed(1, "node-0:0"))
    assert stops(not_yet.then(placed(2, "node-0:0", "node-0:1")))


def test_a_profiling_run_has_no_state_to_transfer() -> None:
    history = pool(4, stop_free=True).then(profile_requested(), placed(1, "node-0:0")).started("a")
    assert stops(History(history.state).then(placed(2, "node-0:0", "node-0:1")))
    assert stops(history.then(admitted(), placed(2, "node-0:0", "node-0:1")))


def test_a_job_placed_on_a_node_lost_meanwhile_stops() -> None:
    history = training("node-0:0").then(lost("node-1", "first-1"), placed(2, "node-0:0", "node-1:0"))
    assert stops(history)
    assert job(history).broken


@pytest.mark.parametrize(
    ("a_after", "b_after", "a_stops", "b_stops"),
    [
        ("node-0:1", "node-0:0", True, True),  # each would wait for the GPU of the other
        ("node-0:0 node-0:2", "node-0:1 node-0:3", False, False),
        ("node-0:2", "node-0:1 node-0:0", True, False),  # b grows: only a could close a cycle
        ("node-0:2", "node-0:1 node-0:3", False, False),  # no job takes the GPU that a leaves
    ],
)
def test_no_jobs_wait_in_a_cycle(a_after: str, b_after: str, a_stops: bool, b_stops: bool) -> None:
    history = training("node-0:0").then(admitted("b"), placed(1, "node-0:1", job_id="b")).started("b")
    history.then(placed_together(5.0, a=a_after, b=b_after))
    assert [job(history, name).previous_generation is None for name in "ab"] == [a_stops, b_stops]


# --- while it is handed over ----------------------------------------------------------------------------


def test_the_previous_generation_reports_until_the_next_one_has_started() -> None:
    history = training("node-0:0").then(placed(2, "node-0:0", "node-1:0"), progressed(1, 30, checkpoint=25))
    a = job(history)
    assert (a.iteration, a.checkpoint_iteration) == (30, 25)
    history.then(started(2, 33), progressed(1, 35, checkpoint=35, at_s=9.0))
    a = job(history)
    assert (a.iteration, a.checkpoint_iteration, a.iterations_per_s) == (33, 25, None)
    assert (a.training, a.previous_generation, a.training_generation) == (True, None, 2)
    assert job(history.then(progressed(2, 40, checkpoint=40, at_s=9.5))).checkpoint_iteration == 40


def test_after_a_switch_only_leaving_workers_are_awaited() -> None:
    history = training("node-0:0", "node-1:0").then(placed(2, "node-0:0"))
    assert job(history).stopping == ()
    a = job(history.then(started(2, 22)))
    assert [(s.generation, s.node_id) for s in a.stopping] == [(1, "node-1")]
    assert job(history.then(stopped(1, "node-1", iteration=15))).iteration == 22
    assert (job(history).stopping, job(history).checkpoint_iteration) == ((), 15)


def test_a_leaving_worker_of_a_lost_node_is_not_awaited() -> None:
    a = job(training("node-0:0", "node-1:0").then(placed(2, "node-0:0"), lost("node-1", "first-1")))
    assert (a.broken, a.is_switching) == (True, False)
    assert a.previous_generation is not None
    assert a.previous_generation.surviving == gpus("node-0:0")


def test_the_loss_of_a_joining_worker_breaks_the_new_generation_and_the_old_one_switches_to_the_next() -> None:
    for event in (crashed(2, node="node-1", rank=1), lost("node-1", "first-1")):
        history = training("node-0:0").then(placed(2, "node-0:0", "node-1:0"), event)
        a = job(history)
        assert (a.broken, a.training_generation, a.iteration) == (True, None, 20)
        assert a.previous_generation == PreviousGeneration(generation=1, gpus=gpus("node-0:0"))
        a = job(history.then(placed(3, "node-0:0"), progressed(1, 30)))
        assert (a.previous_generation, a.iteration) == (
            PreviousGeneration(generation=1, gpus=gpus("node-0:0")),
            30,
        )
        assert ("node-0", 2) in {(s.node_id, s.generation) for s in a.stopping}


def test_the_crash_of_the_only_staying_worker_breaks_both_generations_and_counts_once() -> None:
    history = training("node-0:0").then(placed(2, "node-0:0", "node-1:0"), crashed(1))
    a = job(history.then(crashed(2, node="node-1")))
    assert (a.broken, a.restarts, a.iteration) == (True, 1, a.checkpoint_iteration)
    assert a.previous_generation is None


def test_the_survivors_of_a_crash_hold_the_state_and_switch_to_the_next_generation() -> None:
    history = training("node-0:0", "node-1:0").then(progressed(1, 30), crashed(1, node="node-1", rank=1))
    survivors = PreviousGeneration(generation=1, gpus=gpus("node-0:0", "node-1:0"), lost=gpus("node-1:0"))
    a = job(history)
    assert (a.broken, a.iteration, a.previous_generation) == (True, 30, survivors)
    a = job(history.then(placed(2, "node-0:0", "node-1:0")))
    assert (a.broken, a.previous_generation, a.stopping, a.training_generation) == (
        False,
        survivors,
        (),
        None,
    )
    a = job(history.then(started(2, 31)))
    assert (a.training, a.iteration, a.restarts, a.previous_generation) == (True, 31, 0, None)


FOUR = ("node-0:0", "node-0:1", "node-1:0", "node-1:1")


def allocated(num_gpus: int) -> events.AllocationDecided:
    return events.AllocationDecided(num_gpus_by_job={"a": num_gpus}, valid_until_s=None, at_s=NOW_S + 4.0)


def shrunk_to_survivors(*gone: str) -> History:
    """Job a lost the workers on these GPUs of four, and its survivors go on without them in generation 2."""
    history = training(*FOUR).then(allocated(4))
    history.then(*(crashed(1, node=name.split(":")[0], rank=FOUR.index(name)) for name in gone))
    return history.then(placed(2, *(name for name in FOUR if name not in gone)))


def test_survivors_continue_with_a_part_of_their_share_and_the_rest_is_reserved() -> None:
    history = shrunk_to_survivors("node-0:1")
    a = job(history)
    assert (a.shrinks_to_survivors, a.training_generation, a.stopping, a.reserved_gpus) == (
        True,
        None,
        (),
        gpus(*FOUR),
    )
    a = job(history.then(started(2, 31)))
    assert (a.training, a.shrinks_to_survivors, a.previous_generation, a.reserved_gpus) == (
        True,
        False,
        None,
        gpus(*FOUR),
    )
    a = job(history.then(placed(3, *FOUR)))
    assert (a.training_generation, a.reserved_gpus) == (2, ())


@pytest.mark.parametrize("second", ["node-0:0", "node-1:1"])
def test_a_second_loss_while_they_shrink_leaves_fewer_with_the_same_reserved_gpus(second: str) -> None:
    rank = FOUR.index(second)
    history = shrunk_to_survivors("node-0:1").then(crashed(1, node=second[:6], rank=rank))
    left = [name for name in FOUR if name not in ("node-0:1", second)]
    a = job(history.then(placed(3, *left)))
    assert (a.shrinks_to_survivors, a.reserved_gpus, a.iteration) == (True, gpus(*FOUR), 20)
    assert a.previous_generation is not None
    assert a.previous_generation.surviving == gpus(*left)


def test_a_repeated_report_of_a_loss_does_not_stop_the_survivors() -> None:
    history = shrunk_to_survivors("node-0:1")
    before = job(history)
    assert job(history.then(crashed(1, rank=1))) == before


def test_another_share_has_other_reserved_gpus() -> None:
    history = shrunk_to_survivors("node-0:1").then(started(2, 31))
    assert job(history.then(allocated(2))).reserved_gpus == ()
    assert job(history.then(allocated(4))).reserved_gpus == ()


def test_repeated_crashes_at_the_same_step_are_counted() -> None:
    history = training("node-0:0", "node-1:0")
    for generation in (1, 2, 3):
        history.then(crashed(generation, node="node-1", rank=1))
        history.then(placed(generation + 1, "node-0:0", "node-1:0"), started(generation + 1, 30))
    assert job(history).restarts == 2
    assert job(history.then(crashed(4, node="node-1", rank=1), placed(5, "node-0:0"), started(5, 31))).restarts == 0


def test_when_the_last_survivor_is_lost_the_job_falls_back_to_its_checkpoint() -> None:
    history = training("node-0:0", "node-1:0").then(progressed(1, 30, checkpoint=25))
    history.then(crashed(1, node="node-1", rank=1), placed(2, "node-0:0", "node-1:0"), crashed(1))
    a = job(history)
    assert (a.broken, a.iteration, a.previous_generation) == (True, 25, None)


def test_a_job_placed_again_during_its_switch_stops_both_generations() -> None:
    a = job(training("node-0:0").then(placed(2, "node-0:0", "node-1:0"), placed(3, "node-0:0")))
    assert a.previous_generation is None
    assert {(s.generation, s.node_id) for s in a.stopping} == {(1, "node-0"), (2, "node-0"), (2, "node-1")}


def test_the_previous_generation_may_finish_the_job_and_all_workers_are_awaited() -> None:
    a = job(training("node-0:0").then(placed(2, "node-1:0"), finished(1)))
    assert (a.phase, a.previous_generation) == (Phase.FINISHED, None)
    assert {(s.generation, s.node_id) for s in a.stopping} == {(1, "node-0"), (2, "node-1")}


def test_a_fast_switch_does_not_lower_the_start_cost() -> None:
    def seen(*names: str, at_s: float) -> float:
        history = training("node-0:0")  # placed at 1 s, started at 2 s
        assert history.state.start_cost_s == 1.0
        return history.then(placed(2, *names), started(2, 22, at_s=at_s)).state.start_cost_s

    assert seen("node-0:0", "node-1:0", at_s=2.5) == 1.0
    assert seen("node-0:0", "node-1:0", at_s=9.0) == 7.0


@pytest.mark.parametrize("event", [started(2, 22), crashed(1), crashed(2), progressed(1, 30), finished(1)])
def test_a_repeated_event_changes_nothing(event: Any) -> None:
    history = training("node-0:0").then(placed(2, "node-0:0", "node-1:0"), event)
    before = history.state
    assert replace(history.then(event).state, sequence=before.sequence) == before


def test_switched_workers_have_the_older_spec_and_stop_next() -> None:
    history = training("node-0:0").then(placed(2, "node-0:0", "node-1:0"), AMENDED, started(2, 22))
    assert (job(history).training, job(history).has_outdated_spec) == (True, True)
    a = job(history.then(placed(3, "node-0:0", "node-1:0")))
    assert (a.previous_generation, {s.generation for s in a.stopping}) == (None, {2})


# --- nodes that separate GPUs ---------------------------------------------------------------------------


def separated(*names: str) -> History:
    """Job a trains on these GPUs of nodes whose workers see those only that the job has there."""
    history = pool(4, 4, stop_free=True)
    for node_id in ("node-0", "node-1"):
        join = replace(joined("second", node_id), separates_gpus=True)
        history = history.then(join)
    history = history.then(admitted(), placed(1, *names)).started("a", at_s=NOW_S + 12.0)
    return history.then(progressed(1, 20, checkpoint=10))


@pytest.mark.parametrize(
    "after",
    [
        ("node-0:0",),
        ("node-0:0", "node-0:1", "node-0:2", "node-0:3"),
        ("node-0:1", "node-0:2"),
        ("node-0:0", "node-1:0"),
    ],
    ids=["fewer", "more", "others", "fewer here"],
)
def test_a_worker_that_would_see_other_gpus_stops(after: tuple[str, ...]) -> None:
    history = separated("node-0:0", "node-0:1").then(placed(2, *after))
    assert stops(history)
    assert job(history).shown_gpus == tuple(sorted(gpus(*after)))


@pytest.mark.parametrize(
    "after",
    [
        ("node-0:0", "node-0:1", "node-1:0"),
        ("node-1:0", "node-1:1"),
        ("node-0:1", "node-0:0"),
    ],
    ids=["another node joins", "it leaves the node", "other ranks"],
)
def test_workers_that_see_the_same_gpus_switch(after: tuple[str, ...]) -> None:
    before = ("node-0:0", "node-0:1")
    a = job(separated(*before).then(placed(2, *after)))
    assert a.is_switching
    assert a.shown_gpus == tuple(sorted({*gpus(*before), *gpus(*after)}))


def test_workers_that_have_not_left_yet_still_see_what_they_have_seen() -> None:
    leaving = separated("node-0:0", "node-0:1").then(placed(2, "node-1:0"))
    assert job(leaving).is_switching
    leaving = leaving.then(crashed(2, node="node-1"))
    assert job(History(leaving.state).then(placed(3, "node-0:0", "node-0:1"))).is_switching
    assert not job(leaving.then(placed(3, "node-0:0"))).is_switching


def test_survivors_whose_job_keeps_all_gpus_reserved_go_on() -> None:
    def share(num_gpus: int) -> events.AllocationDecided:
        return events.AllocationDecided(num_gpus_by_job={"a": num_gpus}, valid_until_s=None, at_s=NOW_S)

    history = separated("node-0:0", "node-0:1").then(share(2))
    history = history.then(crashed(1, rank=1), placed(2, "node-0:0"))
    a = job(history)
    assert (a.is_switching, a.reserved_gpus) == (True, gpus("node-0:0", "node-0:1"))
    assert a.shown_gpus == gpus("node-0:0", "node-0:1")
    back = History(history.state).started("a", at_s=NOW_S + 14.0).then(placed(3, "node-0:0", "node-0:1"))
    assert job(back).is_switching
    smaller = history.started("a", at_s=NOW_S + 14.0).then(share(1), placed(3, "node-0:0"))
    assert not job(smaller).is_switching, "the other one may belong to another job"

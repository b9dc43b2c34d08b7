"""Given this history of nodes that end while a job starts, then so many starts count against the job."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.shared.messages import events
from testbed.histories import NOW_S, History, gpus
from tests.support.worker_events import admitted, crashed, job, lost, placed, running, stopped

SECOND = ("node-0:0", "node-1:0")


def joins(
    node: int, incarnation: int = 0, *, at_s: float = 0.0, heard_s: float | None = None, supervisor: int = 1
) -> events.NodeJoined:
    """A node joins, as started by the given supervisor. heard_s: of its incarnation before."""
    return events.NodeJoined(
        node_id=f"node-{node}",
        incarnation=str(incarnation),
        num_gpus=4,
        device="cpu",
        started_by=f"supervisor-{supervisor}",
        replaced_heard_s=None if heard_s is None else NOW_S + heard_s,
        at_s=NOW_S + at_s,
    )


def silent(node: int, incarnation: int = 0, *, heard_s: float) -> events.NodeLost:
    event = lost(f"node-{node}", str(incarnation))
    return replace(event, heard_s=NOW_S + heard_s, at_s=NOW_S + heard_s + 6.0)


def starting(num_nodes: int = 2, *on: str, supervisor_of_node_1: int = 1) -> History:
    """Job a is placed at second 1, and has not begun to train."""
    history = History().configured().then(joins(0))
    history.then(*(joins(node, supervisor=supervisor_of_node_1) for node in range(1, num_nodes)))
    return history.then(admitted(), at(1.0, 1, *(on or SECOND)))


def at(at_s: float, generation: int, *on: str) -> events.PlacementDecided:
    one = events.PlacedJob(job_id="a", generation=generation, gpus=gpus(*on))
    return events.PlacementDecided(placements=(one,), at_s=NOW_S + at_s)


def counted(history: History) -> tuple[tuple[str, ...], int]:
    """Nodes of lost starts, and crashes."""
    return job(history).nodes_lost_at_start, job(history).restarts


def test_a_power_loss_of_the_pool_counts_nothing_even_if_the_next_start_is_on_dead_incarnations() -> None:
    """The first defect: each executor that joined again counted one more lost start, and two failed the job."""
    history = starting().then(joins(0, 1, at_s=20.0, heard_s=2.0, supervisor=2))
    assert (job(history).broken, counted(history)) == (True, ((), 0))
    history.then(at(20.1, 2, *SECOND), joins(1, 1, at_s=21.0, heard_s=2.0, supervisor=2))
    assert (job(history).broken, counted(history)) == (True, ((), 0))


@pytest.mark.parametrize("times", [1, 2, 9])
def test_a_pool_that_loses_power_again_and_again_counts_nothing(times: int) -> None:
    history = starting()
    for number in range(1, times + 1):
        began_s, supervisor = 30.0 * number, number + 1
        back = [
            joins(node, number, at_s=began_s + node, heard_s=began_s - 5.0, supervisor=supervisor) for node in (0, 1)
        ]
        history.then(*back, at(began_s + 2.0, number + 1, *SECOND))
    assert counted(history) == ((), 0)


def test_an_executor_that_ends_by_itself_counts_if_another_node_outlives_it() -> None:
    history = starting(2, "node-0:0").then(joins(0, 1, at_s=4.0, heard_s=2.0))
    assert counted(history) == (("node-0",), 0)
    history.then(at(4.1, 2, "node-1:0"), stopped(1, "node-0"), joins(1, 1, at_s=9.0, heard_s=7.0))
    assert counted(history) == (("node-0", "node-1"), 0)
    history.then(at(9.1, 3, "node-1:0"), stopped(2, "node-1")).started("a")
    assert counted(history) == ((), 0)
    assert counted(history.then(joins(1, 2, at_s=20.0, heard_s=18.0))) == ((), 0), "it trained there"


def test_a_silent_node_counts_if_another_node_outlives_it() -> None:
    history = starting(2, "node-0:0").then(silent(0, heard_s=2.0))
    assert counted(history) == (("node-0",), 0)
    assert counted(history.then(joins(0, 1, at_s=40.0))) == (("node-0",), 0)


def test_a_node_whose_machine_was_started_again_does_not_count() -> None:
    history = starting(2, "node-0:0").then(silent(0, heard_s=2.0), joins(0, 1, at_s=40.0, supervisor=2))
    assert counted(history) == ((), 0)


def test_executors_that_all_end_at_once_are_one_crash() -> None:
    history = starting().then(joins(0, 1, at_s=4.0, heard_s=2.0), joins(1, 1, at_s=4.5, heard_s=2.4))
    assert counted(history) == ((), 1)


def test_the_only_executor_ends_at_most_as_often_as_a_worker_may_crash() -> None:
    history = starting(1, "node-0:0").then(joins(0, 1, at_s=4.0, heard_s=2.0))
    assert counted(history) == ((), 1)


@pytest.mark.parametrize(("supervisor", "crashes"), [(1, 1), (2, 0)], ids=["by itself", "with its machine"])
def test_a_silent_node_without_a_witness_is_a_crash_once_it_is_back_by_itself(supervisor: int, crashes: int) -> None:
    """A job that ends all executors at once for longer than the monitor waits was started again without end."""
    history = starting().then(silent(0, heard_s=2.0), silent(1, heard_s=2.4))
    assert counted(history) == ((), 0), "they may have lost their power"
    history.then(joins(1, 1, at_s=40.0), joins(0, 1, at_s=41.0, supervisor=supervisor))
    assert counted(history) == ((), crashes), "node-0 was the one of the start that counts"
    assert counted(history.then(joins(0, 2, at_s=50.0, supervisor=supervisor))) == ((), crashes), "once"


def test_a_silent_node_that_is_back_after_the_job_has_trained_counts_nothing() -> None:
    history = starting().then(silent(0, heard_s=2.0), silent(1, heard_s=2.4), joins(1, 1, at_s=40.0))
    history.then(at(41.0, 2, "node-1:0")).started("a")
    assert counted(history.then(joins(0, 1, at_s=50.0))) == ((), 0)


def test_a_start_on_an_executor_that_was_gone_counts_nothing() -> None:
    history = starting(3, "node-2:0").then(at(9.0, 2, "node-1:0"), stopped(1, "node-2"))
    assert counted(history.then(silent(1, heard_s=5.0))) == ((), 0)
    assert counted(history.then(at(10.0, 3, "node-0:0"), joins(0, 1, at_s=11.0, heard_s=5.0))) == ((), 0)


@pytest.mark.parametrize(
    "gone",
    [
        replace(silent(0, heard_s=2.0), heard_s=0.0),  # a monitor that never heard it
        replace(joins(0, 1, at_s=4.0, heard_s=2.0), started_by=""),
        joins(0, 1, at_s=4.0),
    ],
)
def test_what_is_not_known_of_a_node_counts_nothing(gone: Any) -> None:
    history = starting(2, "node-0:0").then(gone)
    assert (job(history).broken, counted(history)) == (True, ((), 0))


def test_an_older_monitor_does_not_say_when_it_heard_a_node() -> None:
    assert counted(starting(2, "node-0:0").then(replace(silent(0, heard_s=2.0), heard_s=None))) == (("node-0",), 0)


def test_one_generation_counts_one_lost_node() -> None:
    history = starting(3).then(silent(0, heard_s=2.0), silent(1, heard_s=9.0))
    assert counted(history) == (("node-0",), 0)


def test_a_node_that_leaves_in_order_does_not_count() -> None:
    history = starting().then(replace(silent(0, heard_s=2.0), reason="left"))
    assert (job(history).broken, counted(history)) == (True, ((), 0))


def test_workers_that_trained_or_must_end_first_count_nothing() -> None:
    trained = running().then(lost())
    assert (job(trained).broken, counted(trained)) == (True, ((), 0))
    stops = running().then(crashed(1), placed(2, "node-0:1"), lost())
    assert counted(stops) == ((), 1)


BEGAN, OTHERS = (("a", 1),), (("b", 1), ("c", 2))


@pytest.mark.parametrize(
    ("starts", "is_lost"), [(BEGAN, True), ((*OTHERS, *BEGAN), True), (OTHERS, False), ((), False)]
)
@pytest.mark.parametrize(
    "gone", [silent(0, heard_s=2.0), joins(0, 1, at_s=4.0, heard_s=2.0)], ids=["silent", "joined again"]
)
def test_a_start_is_lost_only_if_the_node_had_begun_it(gone: Any, starts: events.Starts, is_lost: bool) -> None:
    """A node that ended before it did anything for the job says nothing of the job."""
    named = {"starts": starts} if isinstance(gone, events.NodeLost) else {"replaced_starts": starts}
    history = starting(2, "node-0:0").then(replace(gone, **named))
    assert (job(history).broken, counted(history)) == (True, (("node-0",), 0) if is_lost else ((), 0))


@pytest.mark.parametrize("later", [(), (joins(0, 2, at_s=90.0, heard_s=80.0, supervisor=2),)], ids=["", "rebooted"])
@pytest.mark.parametrize(
    "gone", [silent(0, heard_s=2.0), joins(0, 1, at_s=4.0, heard_s=2.0)], ids=["silent", "joined again"]
)
def test_a_node_that_is_lost_while_it_prepares_a_start_loses_no_start(gone: Any, later: tuple[Any, ...]) -> None:
    """No worker has run there. What is prepared may still end machines, so it counts as a crash does."""
    is_silent = isinstance(gone, events.NodeLost)
    named = ("starts", "preparations") if is_silent else ("replaced_starts", "replaced_preparations")
    history = starting(2, "node-0:0").then(replace(gone, **dict.fromkeys(named, BEGAN)))
    assert (counted(history), job(history).nodes_lost_in_preparation) == (((), 0), ("node-0",))
    history.then(at(9.0, 2, "node-1:0"), stopped(1, "node-0"), *later)
    assert (counted(history), job(history).nodes_lost_in_preparation) == (((), 0), () if later else ("node-0",))
    assert job(history.started("a")).nodes_lost_in_preparation == ()


def test_a_start_is_lost_by_the_node_where_its_worker_ran_although_it_was_prepared_elsewhere() -> None:
    gone = replace(silent(0, heard_s=2.0), starts=(*BEGAN, ("b", 1)), preparations=(("b", 1),))
    history = starting(2, "node-0:0").then(gone)
    assert (counted(history), job(history).nodes_lost_in_preparation) == ((("node-0",), 0), ())


@pytest.mark.parametrize(("starts", "is_lost"), [(BEGAN, True), (OTHERS, False)])
def test_a_peers_crash_that_a_lost_node_explains_is_a_lost_start_only_if_that_node_had_begun_it(
    starts: events.Starts, is_lost: bool
) -> None:
    gone = replace(joins(1, 1, at_s=6.0, heard_s=2.0), replaced_starts=starts)
    history = starting().then(peer_crashes(1, at_s=3.0), stopped(1, "node-0"), at(3.1, 2, *SECOND), gone)
    assert counted(history) == ((("node-1",), 0) if is_lost else ((), 0))


def test_a_start_stays_lost_if_the_job_was_placed_anew_while_its_node_was_silent() -> None:
    """The plan changes every few seconds: a job could end one node after the other, each during its silence."""
    lost_1, lost_2 = (replace(silent(node, heard_s=2.0 + node), starts=BEGAN) for node in (0, 1))
    history = starting(4).then(at(4.0, 2, "node-2:0"), lost_1)
    assert counted(history) == (("node-0",), 0)
    assert counted(history.then(lost_2)) == (("node-0",), 0), "one generation counts once"
    assert counted(history.then(replace(silent(2, heard_s=9.0), starts=(("a", 2),)))) == (("node-0", "node-2"), 0)


BOTH = (("a", 1), ("b", 1))


def starting_both() -> History:
    """Jobs a and b are placed at second 1, both also on node 0."""
    placed_both = [
        events.PlacedJob(job_id=job_id, generation=1, gpus=gpus(*on))
        for job_id, on in (("a", SECOND), ("b", ("node-0:1", "node-2:0")))
    ]
    history = History().configured().then(*(joins(node) for node in range(4)), admitted("a"), admitted("b"))
    return history.then(events.PlacementDecided(placements=tuple(placed_both), at_s=NOW_S + 1.0))


def lost_starts(history: History) -> list[tuple[str, ...]]:
    return [job(history, name).nodes_lost_at_start for name in "ab"]


def test_of_several_jobs_that_start_on_the_node_those_that_were_there_at_the_most_ends_lose_one() -> None:
    both, history = BOTH, starting_both()
    first = History(history.state).then(replace(silent(0, heard_s=2.0), starts=both))
    assert lost_starts(first) == [("node-0",), ("node-0",)], "it may be either"
    history.then(replace(silent(1, heard_s=1.5), starts=(("a", 1),)), at(8.0, 2, "node-0:0"))
    history.then(replace(silent(0, heard_s=9.0), starts=(("a", 2), ("b", 1))))
    assert lost_starts(history) == [("node-1", "node-0"), ()]


def test_a_worker_that_crashed_and_left_its_node_alive_makes_its_job_no_suspect() -> None:
    """Job a loses a worker by a small fault, and then starts twice beside b, which ends each node at its start."""
    history = starting_both().then(crashed(1), stopped(1, "node-0"), stopped(1, "node-1"), at(2.0, 2, "node-0:0"))
    history.then(replace(silent(0, heard_s=4.0), starts=(("a", 2), ("b", 1))))
    assert lost_starts(history) == [("node-0",), ("node-0",)], "it may be either"
    history.then(at(11.0, 3, "node-1:0")).started("a", at_s=NOW_S + 12.0)
    history.then(crashed(3), stopped(3, "node-1"), at(13.0, 4, "node-2:0"))
    history.then(replace(silent(2, heard_s=14.0), starts=(("a", 4), ("b", 2))))
    assert lost_starts(history) == [(), ("node-0", "node-2")], "a has trained since the first end"


def test_a_job_that_was_there_counts_also_if_the_end_was_held_against_another_one() -> None:
    """What was held against a job by mistake must not be held against it for ever."""
    history = starting_both().then(replace(silent(1, heard_s=1.5), starts=BEGAN), at(8.0, 2, "node-0:0"))
    history.then(replace(silent(0, heard_s=9.0), starts=(("a", 2), ("b", 1))))
    assert lost_starts(history) == [("node-1", "node-0"), ()], "a was there at both"
    started = History(history.state).then(at(16.0, 3, "node-3:0")).started("a", at_s=NOW_S + 17.0)
    started.then(crashed(3, node="node-3"), stopped(3, "node-3"), at(18.0, 4, "node-2:0"))
    started.then(replace(silent(2, heard_s=19.0), starts=(("a", 4), ("b", 1))))
    assert lost_starts(started) == [(), ("node-2",)], "b was there at two, a at one since it trained"


def test_a_peers_crash_is_no_lost_start_if_the_end_of_its_node_is_another_jobs_doing() -> None:
    history = starting_both().then(replace(silent(2, heard_s=1.5), starts=(("b", 1),)), stopped(1, "node-0"))
    placed_b = events.PlacedJob(job_id="b", generation=2, gpus=gpus("node-1:1"))
    history.then(events.PlacementDecided(placements=(placed_b,), at_s=NOW_S + 8.0), peer_crashes(1, at_s=11.0))
    gone = replace(joins(1, 1, at_s=13.0, heard_s=10.0), replaced_starts=(("a", 1), ("b", 2)))
    history.then(gone)
    assert counted(history) == ((), 0), "the crash was the consequence of that end"
    assert lost_starts(history) == [(), ("node-2", "node-1")]


def test_a_job_that_trains_already_is_no_suspect_although_the_last_heartbeat_names_its_start() -> None:
    history = starting_both().then(replace(silent(1, heard_s=1.5), starts=BEGAN), at(8.0, 2, "node-0:0"))
    history.started("a", at_s=NOW_S + 10.0).then(replace(silent(0, heard_s=9.0), starts=(("a", 2), ("b", 1))))
    assert lost_starts(history) == [(), ("node-0",)]


def test_the_end_of_a_machine_that_was_started_again_makes_no_suspect() -> None:
    history = starting_both().then(replace(silent(1, heard_s=1.5), starts=BEGAN), at(8.0, 2, "node-0:0"))
    history.then(joins(1, 1, at_s=8.5, supervisor=2))
    history.then(replace(silent(0, heard_s=9.0), starts=(("a", 2), ("b", 1))))
    assert lost_starts(history) == [("node-0",), ("node-0",)]


def test_a_start_that_its_node_names_counts_nothing_once_it_has_trained() -> None:
    history = starting().started("a").then(silent(0, heard_s=2.0))
    assert counted(history.then(replace(silent(1, heard_s=20.0), starts=BEGAN))) == ((), 0)


def test_a_start_that_counts_as_a_crash_is_not_lost_too() -> None:
    history = starting(2, "node-0:0").then(crashed(1), at(2.0, 2, "node-1:0"))
    assert counted(history.then(replace(silent(0, heard_s=2.0), starts=BEGAN))) == ((), 1)


def peer_crashes(generation: int, *, at_s: float) -> events.WorkerCrashed:
    """The worker on node-0 has lost its peer on node-1, before any node is known to be gone."""
    return replace(crashed(generation), at_s=NOW_S + at_s)


@pytest.mark.parametrize("times", [1, 2, 9])
def test_reboots_of_one_node_of_several_use_up_no_crashes(times: int) -> None:
    """Each peer that noticed it first counted as a crash, and placement starts the job on the dead node again."""
    history = starting(supervisor_of_node_1=2)
    for number in range(1, times + 1):
        began_s = 30.0 * number
        history.then(
            at(began_s - 10.0, 2 * number, *SECOND),
            peer_crashes(2 * number, at_s=began_s - 4.0),
            stopped(2 * number, "node-0"),
            at(began_s - 3.9, 2 * number + 1, *SECOND),
            joins(1, number, at_s=began_s, heard_s=began_s - 5.0, supervisor=2 + number),
        )
    assert counted(history) == ((), 0)


def test_a_peer_that_crashes_first_does_not_hide_a_lost_start() -> None:
    history = starting().then(peer_crashes(1, at_s=3.0))
    assert counted(history) == ((), 1)
    history.then(at(3.1, 2, "node-0:0"), joins(1, 1, at_s=6.0, heard_s=2.0))
    assert counted(history) == (("node-1",), 0)


@pytest.mark.parametrize("gone", [joins(1, 1, at_s=6.0, heard_s=2.0), silent(1, heard_s=2.0)])
def test_one_end_of_an_executor_loses_one_start_although_the_next_one_was_placed_there_too(gone: Any) -> None:
    history = starting().then(peer_crashes(1, at_s=3.0), stopped(1, "node-0"), at(3.1, 2, *SECOND), gone)
    assert counted(history) == (("node-1",), 0)


def test_a_silent_node_explains_the_crash_of_its_peer() -> None:
    assert counted(starting().then(peer_crashes(1, at_s=3.0), silent(1, heard_s=2.0))) == (("node-1",), 0)


@pytest.mark.parametrize(
    "gone",
    [
        silent(0, heard_s=2.0),  # the node of the worker that crashed
        silent(1, heard_s=4.0),  # it lived after the crash
        replace(silent(1, heard_s=2.0), heard_s=-NOW_S),  # it was gone before
        joins(1, 1, at_s=6.0, supervisor=2),  # nothing says when it ended
    ],
)
def test_a_crash_that_no_lost_node_explains_counts(gone: Any) -> None:
    assert job(starting().then(peer_crashes(1, at_s=3.0), gone)).restarts == 1


def test_a_crash_is_explained_once_and_not_after_the_job_has_trained() -> None:
    twice = starting(3).then(peer_crashes(1, at_s=3.0), peer_crashes(1, at_s=3.1), silent(1, heard_s=2.0))
    assert counted(twice) == (("node-1",), 0)
    trained = starting().then(
        peer_crashes(1, at_s=3.0), stopped(1, "node-1"), at(3.1, 2, "node-0:0"), stopped(1, "node-0")
    )
    trained.started("a").then(silent(1, heard_s=2.0))
    assert counted(trained) == ((), 1)

"""Given this history, then these GPUs have been idle since then, and these windows have ended."""

from math import inf

from elasticflow.shared.state.pool import MAX_IDLE_WINDOWS, IdleWindows
from testbed.histories import NOW_S, History, pool
from tests.support.worker_events import admitted, finished, joined, lost, placed, progressed, running


def since_s(history: History, node_id: str = "node-0") -> tuple[float, ...]:
    """Relative to NOW_S."""
    return tuple(at_s - NOW_S for at_s in history.state.idle_since_s[node_id])


def test_a_node_is_idle_from_its_join_on_and_a_placement_ends_the_windows() -> None:
    history = pool(4, 4)
    assert since_s(history) == since_s(history, "node-1") == (0.0, 0.0, 0.0, 0.0)
    history.then(admitted(), placed(1, "node-0:0", "node-0:1"))
    assert since_s(history) == (inf, inf, 0.0, 0.0)
    assert history.state.idle_windows == IdleWindows(num_ended=2, newest_s=(1.0, 1.0))


def test_a_resize_ends_windows_where_it_takes_gpus_and_begins_them_where_it_leaves_gpus() -> None:
    history = pool(4).then(admitted(), placed(1, "node-0:0", "node-0:1"), placed(3, "node-0:1", "node-0:2"))
    assert since_s(history) == (3.0, inf, inf, 0.0)
    assert history.state.idle_windows.newest_s == (1.0, 1.0, 3.0)


def test_the_end_of_a_job_begins_windows_and_a_report_changes_none() -> None:
    history = running()
    before = history.state
    history.then(progressed(1, 20))
    assert history.state.idle_since_s is before.idle_since_s
    assert since_s(history.then(finished(1))) == (50.0, 0.0, 0.0, 0.0)
    history.then(finished(1))
    assert since_s(history) == (50.0, 0.0, 0.0, 0.0)


def test_a_lost_node_ends_its_windows_and_is_idle_when_it_comes_back() -> None:
    history = running().then(lost())
    assert "node-0" not in history.state.idle_since_s
    assert history.state.idle_windows.newest_s == (1.0, 1.0, 9.0, 9.0, 9.0)
    history.then(joined("second", num_gpus=2))
    assert since_s(history) == (10.0, 10.0)
    history.then(placed(20, "node-0:1", "node-0:3"))
    assert since_s(history) == (10.0, inf), "the node has no GPU 3 now"


def test_a_job_that_takes_its_gpus_on_a_node_that_came_back_ends_their_windows() -> None:
    history = running().then(lost(), joined("second"), placed(20, "node-0:0", "node-1:0"))
    assert since_s(history) == (inf, 10.0, 10.0, 10.0)
    assert history.state.idle_windows.newest_s[-1] == 10.0


def test_two_placements_at_one_instant_leave_no_window() -> None:
    history = pool(4).then(admitted(), admitted("b"), placed(1, "node-0:0"))
    history.then(placed(1, "node-0:1", job_id="b"))
    ended = history.state.idle_windows
    history.then(finished(1))
    assert history.state.idle_windows == ended


def test_the_oldest_windows_are_dropped_and_the_new_ones_can_be_told() -> None:
    windows = IdleWindows().added([1.0, 0.0, -1.0, -inf])
    assert windows == IdleWindows(num_ended=1, newest_s=(1.0,))
    windows = windows.added([2.0] * MAX_IDLE_WINDOWS)
    assert (windows.num_ended, len(windows.newest_s)) == (MAX_IDLE_WINDOWS + 1, MAX_IDLE_WINDOWS)
    assert windows.added([3.0, 4.0]).ended_since(windows.num_ended) == (3.0, 4.0)
    assert windows.ended_since(windows.num_ended) == ()
    assert windows.ended_since(0) == windows.newest_s

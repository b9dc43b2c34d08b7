"""The scheduler of virtual nodes runs one call at a time, in order, from synchronization to synchronization."""

import threading
from contextvars import ContextVar
from typing import Any

import pytest

from elasticflow.services.executor.worker.engine.cooperative_thread import CooperativeThreads
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import CallsDiverged, LockstepScheduler
from elasticflow.services.executor.worker.group.peer_loss import PeerLost

WAIT_S = 30.0


class Recorder:
    """Records, in order, what happens in a lockstep of `size` calls."""

    def __init__(self, size: int) -> None:
        self.entries: list[str] = []
        self.lockstep = LockstepScheduler(
            size,
            on_start=lambda: None,
            before_resume=lambda index: self.entries.append(f"turn {index}"),
            at_point=lambda point: self.entries.append(f"{point} on {threading.current_thread().name}"),
        )

    def call(self, name: str, *points: str):
        def calling() -> str:
            self.entries.append(f"{name} begins")
            for point in points:
                self.lockstep.synchronize(point)
                self.entries.append(f"{name} after {point}")
            return name.upper()

        return calling


def test_calls_alternate_and_common_work_is_done_once():
    recorder = Recorder(2)
    assert recorder.lockstep.run([recorder.call("a", "sum"), recorder.call("b", "sum")]) == ["A", "B"]
    assert recorder.entries == [
        *("turn 0", "a begins", "turn 1", "b begins", "sum on MainThread"),
        *("turn 0", "a after sum", "turn 1", "b after sum"),
    ]


def test_it_can_run_again_and_knows_the_running_call():
    recorder = Recorder(2)
    for _ in range(3):
        turns = recorder.lockstep.run([lambda: recorder.lockstep.running] * 2)
        assert turns == [0, 1]
    assert recorder.lockstep.running is None


@pytest.mark.parametrize(
    ("points", "message"),
    [((("sum",), ()), "sum and the end"), ((("sum",), ("step",)), "step and sum")],
)
def test_diverging_calls_are_named_with_their_points(points, message):
    recorder = Recorder(2)
    with pytest.raises(CallsDiverged, match=message):
        recorder.lockstep.run([recorder.call("a", *points[0]), recorder.call("b", *points[1])])


def test_an_error_comes_out_with_its_traceback():
    def fails() -> None:
        raise SystemExit("enough")

    recorder = Recorder(2)
    with pytest.raises(SystemExit, match="enough") as raised:
        recorder.lockstep.run([fails, recorder.call("b")])
    assert raised.traceback[-1].name == "fails"
    assert recorder.lockstep.running is None


def scheduler(size: int, threads: CooperativeThreads) -> LockstepScheduler:
    nothing: Any = lambda *_: None  # noqa: E731
    return LockstepScheduler(size, on_start=nothing, before_resume=nothing, at_point=nothing, threads=threads)


def test_the_next_generation_has_the_threads_of_the_last_one():
    """Plans of cuDNN belong to a thread."""
    pool, used = CooperativeThreads(), []
    for size in (2, 3, 1):
        lockstep = scheduler(size, pool)
        used.append(lockstep.run([threading.get_ident] * size))
        lockstep.close()
    first, second, third = used
    assert second[:2] == first
    assert third == first[:1]
    assert len(set(second)) == 3


def test_a_thread_has_the_context_of_its_present_user():
    """Among it are the settings of torch's compiler."""
    setting: ContextVar[int] = ContextVar("setting", default=0)
    pool, seen = CooperativeThreads(), []
    for value in (1, 2):
        setting.set(value)
        lockstep = scheduler(1, pool)
        seen += lockstep.run([setting.get])
        lockstep.close()
    assert seen == [1, 2]


def test_a_suspended_call_is_ended_before_its_thread_is_used_again():
    pool, ends = CooperativeThreads(), []
    lockstep = scheduler(1, pool)

    def call() -> int:
        try:
            lockstep.synchronize("sum")
        finally:
            ends.append("ended")
        return 1

    def lose(_: str) -> None:
        raise PeerLost("gone")

    lockstep._at_point = lose
    with pytest.raises(PeerLost):
        lockstep.run([call])
    lockstep.abandon()
    lockstep.close()
    assert ends == ["ended"]
    assert scheduler(1, pool).run([lambda: 7]) == [7]


def test_a_thread_that_is_stuck_in_a_call_stays_out_and_ends_after_it():
    pool, over, stuck = CooperativeThreads(), threading.Event(), list[threading.Thread]()
    lockstep = scheduler(1, pool)

    def call() -> None:
        stuck.append(threading.current_thread())
        over.wait(WAIT_S)

    threading.Thread(target=lockstep.run, args=([call],), daemon=True).start()
    while not stuck:
        over.wait(0.01)
    lockstep.abandon()
    lockstep.close()
    (other,) = scheduler(1, pool).run([threading.current_thread])
    assert other is not stuck[0]
    over.set()
    stuck[0].join(WAIT_S)
    assert not stuck[0].is_alive()

"""The scheduler of virtual nodes runs one call at a time, in order, from synchronization to synchronization."""

import threading

import pytest

from elasticflow.services.executor.worker.steps.virtual_node_scheduler import CallsDiverged, LockstepScheduler


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

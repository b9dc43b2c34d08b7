"""Calls in lockstep: one at a time, in order, from meeting to meeting."""

import threading

import pytest

from services.executor.worker.lockstep import Lockstep, OutOfStep


class Diary:
    """What happened, in order, in a lockstep of so many calls."""

    def __init__(self, size: int) -> None:
        self.entries: list[str] = []
        self.lockstep = Lockstep(
            size,
            on_start=lambda: None,
            before=lambda index: self.entries.append(f"turn {index}"),
            meeting=lambda point: self.entries.append(f"{point} on {threading.current_thread().name}"),
        )

    def call(self, name: str, *points: str):
        def calling() -> str:
            self.entries.append(f"{name} begins")
            for point in points:
                self.lockstep.meet(point)
                self.entries.append(f"{name} after {point}")
            return name.upper()

        return calling


def test_calls_take_turns_and_what_is_due_is_done_once():
    diary = Diary(2)
    assert diary.lockstep.run([diary.call("a", "sum"), diary.call("b", "sum")]) == ["A", "B"]
    assert diary.entries == [
        *("turn 0", "a begins", "turn 1", "b begins", "sum on MainThread"),
        *("turn 0", "a after sum", "turn 1", "b after sum"),
    ]


def test_it_can_be_run_again_and_knows_whose_turn_it_is():
    diary = Diary(2)
    for _ in range(3):
        turns = diary.lockstep.run([lambda: diary.lockstep.running] * 2)
        assert turns == [0, 1]
    assert diary.lockstep.running is None


@pytest.mark.parametrize(
    ("points", "told"),
    [((("sum",), ()), "sum and the end"), ((("sum",), ("step",)), "step and sum")],
)
def test_calls_that_part_are_told_where(points, told):
    diary = Diary(2)
    with pytest.raises(OutOfStep, match=told):
        diary.lockstep.run([diary.call("a", *points[0]), diary.call("b", *points[1])])


def test_an_error_comes_out_with_its_traceback():
    def fails() -> None:
        raise SystemExit("enough")

    diary = Diary(2)
    with pytest.raises(SystemExit, match="enough") as raised:
        diary.lockstep.run([fails, diary.call("b")])
    assert raised.traceback[-1].name == "fails"
    assert diary.lockstep.running is None

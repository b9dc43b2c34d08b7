"""A flood of refusals in the log: the first of each minute in full, then their number."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.runtime.process.logs import COUNTED_S, MAX_AT_ONCE, RefusalLog


class Lines:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **keys: Any) -> None:
        self.lines.append((event, keys))

    def counts(self) -> dict[tuple[str, str], int]:
        return {
            (keys["kind"], keys["sender"]): keys["number"] for event, keys in self.lines if event == "RefusalsCounted"
        }

    def in_full(self) -> list[str]:
        return [event for event, _ in self.lines if event != "RefusalsCounted"]


def test_the_first_of_each_tenant_and_kind_is_written_in_full_and_the_others_are_counted() -> None:
    lines = Lines()
    log = RefusalLog(lines.warning)
    for number in range(1_000):
        log.write("CommandRefused", "loud", number / 100, sequence=number)
        log.write("MessageRejected", "loud", number / 100, sequence=number)
    log.write("CommandRefused", "quiet", 10.0, sequence=1_000)
    assert lines.lines == [
        ("CommandRefused", {"sequence": 0}),
        ("MessageRejected", {"sequence": 0}),
        ("CommandRefused", {"sequence": 1_000}),
    ]
    log.write_counts(COUNTED_S)
    assert lines.counts() == {("CommandRefused", "loud"): 999, ("MessageRejected", "loud"): 999}
    log.write("CommandRefused", "loud", COUNTED_S, sequence=7)
    assert lines.in_full() == ["CommandRefused", "MessageRejected", "CommandRefused", "CommandRefused"]


def test_a_single_refusal_is_counted_nowhere() -> None:
    lines = Lines()
    log = RefusalLog(lines.warning)
    log.write("CommandRefused", "quiet", 0.0)
    log.write_counts(COUNTED_S)
    assert lines.lines == [("CommandRefused", {})]


def test_a_clock_that_was_set_back_silences_nothing() -> None:
    lines = Lines()
    log = RefusalLog(lines.warning)
    log.write("CommandRefused", "quiet", 5_000.0)
    log.write("CommandRefused", "quiet", 0.0)
    assert len(lines.in_full()) == 2


REFUSALS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3 * MAX_AT_ONCE), st.floats(0.0, 20.0)))


@given(REFUSALS)
def test_each_refusal_is_written_or_counted_and_lines_are_bounded(refusals: list[tuple[str, int, float]]) -> None:
    lines, now_s = Lines(), 0.0
    log = RefusalLog(lines.warning)
    for kind, tenant, pause_s in refusals:
        now_s += pause_s
        log.write(kind, f"tenant-{tenant}", now_s)
    log.write_counts(now_s + COUNTED_S)
    numbers = [keys["number"] for event, keys in lines.lines if event == "RefusalsCounted"]
    assert len(lines.in_full()) + sum(numbers) == len(refusals)


def test_a_flood_under_many_names_is_bounded_too() -> None:
    lines = Lines()
    log = RefusalLog(lines.warning)
    for number in range(10_000):
        log.write("CommandRefused", f"tenant-{number}", 1.0)
    assert len(lines.lines) == MAX_AT_ONCE
    log.write_counts(1.0 + COUNTED_S)
    assert lines.counts() == {("CommandRefused", ""): 10_000 - MAX_AT_ONCE}

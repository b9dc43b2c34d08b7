"""Whatever happens to a message before a decision that covers it, each reader finds it at that decision."""

from dataclasses import replace
from functools import cache

from hypothesis import assume, given
from hypothesis import strategies as st

from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.simulator.replay.recorded_ledger import checked_chain
from testbed.simulated_runs import short_storm


@cache
def records() -> tuple[LedgerRecord, ...]:
    """Of a pool in which processes were killed and messages delayed."""
    return tuple(short_storm(3).records)


@cache
def checked_at() -> tuple[tuple[int, int], ...]:
    """Of each decision with a chain: the sequence on which it rests, and its own."""
    plans = ((record.sequence, read_message(record)) for record in records())
    return tuple((plan.based_on, at) for at, plan in plans if isinstance(plan, PlanDecided) and plan.chain)


def renumbered(changed: list[LedgerRecord]) -> list[LedgerRecord]:
    return [replace(record, sequence=number) for number, record in enumerate(changed, 1)]


def test_a_ledger_that_nothing_changed_has_no_break() -> None:
    check = checked_chain(records())
    assert check.breaks == ()
    assert check.num_checked == len(checked_at()) > 20


@given(st.data())
def test_a_flipped_bit_is_found_at_the_first_decision_that_covers_it(data: st.DataObject) -> None:
    covered = checked_at()[-1][0]
    index = data.draw(st.integers(0, covered - 1), label="index")
    changed = list(records())
    flipped = bytearray(changed[index].data)
    flipped[data.draw(st.integers(0, len(flipped) - 1), label="byte")] ^= 1 << data.draw(st.integers(0, 7))
    changed[index] = replace(changed[index], data=bytes(flipped))
    found = checked_chain(changed).breaks
    at = index + 1
    assert found, "no break"
    assert found[0].first <= at <= found[0].decision
    assert found[0].decision <= next(decision for based_on, decision in checked_at() if based_on >= at)


@given(st.data())
def test_a_dropped_doubled_forged_or_exchanged_message_is_found(data: st.DataObject) -> None:
    covered = checked_at()[-2][0]  # after a drop, the last decision may have moved to before it
    index = data.draw(st.integers(0, covered - 2), label="index")
    changed = list(records())
    match data.draw(st.sampled_from(("drop", "double", "forge", "exchange")), label="what"):
        case "drop":
            del changed[index]
        case "double":
            changed.insert(index, changed[index])
        case "forge":
            changed.insert(index, replace(changed[index], data=changed[index].data + b" "))
        case _:
            one, next_one = changed[index], changed[index + 1]
            assume((one.subject, one.data) != (next_one.subject, next_one.data))  # else nothing changes
            changed[index], changed[index + 1] = next_one, one
    found = checked_chain(renumbered(changed)).breaks
    assert found, "no break"
    assert found[0].first <= index + 2
    assert found[0].decision <= 1 + next(decision for based_on, decision in checked_at() if based_on > index + 1)

"""States that are kept of a ledger's past are the folded ones, whatever has become of their jobs since."""

import pytest

from benchmarks.page.ledgers import large_history
from elasticflow.shared.state.pool import PoolState
from elasticflow.web import pool_history
from elasticflow.web.pool_history import CHECKPOINT_EVERY, MAX_CHECKPOINTS, KeptStates, PoolHistory
from testbed.histories import NOW_S
from testbed.page_ledger import recorded


@pytest.fixture(scope="module")
def states() -> list[PoolState]:
    """After each message, from the beginning."""
    history = PoolHistory()
    states = [history.state]
    for stored, message in recorded(large_history(10_000, 40, NOW_S)):
        history.fold(stored.sequence, stored.stored_at_s, message)
        states.append(history.state)
    return states


@pytest.mark.parametrize("most_bytes", [0, 60, 250])
def test_a_kept_state_is_the_folded_one(
    states: list[PoolState], most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_history, "_MOST_BYTES", most_bytes)
    kept = KeptStates()
    for state in states[1:]:
        kept.offer(state)
    found = {sequence: kept.last_state(sequence) for sequence in range(0, len(states), 100)}
    assert all(found[sequence] == states[found[sequence].sequence] for sequence in found)
    assert all(found[sequence].sequence == kept.last_sequence(sequence) <= sequence for sequence in found)
    every = CHECKPOINT_EVERY * 2  # more than can be kept
    assert len(states) > MAX_CHECKPOINTS * CHECKPOINT_EVERY
    assert all(sequence - found[sequence].sequence < every for sequence in found)

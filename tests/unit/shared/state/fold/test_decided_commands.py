"""Which commands the folded state knows as decided: the newest by their positions in the work queue."""

from elasticflow.shared.messages.events import PlanDecided, QueuePosition
from elasticflow.shared.state.fold.plan import commands_decided
from elasticflow.shared.state.pool import MAX_DECIDED_COMMANDS, PoolState

FIRST_DECISION, SECOND_DECISION = 7, 8  # sequences in the ledger


def decided(state: PoolState, positions: range, sequence: int) -> PoolState:
    queue_positions = tuple(QueuePosition(position, float(position)) for position in positions)
    decision = PlanDecided(service="admission", based_on=0, now_s=0.0, queue_positions=queue_positions, events=())
    return commands_decided(state, decision, sequence)


def test_a_new_position_replaces_the_oldest_one_only() -> None:
    full = decided(PoolState(), range(1, MAX_DECIDED_COMMANDS + 1), FIRST_DECISION)
    assert full.decision_on(QueuePosition(1, 1.0)) == FIRST_DECISION
    beyond = decided(full, range(MAX_DECIDED_COMMANDS + 1, MAX_DECIDED_COMMANDS + 2), SECOND_DECISION)
    newest = QueuePosition(MAX_DECIDED_COMMANDS + 1, MAX_DECIDED_COMMANDS + 1.0)
    assert beyond.decision_on(newest) == SECOND_DECISION
    assert beyond.decision_on(QueuePosition(1, 1.0)) is None
    assert beyond.decision_on(QueuePosition(2, 2.0)) == FIRST_DECISION
    assert len(beyond.decided_commands) == MAX_DECIDED_COMMANDS


def test_an_equal_sequence_of_a_queue_that_was_made_anew_is_no_repeat() -> None:
    state = decided(PoolState(), range(1, 2), FIRST_DECISION)
    assert state.decision_on(QueuePosition(1, 2.0)) is None

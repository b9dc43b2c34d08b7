"""The fold is total and idempotent, and folding in parts equals folding at once."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.state import snapshot_encoding
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.idempotent_replies import outcome
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.pool import PoolState
from tests.support.example_specs import examples
from tests.support.history_strategies import REPORTED_EVENTS, histories

PROPERTY = examples(60)


def fold(messages: tuple[Any, ...], state: PoolState | None = None) -> PoolState:
    """The state after these messages, numbered on from the state's sequence."""
    state = state or PoolState()
    for sequence, message in enumerate(messages, state.sequence + 1):
        state = ledger_fold.evolve(state, message, sequence)
    return state


@PROPERTY
@given(history=histories(), data=st.data())
def test_folding_in_parts_equals_folding_at_once(history: tuple[Any, ...], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(history)))
    whole = fold(history)
    assert fold(history[cut:], fold(history[:cut])) == whole
    assert whole.sequence == len(history)


@PROPERTY
@given(history=histories(), data=st.data())
def test_folding_from_a_snapshot_equals_folding_from_the_start(history: tuple[Any, ...], data: st.DataObject) -> None:
    before = fold(history[: data.draw(st.integers(0, len(history)))])
    restored = snapshot_encoding.load(snapshot_encoding.dump(before))
    assert restored == before
    assert fold(history[restored.sequence :], restored) == fold(history)


@PROPERTY
@given(history=histories(), data=st.data())
def test_a_message_at_a_sequence_already_folded_changes_nothing(history: tuple[Any, ...], data: st.DataObject) -> None:
    state = fold(history)
    for sequence, message in enumerate(history, 1):
        assert ledger_fold.evolve(state, message, sequence) is state


@examples(150)
@given(history=histories())
def test_an_event_repeated_at_any_later_time_changes_nothing(history: tuple[Any, ...]) -> None:
    """As an executor does that got no acknowledgement, long after the server has forgotten the first time."""
    state, received = PoolState(), list[Any]()
    for message in history:
        before, state = state, fold((message,), state)
        if isinstance(message, REPORTED_EVENTS) and replace(state, sequence=before.sequence) != before:
            received.append(message)
        for event in received:
            again = fold((event,), state)
            assert replace(again, sequence=state.sequence) == state, event


@PROPERTY
@given(history=histories())
def test_ends_are_final_and_generations_only_grow(history: tuple[Any, ...]) -> None:
    """Except for a rejection: another job may be submitted under its id."""
    state = PoolState()
    for message in history:
        before, state = state, fold((message,), state)
        assert not set(state.live_jobs) & set(state.ended_jobs)
        for job_id in (*before.live_jobs, *before.ended_jobs):
            was, now = before.job(job_id), state.job(job_id)
            assert was is not None
            assert now is not None
            assert now.generation >= was.generation
            renamed = was.phase is Phase.REJECTED and (now.spec, now.tenant) != (was.spec, was.tenant)
            if not was.live and not renamed:
                assert now.phase is was.phase
                assert replace(now, stopping=was.stopping) == was
                assert set(now.stopping) <= set(was.stopping)


@PROPERTY
@given(history=histories())
def test_the_fields_of_a_job_are_consistent(history: tuple[Any, ...]) -> None:
    state = PoolState()
    for message in history:
        state = fold((message,), state)
        for job in state.live_jobs.values():
            assert job.phase in (Phase.PROFILING, Phase.ADMITTED)
            assert job.iteration >= 0
            assert not (job.broken and job.training)
            for stopping in job.stopping:
                assert stopping.generation < job.generation or stopping.generation <= job.void_generation
            previous = job.previous_generation
            if previous is not None:
                assert previous.generation < job.generation or job.broken  # the next generation waits for it
                # Others may be newer: joining workers of a generation that broke before it started.
                assert all(stopping.generation != previous.generation for stopping in job.stopping)
                assert job.started_at_s is None
                assert job.gpus
        for job in state.ended_jobs.values():
            assert job.phase not in (Phase.PROFILING, Phase.ADMITTED)
            assert (job.num_gpus, job.gpus, job.previous_generation) == (0, (), None)
            assert job.ended_at_s is not None
            outcome(state, job)

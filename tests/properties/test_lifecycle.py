"""The fold is total, idempotent and the same however it is cut."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared.messages import lifecycle, snapshot
from shared.messages.job_state import Phase
from shared.messages.outcome import outcome
from shared.messages.pool_state import PoolState
from tests.examples import examples
from tests.properties.history_strategies import FACTS, histories

PROPERTY = examples(60)


def fold(messages: tuple[Any, ...], state: PoolState | None = None) -> PoolState:
    """The state after these messages, numbered on from the state's sequence."""
    state = state or PoolState()
    for sequence, message in enumerate(messages, state.sequence + 1):
        state = lifecycle.evolve(state, message, sequence)
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
def test_folding_from_a_snapshot_equals_folding_from_the_start(
    history: tuple[Any, ...], data: st.DataObject
) -> None:
    before = fold(history[: data.draw(st.integers(0, len(history)))])
    restored = snapshot.load(snapshot.dump(before))
    assert restored == before
    assert fold(history[restored.sequence :], restored) == fold(history)


@PROPERTY
@given(history=histories(), data=st.data())
def test_a_message_at_a_sequence_already_folded_changes_nothing(
    history: tuple[Any, ...], data: st.DataObject
) -> None:
    state = fold(history)
    for sequence, message in enumerate(history, 1):
        assert lifecycle.evolve(state, message, sequence) is state


@examples(150)
@given(history=histories())
def test_a_fact_told_again_at_any_later_time_changes_nothing(history: tuple[Any, ...]) -> None:
    """As an executor does that got no acknowledgement, long after the server has forgotten the first time."""
    state, heard = PoolState(), list[Any]()
    for message in history:
        before, state = state, fold((message,), state)
        if isinstance(message, FACTS) and replace(state, sequence=before.sequence) != before:
            heard.append(message)
        for fact in heard:
            again = fold((fact,), state)
            assert replace(again, sequence=state.sequence) == state, fact


@PROPERTY
@given(history=histories())
def test_ends_are_final_and_generations_only_grow(history: tuple[Any, ...]) -> None:
    """But for a rejection: another wish may come under its name."""
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
def test_what_a_job_says_of_itself_fits_together(history: tuple[Any, ...]) -> None:
    state = PoolState()
    for message in history:
        state = fold((message,), state)
        for job in state.live_jobs.values():
            assert job.phase in (Phase.PROFILING, Phase.ADMITTED)
            assert job.iteration >= 0
            assert all(stopping.generation < job.generation for stopping in job.stopping)
            assert not (job.broken and job.training)
            if job.predecessor is not None:
                assert (
                    job.predecessor.generation < job.generation or job.broken
                )  # then the next one waits for it
                assert all(stopping.generation < job.predecessor.generation for stopping in job.stopping)
                assert job.started_at_s is None
                assert job.gpus
        for job in state.ended_jobs.values():
            assert job.phase not in (Phase.PROFILING, Phase.ADMITTED)
            assert (job.num_gpus, job.gpus, job.predecessor) == (0, (), None)
            assert job.ended_at_s is not None
            outcome(state, job)

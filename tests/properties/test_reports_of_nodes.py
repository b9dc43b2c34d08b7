"""A node reports only on jobs that have workers there, under its own name, and on profiles of those jobs."""

from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.runtime.service.ledger_encoding import ledger_message, subject_of
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import has_workers_on
from elasticflow.shared.state.pool import PoolState, spec_of
from tests.support.example_specs import examples
from tests.support.history_strategies import RUNNING, histories
from tests.support.message_strategies import messages_of

BY_EXECUTORS = [kind for kind in get_args(events.JobEvent) if "node_id" in {field.name for field in fields(kind)}]
STRANGER = "stranger"  # a node without workers


def folded(messages: tuple[Any, ...]) -> PoolState:
    state = PoolState()
    for sequence, message in enumerate(messages, 1):
        state = ledger_fold.evolve(state, message, sequence)
    return state


@examples(50)
@given(history=histories(), kind=st.sampled_from(BY_EXECUTORS), data=st.data())
def test_a_report_on_a_job_without_workers_there_changes_nothing(
    history: tuple[Any, ...], kind: type[Any], data: st.DataObject
) -> None:
    state = folded(history)
    assume(state.live_jobs)
    job = data.draw(st.sampled_from(sorted(state.live_jobs.values(), key=lambda job: job.job_id)))
    generation = {"generation": st.just(job.generation)} if "generation" in {f.name for f in fields(kind)} else {}
    event = data.draw(messages_of(kind, job_id=st.just(job.job_id), node_id=st.just(STRANGER), **generation))
    assert not has_workers_on(job, STRANGER)
    after = ledger_fold.evolve(state, event, state.sequence + 1)
    assert after == fast_replace(state, sequence=after.sequence)


def test_a_crash_counts_where_its_worker_was_placed_only() -> None:
    state = folded(RUNNING)
    (node_id,) = {gpu.node_id for gpu in state.live_jobs["a"].gpus}

    def crashed(node_id: str) -> PoolState:
        event = events.WorkerCrashed(job_id="a", generation=1, node_id=node_id, rank=0, explanation="", at_s=2.0)
        return ledger_fold.evolve(state, event, state.sequence + 1)

    assert crashed(node_id).live_jobs["a"].broken
    assert crashed(STRANGER).live_jobs["a"] == state.live_jobs["a"]


@given(event=st.one_of([messages_of(kind, node_id=st.just("n1")) for kind in BY_EXECUTORS]))
def test_no_node_reports_under_another_name(event: Any) -> None:
    """The servers let a node use its own subjects only, and readers compare the name."""
    data = codec.encode(event, id="id", recorded_at_s=0.0)
    assert subject_of("p", event) == subjects.job("p", event.job_id, "n1")
    assert ledger_message(subject_of("p", event), data) == event
    with pytest.raises(codec.Undecodable):
        ledger_message(subjects.job("p", event.job_id, "n2"), data)


def test_no_node_leaves_its_name_out() -> None:
    event = events.JobFinished(job_id="a", generation=1, iteration=1, condition="max_iterations", at_s=1.0)
    data = codec.encode(event, id="id", recorded_at_s=0.0)
    with pytest.raises(codec.Undecodable):
        ledger_message(subjects.job("p", "a", "n1"), data)


def test_a_node_measures_its_own_jobs_only() -> None:
    state = folded(RUNNING)
    job = state.live_jobs["a"]
    (node_id,) = {gpu.node_id for gpu in job.gpus}

    def measured(profile_key: str, node_id: str | None) -> PoolState:
        event = events.ThroughputMeasured(
            profile_key=profile_key,
            num_gpus=1,
            iterations_per_s=3.0,
            job_id="a",
            generation=1,
            source="profile",
            at_s=1e9,
            node_id=node_id,
        )
        return ledger_fold.evolve(state, event, state.sequence + 1)

    own = spec_of(job).measured_key
    assert measured(own, node_id).curves[own].iterations_per_s[1] == 3.0
    assert measured(f"{own}@A100", node_id).curves[f"{own}@A100"].iterations_per_s[1] == 3.0
    for profile_key, reporter in (("another", node_id), (f"{own}x", node_id), (own, STRANGER)):
        assert measured(profile_key, reporter).curves == state.curves

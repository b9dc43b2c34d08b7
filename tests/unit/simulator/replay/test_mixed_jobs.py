"""A job that GPUs of another type have joined, in the counterfactual, in the tables of `replay` and in its history."""

from dataclasses import replace

import pytest

from elasticflow.history.job_history import job_history
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import ThroughputMeasured
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.replay.counterfactual import placed_rate, run_on
from elasticflow.simulator.replay.recorded_ledger import Entry
from elasticflow.simulator.replay.retaken_decisions import other_decisions
from elasticflow.simulator.replay.state_tables import as_object
from testbed.histories import NOW_S, History, best_effort
from tests.support.two_types import two_types, with_step_times

STARTED_S = NOW_S + 1.0
MIXED_STEP_S, ALONE_STEP_S = 3 / 16, 1 / 4  # of 16 virtual nodes, each V100 has three and each P100 one


@pytest.fixture
def history() -> History:
    """The job on four V100 and four P100 trains since STARTED_S."""
    history = with_step_times(two_types(resize_cost_s=0.2))
    history.decided(ADMISSION, SubmitJob(job_id="a", tenant="lab", spec=best_effort()))
    for policy in (ALLOCATOR, PLACEMENT):
        history.decided(policy)
    return history.started("a", at_s=STARTED_S)


def entries(history: History) -> tuple[Entry, ...]:
    return tuple(
        Entry(sequence=number, stored_at_s=STARTED_S, message=message)
        for number, message in enumerate(history.messages, 1)
    )


def test_the_model_trains_it_at_the_step_that_its_profile_predicts(history: History) -> None:
    job = history.state.live_jobs["a"]
    assert placed_rate(history.state, job) == pytest.approx(1 / MIXED_STEP_S)
    alone = fast_replace(job, gpus=job.own_gpus, num_added_gpus=0, virtual_nodes_by_rank=())
    assert placed_rate(history.state, alone) == 1 / ALONE_STEP_S
    survivors = fast_replace(job, gpus=job.added_gpus, virtual_nodes_by_rank=())
    assert placed_rate(history.state, survivors) == pytest.approx(4 * 0.5), "four of 16 on each P100"


def test_the_counterfactual_ends_it_as_early_and_knows_its_step_times_from_the_start(history: History) -> None:
    recorded, num_messages = entries(history), len(history.messages)
    ends_s = [run_on(recorded, at, planners(), NOW_S + 100.0).jobs["a"].ended_at_s for at in (num_messages, 3)]
    assert ends_s[0] == pytest.approx(STARTED_S + 100 * MIXED_STEP_S)
    assert ends_s[1] == pytest.approx(ends_s[0], abs=1.5), "it starts again"


def test_without_step_times_the_counterfactual_counts_its_share_alone(history: History) -> None:
    unmeasured = tuple(
        replace(entry, message=replace(entry.message, single_gpu=None))
        if isinstance(entry.message, ThroughputMeasured)
        else entry
        for entry in entries(history)
    )
    ended_at_s = run_on(unmeasured, len(unmeasured), planners(), NOW_S + 100.0).jobs["a"].ended_at_s
    assert ended_at_s == pytest.approx(STARTED_S + 100 * ALONE_STEP_S)


def test_its_margin_and_types_are_those_of_all_its_gpus(history: History) -> None:
    job = fast_replace(history.state.live_jobs["a"], deadline_s=NOW_S + 101.0)
    state = fast_replace(history.state, live_jobs=history.state.live_jobs.set("a", job))
    (shown,) = as_object(state, STARTED_S)["jobs"]
    assert shown["gpu_types"] == "4 V100 + 4 P100"
    assert shown["margin_s"] == pytest.approx(100 - 100 * MIXED_STEP_S)


def test_another_policy_that_mixes_no_types_allocates_differently(history: History) -> None:
    share_alone = replace(
        ALLOCATOR,
        decide=lambda state, commands, now_s: tuple(
            replace(event, virtual_nodes_by_type={}) for event in ALLOCATOR.decide(state, commands, now_s)
        ),
    )
    (other,) = other_decisions(entries(history), 0, share_alone)
    assert (other.recorded, other.other) == ({"a": "4 + 4 of other types"}, {"a": 4})


def test_its_history_says_what_they_gain(history: History) -> None:
    described = job_history([(entry.sequence, NOW_S, entry.message) for entry in entries(history)], "a")
    (placed,) = (entry.text for entry in described if entry.type == "PlacementDecided")
    assert placed.endswith(
        "virtual nodes 3:3:3:3:1:1:1:1; a step takes 188 ms by its profile, 250 ms on its 4 GPUs of type V100"
    )

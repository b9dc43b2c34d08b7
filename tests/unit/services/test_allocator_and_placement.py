"""Given this history, the allocator decides shares and placement decides GPUs."""

from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.job_spec import JobClass
from testbed.histories import LINEAR, NOW_S, History, pool, submit
from tests.support.worker_events import throughput


def planned(history: History, now_s: float = NOW_S) -> History:
    history.decided(ALLOCATOR, now_s=now_s)
    history.decided(PLACEMENT, now_s=now_s)
    return history


def shares(history: History) -> dict[str, int]:
    return {job_id: job.num_gpus for job_id, job in sorted(history.state.live_jobs.items())}


def test_a_single_job_gets_every_gpu_that_makes_it_faster() -> None:
    history = pool(4)
    history.decided(ADMISSION, submit("a"))
    planned(history)
    job = history.state.live_jobs["a"]
    assert job.num_gpus == 4
    assert (job.generation, len(set(job.gpus))) == (1, 4)


def test_nothing_new_means_no_new_decision() -> None:
    history = pool(4)
    history.decided(ADMISSION, submit("a"))
    planned(history)
    assert history.decided(ALLOCATOR) == ()
    assert history.decided(PLACEMENT) == ()


def test_promises_come_before_best_effort() -> None:
    history = pool(1)
    history.decided(ADMISSION, submit("b", job_class=JobClass.BEST_EFFORT, deadline_s=None))
    planned(history)
    assert shares(history) == {"b": 1}
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 103.0))
    planned(history)
    assert shares(history) == {"a": 1, "b": 0}
    assert history.state.live_jobs["b"].gpus == ()
    assert history.state.live_jobs["b"].stopping[0].generation == 1


def test_a_profile_runs_on_1_2_4_gpus_until_more_does_not_help() -> None:
    history = pool(4)
    history.decided(ADMISSION, submit("a", model_name="new"))
    seen = []
    for rate in (1.0, 1.9, 2.0):
        planned(history)
        job = history.state.live_jobs["a"]
        seen.append(len(job.gpus))
        history.then(throughput(job, rate, NOW_S, profile_key="new/b64"))
    said = history.decided(ALLOCATOR)
    assert seen == [1, 2, 4]
    assert isinstance(said[0], events.ProfileCompleted)
    assert dict(said[0].iterations_per_s) == {1: 1.0, 2: 1.9, 4: 2.0}
    admitted = history.decided(ADMISSION)
    assert isinstance(admitted[0], events.JobAdmitted)
    planned(history)
    assert history.state.live_jobs["a"].generation > job.generation


def test_a_profiling_run_measures_the_worst_block_that_a_promise_may_get() -> None:
    """Four GPUs are node 0, or nodes 1 and 2 together."""
    history = pool(4, 2, 2)
    history.decided(ADMISSION, submit("a", model_name="new"))
    for rate in (1.0, 1.9):
        planned(history)
        history.then(throughput(history.state.live_jobs["a"], rate, NOW_S, profile_key="new/b64"))
    planned(history)
    gpus = history.state.live_jobs["a"].gpus
    assert (len(gpus), {gpu.node_id for gpu in gpus}) == (4, {"node-1", "node-2"})


def test_a_node_lost_during_a_profiling_run_ends_it_with_the_measured_levels() -> None:
    history = pool(2, 2)
    history.decided(ADMISSION, submit("a", model_name="new"))
    for rate in (1.0, 2.0):
        planned(history)
        job = history.state.live_jobs["a"]
        measured = events.ThroughputMeasured(
            profile_key="new/b64",
            num_gpus=len(job.gpus),
            iterations_per_s=rate,
            job_id="a",
            generation=job.generation,
            source="profile",
            at_s=NOW_S + rate,
        )
        history.then(measured)
    planned(history)
    assert shares(history) == {"a": 4}
    history.then(events.NodeLost(node_id="node-1", incarnation="first-1", reason="silent", at_s=NOW_S))
    assert isinstance(history.decided(ALLOCATOR)[0], events.ProfileCompleted)


def test_a_profile_never_takes_gpus_that_a_promise_needs() -> None:
    history = pool(2)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 104.0), submit("b", deadline_s=NOW_S + 104.0))
    planned(history)
    history.decided(ADMISSION, submit("c", model_name="new"))
    planned(history)
    assert shares(history) == {"a": 1, "b": 1, "c": 0}


def test_a_lost_node_shrinks_the_shares_and_its_job_gets_a_new_generation() -> None:
    history = pool(2, 2)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 500.0))
    planned(history).started("a")
    history.then(events.NodeLost(node_id="node-1", incarnation="first-1", reason="silent", at_s=NOW_S + 5))
    planned(history, NOW_S + 5)
    job = history.state.live_jobs["a"]
    assert job.num_gpus == 2
    assert {gpu.node_id for gpu in job.gpus} == {"node-0"}
    assert job.generation == 2
    assert [stopping.node_id for stopping in job.stopping] == ["node-0"]


def test_a_crash_leads_to_a_new_generation_on_the_same_gpus() -> None:
    history = pool(2)
    history.decided(ADMISSION, submit("a"))
    planned(history).started("a")
    before = history.state.live_jobs["a"]
    history.then(
        events.WorkerCrashed(
            job_id="a", generation=1, node_id="node-0", rank=0, explanation="killed by signal 9", at_s=NOW_S
        )
    )
    planned(history)
    after = history.state.live_jobs["a"]
    assert (after.generation, after.gpus) == (2, before.gpus)


def test_placement_waits_until_the_allocator_knows_of_a_lost_node() -> None:
    history = pool(2, 2)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 500.0))
    planned(history)
    history.then(events.NodeLost(node_id="node-1", incarnation="first-1", reason="silent", at_s=NOW_S))
    assert history.decided(PLACEMENT) == ()


def test_gpus_of_a_profiling_run_are_not_given_away_before_it_has_left_them() -> None:
    history = pool(2)
    history.decided(ADMISSION, submit("b", job_class=JobClass.BEST_EFFORT, deadline_s=None))
    history.decided(ADMISSION, submit("a", model_name="new", deadline_s=NOW_S + 500.0))
    for level in (1, 2):
        planned(history)
        job = history.state.live_jobs["a"]
        assert len(job.gpus) == level
        history.then(
            events.ThroughputMeasured(
                profile_key="new/b64",
                num_gpus=level,
                iterations_per_s=1.0,
                job_id="a",
                generation=job.generation,
                source="profile",
                at_s=NOW_S,
            )
        )
    history.decided(ALLOCATOR)  # b may have them now
    history.decided(ADMISSION)  # a is admitted before any job is placed: the allocator does not know of it yet
    history.decided(PLACEMENT)
    holders = [gpu for job in history.state.live_jobs.values() for gpu in job.gpus]
    assert len(holders) == len(set(holders)) > 0


def gpus_of_a_job(num_gpus: int, joined: dict[str, dict[str, Any]], **config: Any) -> set[tuple[str, int]]:
    """The GPUs that a job of so many GPUs gets."""
    curve = {n: rate for n, rate in LINEAR.items() if n <= num_gpus}
    history = History().configured(curves={"linear/b64": curve}, **config)
    for node_id, said in joined.items():
        history.then(
            events.NodeJoined(node_id=node_id, incarnation="1", device="cuda", at_s=NOW_S, **{"num_gpus": 1} | said)
        )
    history.decided(ADMISSION, submit("a"))
    planned(history)
    return set(history.state.live_jobs["a"].gpus)


@pytest.mark.parametrize(
    ("racks", "config", "nodes"),
    [
        ({}, {}, {"a", "b"}),
        ({"a": "x", "b": "y", "c": "x", "d": "y"}, {}, {"a", "c"}),
        ({"a": "x", "b": "y", "c": "x", "d": "y"}, {"b": "x", "c": "y"}, {"a", "b"}),
    ],
)
def test_a_job_stays_in_a_rack_as_its_nodes_or_the_settings_define_it(
    racks: dict[str, str], config: dict[str, str], nodes: set[str]
) -> None:
    joined = {node_id: {"rack": racks.get(node_id, "")} for node_id in "abcd"}
    assert {gpu[0] for gpu in gpus_of_a_job(2, joined, racks=config)} == nodes


@pytest.mark.parametrize(
    ("said", "sockets_per_node", "gpu_indices"),
    [(1, 1, {0, 1, 2, 3}), (2, 1, {0, 1, 3, 4}), (1, 2, {0, 1, 3, 4}), (2, 6, {0, 1, 2, 3})],
)
def test_pairs_of_gpus_stay_on_a_socket_as_its_node_or_the_settings_define_it(
    said: int, sockets_per_node: int, gpu_indices: set[int]
) -> None:
    joined = {"a": {"num_gpus": 6, "sockets": said}}
    gpus = gpus_of_a_job(4, joined, sockets_per_node=sockets_per_node)
    assert {index for _, index in gpus} == gpu_indices


def test_padding_gives_its_gpus_back_as_soon_as_another_job_can_use_them() -> None:
    history = pool(1)
    history.decided(ADMISSION, submit("padding", job_class=JobClass.PADDING, deadline_s=None))
    (before,) = history.decided(ALLOCATOR)
    assert before.num_gpus_by_job == {"padding": 1}
    history.decided(ADMISSION, submit("free", job_class=JobClass.BEST_EFFORT, deadline_s=None))
    (after,) = history.decided(ALLOCATOR)
    assert after.num_gpus_by_job == {"free": 1}


def test_padding_takes_no_gpu_from_a_longer_job_that_can_use_it() -> None:
    history = pool(1)
    history.decided(
        ADMISSION,
        submit("padding", job_class=JobClass.PADDING, deadline_s=None, max_iterations=10),
        submit("free", job_class=JobClass.BEST_EFFORT, deadline_s=None, max_iterations=1_000),
    )
    planned(history)
    assert shares(history) == {"free": 1, "padding": 0}

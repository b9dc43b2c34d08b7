"""Given an allocation of GPUs of two types to one job, placement adds those of the other type to its share."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.placement.policy import POLICY
from elasticflow.shared.messages.events import AllocationDecided, PlacedJob, PlanDecided
from testbed.histories import NOW_S, History, gpus
from tests.support.two_types import two_types
from tests.support.worker_events import admitted, crashed, job, joined, lost, placed

OWN = ("node-0:0", "node-0:1")


def allocation(share: int, added: int, job_id: str = "a", **others: int) -> AllocationDecided:
    """So many V100 and P100 of job a; V100 of other jobs."""
    mix = {job_id: {"": (3,) * share, "P100": (1,) * added}} if added else {}
    return AllocationDecided(
        num_gpus_by_job={job_id: share, **others}, valid_until_s=None, virtual_nodes_by_type=mix, at_s=NOW_S
    )


def mixed(*names: str, generation: int = 2) -> PlacedJob:
    """On two V100 and on these P100."""
    return PlacedJob(
        job_id="a",
        generation=generation,
        gpus=gpus(*OWN, *names),
        virtual_nodes_by_rank=(3, 3, *(1 for _ in names)),
        num_added_gpus=len(names),
    )


def training(**config: Any) -> History:
    """Job a on two V100."""
    history = two_types(**config).then(admitted(), allocation(2, 0), placed(1, *OWN))
    return history.started("a", at_s=NOW_S + 2.0)


def test_the_share_keeps_its_gpus_and_ranks() -> None:
    history = training().then(allocation(2, 2))
    (decided,) = history.decided(POLICY, now_s=NOW_S + 5.0)
    assert decided.placements == (mixed("node-1:0", "node-1:1"),)
    assert history.decided(POLICY, now_s=NOW_S + 5.0) == ()
    a = job(history)
    assert (a.own_gpus, a.added_gpus) == (gpus(*OWN), gpus("node-1:0", "node-1:1"))


def test_added_gpus_are_on_few_nodes_and_those_that_stay_do_not_move() -> None:
    history = training(slow=1)
    history.then(joined("third", "node-2", 2, "P100"), joined("fourth", "node-3", 3, "P100"), allocation(2, 2))
    (decided,) = history.decided(POLICY, now_s=NOW_S + 5.0)
    assert decided.placements == (mixed("node-2:0", "node-2:1"),), "the smallest node that fits"
    history.started("a", at_s=NOW_S + 6.0).then(allocation(2, 5))
    (decided,) = history.decided(POLICY, now_s=NOW_S + 9.0)
    names = ("node-2:0", "node-2:1", "node-3:0", "node-3:1", "node-3:2")
    assert decided.placements == (mixed(*names, generation=3),)


@pytest.mark.parametrize(
    ("racks", "added", "expected"),
    [
        ({}, 2, ("node-1:0", "node-1:1")),
        ({"node-0": "a", "node-1": "b", "node-2": "a"}, 2, ("node-2:0", "node-2:1")),
        ({"node-0": "row/a", "node-1": "other/b", "node-2": "row/b"}, 2, ("node-2:0", "node-2:1")),
        ({"node-0": "a", "node-1": "b", "node-2": "a"}, 3, ("node-2:0", "node-2:1", "node-3:0")),
        ({"node-0": "a", "node-1": "b", "node-3": "a"}, 2, ("node-3:0", "node-1:0")),
    ],
)
def test_added_gpus_are_near_the_share_and_then_on_few_nodes(
    racks: dict[str, str], added: int, expected: tuple[str, ...]
) -> None:
    """P100: two on node-1 and on node-2, one on node-3."""
    history = training(slow=2, racks=racks)
    history.then(joined("third", "node-2", 2, "P100"), joined("fourth", "node-3", 1, "P100"), allocation(2, added))
    (decided,) = history.decided(POLICY, now_s=NOW_S + 5.0)
    assert decided.placements[0].gpus == gpus(*OWN, *expected)


def test_a_job_leaves_added_gpus_to_a_job_of_their_type_in_one_decision() -> None:
    history = training(slow=2, stop_free=True).then(allocation(2, 2))
    history.decided(POLICY, now_s=NOW_S + 5.0)
    history.started("a", at_s=NOW_S + 6.0)
    history.then(admitted("b", gpu_type="P100"))
    based_on, event = history.state.sequence, allocation(2, 0, b=1)
    history.then(PlanDecided(service="allocator", based_on=based_on, now_s=NOW_S, events=(event,)))
    (decided,) = history.decided(POLICY, now_s=NOW_S + 9.0)
    assert [(each.job_id, each.gpus) for each in decided.placements] == [
        ("a", gpus(*OWN)),
        ("b", gpus("node-1:0")),
    ]
    assert job(history).previous_generation is not None, "its workers need not stop"


def test_no_gpu_joins_two_jobs() -> None:
    history = training(slow=3).then(admitted("b"))
    mixes = {"a": {"": (3, 3), "P100": (1, 1)}, "b": {"": (3, 3), "P100": (1,)}}
    event = replace(allocation(2, 0, b=2), virtual_nodes_by_type=mixes)
    based_on = history.state.sequence
    history.then(PlanDecided(service="allocator", based_on=based_on, now_s=NOW_S, events=(event,)))
    history.decided(POLICY, now_s=NOW_S + 5.0)
    a, b = job(history), job(history, "b")
    assert (len(a.added_gpus), len(b.added_gpus)) == (2, 1)
    assert len({*a.gpus, *b.gpus}) == 7


def test_counts_that_do_not_fit_the_share_are_not_placed() -> None:
    uneven = replace(allocation(2, 2), num_gpus_by_job={"a": 1})
    history = training().then(uneven)
    (decided,) = history.decided(POLICY, now_s=NOW_S + 5.0)
    assert [(len(each.gpus), each.num_added_gpus) for each in decided.placements] == [(1, 0)]


@pytest.mark.parametrize(("rank", "left"), [(0, ("node-0:1",)), (2, OWN)])
def test_survivors_of_the_share_go_on_alone(rank: int, left: tuple[str, ...]) -> None:
    history = training(stop_free=True).then(allocation(2, 1))
    history.decided(POLICY, now_s=NOW_S + 5.0)
    history.started("a", at_s=NOW_S + 6.0).then(crashed(2, rank=rank))
    (decided,) = history.decided(POLICY, now_s=NOW_S + 7.0)
    assert decided.placements == (PlacedJob(job_id="a", generation=3, gpus=gpus(*left)),)


def test_without_a_survivor_of_the_share_the_others_keep_the_state() -> None:
    history = training(stop_free=True).then(joined("third", "node-2", 2, "V100"), allocation(2, 1))
    history.decided(POLICY, now_s=NOW_S + 5.0)
    history.started("a", at_s=NOW_S + 6.0).then(lost("node-0", "one"))
    (decided,) = history.decided(POLICY, now_s=NOW_S + 7.0)
    assert decided.placements == (PlacedJob(job_id="a", generation=3, gpus=gpus("node-1:0"), num_added_gpus=1),)
    history.started("a", at_s=NOW_S + 8.0)
    (decided,) = history.decided(POLICY, now_s=NOW_S + 9.0)
    assert decided.placements[0].gpus == gpus("node-2:0", "node-2:1", "node-1:0")
    assert job(history).previous_generation is not None

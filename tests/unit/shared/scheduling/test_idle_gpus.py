"""Given this pool, so many GPUs are idle for this reason."""

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.scheduling.allocation.allocation import IdleCause, idle_gpus
from testbed.histories import NOW_S, History, pool, spec
from tests.support.worker_events import admitted, placed, profile_requested

FLAT = {"linear/b64": {1: 1.0, 2: 2.0, 4: 2.0, 8: 1.9}}


def allocated(history: History, **num_gpus: int) -> History:
    event = events.AllocationDecided(num_gpus_by_job=num_gpus, valid_until_s=None, planned={}, at_s=NOW_S)
    return history.then(event)


def held(history: History, *gpus: str, job_id: str = "a") -> History:
    """The job has this share and is placed there."""
    return allocated(history.then(admitted(job_id)), **{job_id: len(gpus)}).then(placed(1, *gpus, job_id=job_id))


def test_without_jobs_there_is_no_demand() -> None:
    assert idle_gpus(pool().state) == {}
    assert idle_gpus(pool(4, 4, reserve_nodes=1).state) == {IdleCause.NO_DEMAND: 8}


def test_an_allocated_job_that_is_not_placed_yet() -> None:
    history = allocated(pool(4).then(admitted()), a=4)
    assert idle_gpus(history.state) == {IdleCause.BETWEEN_PLACEMENTS: 4}
    assert idle_gpus(history.then(placed(1, "node-0:0", "node-0:1", "node-0:2", "node-0:3")).state) == {}


def test_a_job_that_would_use_more_but_only_twice_as_many() -> None:
    history = held(held(pool(4), "node-0:0", "node-0:1"), "node-0:2", job_id="b")
    assert idle_gpus(history.state) == {IdleCause.FLAT_CURVE: 1}, "b could use it: the allocator decided against it"
    history = held(pool(6), *(f"node-0:{gpu}" for gpu in range(4)))
    assert idle_gpus(history.state) == {IdleCause.POWER_OF_TWO: 2}


def test_a_job_that_gains_nothing_from_more() -> None:
    history = held(pool(4, curves=FLAT), "node-0:0", "node-0:1")
    assert idle_gpus(history.state) == {IdleCause.FLAT_CURVE: 2}


@pytest.mark.parametrize(
    ("changes", "cause"), [({"max_gpus": 2}, "flat_curve"), ({"global_batch_size": 2}, "flat_curve")]
)
def test_a_job_that_may_not_use_more(changes: dict[str, int], cause: str) -> None:
    history = pool(8, curves={"linear/b2": {1: 1.0, 2: 2.0}}).then(admitted(spec=spec(**changes)))
    history = allocated(history, a=2).then(placed(1, "node-0:0", "node-0:1"))
    assert idle_gpus(history.state) == {IdleCause(cause): 6}


def test_gpus_in_reserve_that_a_job_could_use() -> None:
    history = held(pool(2, 2, reserve_nodes=1), "node-0:0", "node-0:1")
    assert idle_gpus(history.state) == {IdleCause.RESERVE: 2}
    history = held(pool(2, 2, 2, reserve_nodes=1), "node-0:0", "node-0:1", "node-1:0", "node-1:1")
    assert idle_gpus(history.state) == {IdleCause.POWER_OF_TWO: 2}


def test_a_job_of_unknown_speed_waits_for_as_many_as_it_needs() -> None:
    waiting = profile_requested()
    assert idle_gpus(pool(4).then(waiting).state) == {IdleCause.FLAT_CURVE: 4}

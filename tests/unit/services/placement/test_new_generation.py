"""A generation that placement decides divides its job's virtual nodes evenly."""

from elasticflow.services.placement.due_jobs import new_generation
from elasticflow.services.placement.policy import POLICY
from elasticflow.shared.messages.events import AllocationDecided, PlacedJob
from testbed.histories import NOW_S, gpus, pool
from tests.support.worker_events import admitted, crashed, job, placed

UNEVEN = placed(1, "node-0:0", "node-0:1", "node-0:2", virtual_nodes_by_rank=(5, 2, 1))


def test_it_is_the_next_one_with_even_counts() -> None:
    a = job(pool(4).then(admitted(), UNEVEN))
    fewer = gpus("node-0:0", "node-0:1")
    assert new_generation(a, fewer) == PlacedJob(job_id="a", generation=2, gpus=fewer, virtual_nodes_by_rank=())


def test_survivors_of_a_crash_divide_the_virtual_nodes_evenly() -> None:
    allocated = AllocationDecided(num_gpus_by_job={"a": 3}, valid_until_s=None, at_s=NOW_S)
    history = pool(4, stop_free=True).then(admitted(), allocated, UNEVEN).started("a", at_s=NOW_S + 2.0)
    (decided,) = history.then(crashed(1, rank=1)).decided(POLICY)
    assert decided.placements == (
        PlacedJob(job_id="a", generation=2, gpus=gpus("node-0:0", "node-0:2"), virtual_nodes_by_rank=()),
    )

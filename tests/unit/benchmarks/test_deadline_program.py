"""The deadline-aware policy on pools whose optimum is plain."""

import numpy as np
import pytest

from benchmarks.heterogeneous.share_programs import deadline_policy
from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.workload.workload import typed_pool
from tests.support.typed_jobs import active_job

POOL = typed_pool("1xfast,1xslow")
FAST, SLOW = (1, 0), (0, 1)
policy = deadline_policy({"fast": 5.0, "slow": 1.0})


def test_without_deadlines_each_gpu_goes_where_it_is_worth_its_price() -> None:
    (share_C,) = policy([active_job([FAST, SLOW], [4.0, 1.0])], POOL, 0.0)
    assert share_C == pytest.approx([0.0, 1.0])  # 4 / 5 of an iteration for the price, against 1


def test_a_deadline_takes_as_much_of_the_fast_gpu_as_its_pace_needs() -> None:
    job = active_job([FAST, SLOW], [4.0, 1.0], left_iterations=100.0, deadline_s=150.0)
    (share_C,) = policy([job], POOL, 110.0)  # 2.5 iterations/s
    assert share_C == pytest.approx([0.5, 0.5])


def test_where_not_all_deadlines_can_be_met_the_shortfall_is_the_least() -> None:
    jobs = [active_job([FAST], [4.0], left_iterations=100.0, deadline_s=40.0) for _ in range(2)]  # 2.5 of 4 each
    shares = policy(jobs, POOL, 0.0)
    assert sum(float(share_C[0]) for share_C in shares) == pytest.approx(1.0)
    assert max(float(share_C[0]) for share_C in shares) >= 0.5


@pytest.mark.parametrize("now_s", [16.0, 40.0, 60.0])
def test_a_deadline_that_is_past_or_out_of_reach_takes_nothing_from_others(now_s: float) -> None:
    lost = active_job([SLOW], [4.0], left_iterations=100.0, deadline_s=40.0)  # at 16 s it needs 4.2 iterations/s
    feasible = active_job([(0, 2)], [4.0], left_iterations=100.0, deadline_s=now_s + 25.0)  # both GPUs all the time
    lost_C, feasible_C = policy([lost, feasible], typed_pool("1xfast,2xslow"), now_s)
    assert np.concatenate([lost_C, feasible_C]) == pytest.approx([0.0, 1.0])


def test_a_type_without_a_price_is_named() -> None:
    with pytest.raises(BadSettings, match=r"GPU type 'K80' has no price; give one for each type of the pool 1xK80"):
        policy([active_job([(1,)], [1.0])], typed_pool("1xK80"), 0.0)

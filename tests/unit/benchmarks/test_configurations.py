import pytest

from benchmarks.heterogeneous.rounds import Configurations, configurations
from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.workload.workload import typed_pool
from tests.support.typed_jobs import table

POOL = typed_pool("2xfast,4xslow")
TABLE = table(net={"fast": {1: 4.0, 2: 8.0, 4: 16.0}, "slow": {1: 1.0, 2: 2.0, 4: 4.0}}, large={"fast": {2: 1.0}})


def as_mapping(choices: Configurations) -> dict[tuple[int, ...], float]:
    return dict(zip(map(tuple, choices.num_gpus_CI.tolist()), choices.throughput_C.tolist(), strict=True))


def test_without_mixing_a_job_holds_gpus_of_one_type_that_the_pool_has() -> None:
    assert as_mapping(configurations(TABLE, POOL, "net", (1, 2, 4), None)) == {
        (1, 0): 4.0,
        (2, 0): 8.0,
        (0, 1): 1.0,
        (0, 2): 2.0,
        (0, 4): 4.0,
    }


def test_a_mix_has_its_part_of_the_sum_and_is_left_out_where_fewer_gpus_are_as_fast() -> None:
    assert as_mapping(configurations(TABLE, POOL, "net", (2, 4), 0.8)) == {
        (2, 0): 8.0,
        (0, 2): 2.0,
        (0, 4): 4.0,
        (2, 4): pytest.approx(0.8 * 12.0),  # (2, 2) would have 0.8 * 10, which two fast GPUs have alone
    }


def test_an_equal_share_is_the_throughput_of_one_gpu_spread_over_the_pool() -> None:
    choices = configurations(TABLE, POOL, "net", (1, 2), None)
    assert choices.equal_throughput == pytest.approx((2 * 4.0 + 4 * 1.0) / 6)
    assert choices.normalized_C.max() == pytest.approx(8.0 / 2.0)
    assert configurations(TABLE, POOL, "large", (2,), None).equal_throughput == pytest.approx(2 * 0.5 / 6)


def test_a_job_that_runs_nowhere_is_rejected() -> None:
    with pytest.raises(BadSettings, match=r"model 'large' does not run on 1 or 4 GPUs of one type of the pool 2xfast"):
        configurations(TABLE, POOL, "large", (1, 4), 0.9)
    with pytest.raises(BadSettings, match=r"table.csv has no GPU type 'A100'; it has fast, slow"):
        configurations(TABLE, typed_pool("1xA100"), "net", (1,), None)

"""Curves of a configuration that may belong to another GPU type than was meant."""

import pytest

from elasticflow.client.doctor import curve_problems
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.pool import PoolState


@pytest.mark.parametrize(
    ("types", "key", "problem"),
    [
        ((), "m/b8", ""),
        ((), "m/b8@A100", ""),
        (("V100",), "m/b8", ""),
        (("V100",), "m/b8@V100", ""),
        (("V100", "A100"), "m/b8@A100", ""),
        (("V100", "A100"), "m/b8", "names no GPU type and counts for V100: name it m/b8@V100 or m/b8@A100"),
        (("V100",), "m/b8@A100", "is of no GPU type of this pool, which has V100"),
    ],
)
def test_a_doubtful_curve_is_named(types: tuple[str, ...], key: str, problem: str) -> None:
    state = PoolState(gpu_types=types, config=PoolConfig(curves={key: {1: 1.0}}))
    found = "\n".join(curve_problems(state))
    assert problem in found
    assert bool(found) == bool(problem)

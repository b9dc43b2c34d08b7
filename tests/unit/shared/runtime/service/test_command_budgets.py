"""Bytes of commands that a tenant may send in a day."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages import codec
from elasticflow.shared.messages.events import PoolConfigured
from elasticflow.shared.messages.pool_config import DAY_S, PoolConfig, TenantQuota
from elasticflow.shared.runtime.bus.streams import MAX_COMMAND_BYTES
from elasticflow.shared.runtime.service import command_queue
from elasticflow.shared.runtime.service.command_queue import LEAST_BYTES, CommandBudgets

MIB = 1 << 20


def test_a_tenant_at_its_limit_is_told_when_its_next_command_is_taken() -> None:
    budgets = CommandBudgets(lambda tenant: 2 * MIB if tenant == "loud" else 4 * MIB)
    assert budgets.use("loud", MIB - 5_000, 0.0) is None
    assert budgets.use("quiet", 2 * MIB, 0.0) is None
    why = budgets.use("loud", 10_000, 0.0)
    assert why == (
        "tenant loud has sent as many bytes of commands as it may (2,097,152 in a day, 1,048,576 of them at once); "
        "retry in 412 s, or ask the operator for a larger max_command_bytes_per_day"
    )
    assert budgets.use("loud", 10_000, 411.0) is not None
    assert budgets.use("loud", 10_000, 412.0) is None
    assert budgets.use("loud", MIB, 412.0 + DAY_S) is None, "all of it is free again"
    assert budgets.use("quiet", 2 * MIB, 0.0) is not None


def test_a_small_command_counts_as_its_answer() -> None:
    budgets = CommandBudgets(lambda _: 2 * MIB)
    assert [budgets.use("lab", 1, 0.0) for _ in range(MIB // LEAST_BYTES)] == [None] * (MIB // LEAST_BYTES)
    assert budgets.use("lab", 1, 0.0) is not None


def test_the_largest_command_fits_into_the_smallest_budget() -> None:
    for least, is_valid in ((MIB - 1, False), (MIB, True)):
        config = PoolConfig(quotas={"lab": TenantQuota(max_command_bytes_per_day=least)})
        assert (codec.validate(PoolConfigured(config=config, at_s=0.0)) == ()) == is_valid
    assert CommandBudgets(lambda _: MIB).use("lab", MAX_COMMAND_BYTES, 0.0) is None


@given(
    st.lists(st.tuples(st.floats(0.0, DAY_S), st.integers(1, MAX_COMMAND_BYTES)), min_size=20, max_size=200),
    st.floats(0.0, DAY_S),
)
def test_no_day_has_more_than_the_bytes_of_a_day(commands: list[tuple[float, int]], first_s: float) -> None:
    budgets, taken = CommandBudgets(lambda _: MIB), list[tuple[float, int]]()
    for at_s, num_bytes in sorted(commands):
        for sent_s in (at_s, at_s + DAY_S):
            taken.append((sent_s, num_bytes))
    taken = [(at_s, num_bytes) for at_s, num_bytes in sorted(taken) if budgets.use("lab", num_bytes, at_s) is None]
    assert sum(num_bytes for at_s, num_bytes in taken if first_s <= at_s < first_s + DAY_S) <= MIB


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_queue, "MAX_TENANTS", 2)
    budgets = CommandBudgets(lambda _: 2 * MIB)
    for tenant in ("a", "b", "a", "c"):
        budgets.use(tenant, MIB // 2, 0.0)
    assert budgets.use("a", MIB, 0.0) is not None, "it sent after b"
    assert budgets.use("b", MIB, 0.0) is None

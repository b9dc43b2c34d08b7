"""Bytes of commands that a tenant may send in a day."""

import pytest

from elasticflow.shared.messages.pool_config import DAY_S
from elasticflow.shared.runtime.service import command_queue
from elasticflow.shared.runtime.service.command_queue import LEAST_BYTES, CommandBudgets

MIB = 1 << 20


def test_a_tenant_at_its_limit_is_told_when_its_next_command_is_taken() -> None:
    budgets = CommandBudgets(lambda tenant: MIB if tenant == "loud" else 2 * MIB)
    assert budgets.use("loud", MIB - 5_000, 0.0) is None
    assert budgets.use("quiet", MIB, 0.0) is None
    why = budgets.use("loud", 10_000, 0.0)
    assert why == "tenant loud has sent as many bytes of commands as it may in a day (1,048,576); retry in 412 s"
    assert budgets.use("loud", 10_000, 411.0) is not None
    assert budgets.use("loud", 10_000, 412.0) is None
    assert budgets.use("loud", MIB, 412.0 + DAY_S) is None, "all of it is free again"
    assert budgets.use("quiet", MIB, 0.0) is None


def test_a_small_command_counts_as_its_answer_and_one_beyond_the_limit_is_never_taken() -> None:
    budgets = CommandBudgets(lambda _: MIB)
    assert [budgets.use("lab", 1, 0.0) for _ in range(MIB // LEAST_BYTES)] == [None] * (MIB // LEAST_BYTES)
    assert budgets.use("lab", 1, 0.0) is not None
    assert budgets.use("other", MIB + 1, 0.0) == (
        "tenant other has sent as many bytes of commands as it may in a day (1,048,576); this one alone has 1,048,577"
    )


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_queue, "MAX_TENANTS", 2)
    budgets = CommandBudgets(lambda _: MIB)
    for tenant in ("a", "b", "a", "c"):
        budgets.use(tenant, MIB // 2, 0.0)
    assert budgets.use("a", MIB, 0.0) is not None, "it sent after b"
    assert budgets.use("b", MIB, 0.0) is None

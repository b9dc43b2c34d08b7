"""Tenants on the page: the numbers of `eflow report` at every point of a ledger, and their costs."""

from dataclasses import replace

import pytest

from elasticflow.history.usage_report import UsageFold
from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.state.pool import PoolState
from elasticflow.web.pool_history import PoolHistory
from elasticflow.web.read_routes import tenant_values
from testbed.histories import NOW_S, gpus
from testbed.page_ledger import page_history, recorded
from tests.support.two_types import two_types
from tests.support.worker_events import admitted

HOUR_S = 3_600.0


def test_what_was_used_is_what_a_report_says_whenever_it_is_asked() -> None:
    history, asked_before = PoolHistory(), 0.0
    for stored, message in recorded(page_history()):
        history.fold(stored.sequence, stored.stored_at_s, message)
        now_s = stored.stored_at_s + 0.5
        told = tenant_values(history, now_s, {"": HOUR_S})
        report = UsageFold(since_s=0.0, until_s=now_s)
        for earlier, each in recorded(page_history())[: stored.sequence]:
            report.fold(earlier.sequence, min(earlier.stored_at_s, now_s), each)
        expected = [(row.tenant, row.gpu_hours, row.cost) for row in report.usage({"": HOUR_S})]
        shown = [(row["tenant"], row["gpu_hours"], row["cost"]) for row in told["rows"]]
        assert [each[0] for each in shown] == [each[0] for each in expected]
        for (_, hours, cost), (_, expected_hours, expected_cost) in zip(shown, expected, strict=True):
            assert hours == pytest.approx(expected_hours)
            assert cost == pytest.approx(expected_cost)
            assert hours >= asked_before
            asked_before = hours
    assert asked_before > 0


def of_two_types() -> PoolHistory:
    """Job a holds two V100 and one P100 from NOW_S + 2 on."""
    placed = events.PlacedJob(
        job_id="a", generation=1, gpus=gpus("node-0:0", "node-0:1", "node-1:0"), virtual_nodes_by_rank=(3, 3, 2)
    )
    made = two_types().then(
        admitted("a", gpu_seconds=HOUR_S), events.PlacementDecided(placements=(placed,), at_s=NOW_S + 2.0)
    )
    history = PoolHistory()
    for sequence, message in enumerate(made.messages, start=1):
        history.fold(sequence, NOW_S + 2.0, message)
    return history


@pytest.mark.parametrize(
    ("prices", "cost", "unpriced"),
    [
        (None, None, ""),
        ({"V100": 3.0, "P100": 1.5}, 7.5, ""),
        ({"V100": 3.0, "": 1.0}, 7.0, ""),
        ({"V100": 3.0}, None, "no price for P100"),
    ],
    ids=["none", "each type", "one and any other", "a type without"],
)
def test_each_type_has_its_price(prices: dict[str, float] | None, cost: float | None, unpriced: str) -> None:
    told = tenant_values(of_two_types(), NOW_S + 2.0 + HOUR_S, prices)
    (row,) = told["rows"]
    assert row["gpu_hours_by_type"] == {"P100": 1.0, "V100": 2.0}
    assert (row["cost"], told["unpriced"], told["has_costs"]) == (cost, unpriced, prices is not None)


def test_a_clock_that_goes_back_counts_nothing_twice() -> None:
    history = of_two_types()
    for now_s in (NOW_S + 2.0 + HOUR_S, NOW_S + 2.0, NOW_S + 2.0 + HOUR_S):
        (row,) = tenant_values(history, now_s, None)["rows"]
    assert row["gpu_hours"] == pytest.approx(3.0)


def test_a_tenant_with_a_quota_alone_has_used_nothing() -> None:
    history = of_two_types()
    config = replace(history.state.config, quotas={"other": TenantQuota(max_jobs_per_day=1)})
    history.fold(
        9,
        NOW_S + 3.0,
        events.PlanDecided(
            service="operator",
            based_on=8,
            now_s=NOW_S + 3.0,
            events=(events.PoolConfigured(config=config, at_s=NOW_S + 3.0),),
        ),
    )
    for prices, cost in ((None, None), ({"": 1.0}, 0.0)):
        (row,) = (row for row in tenant_values(history, NOW_S + 4.0, prices)["rows"] if row["tenant"] == "other")
        assert (row["gpu_hours"], row["cost"], row["max_jobs_per_day"]) == (0.0, cost, 1)


def test_a_pool_without_jobs_has_no_tenants() -> None:
    history = PoolHistory()
    assert history.state == PoolState()
    assert tenant_values(history, NOW_S, {"": 1.0})["rows"] == []

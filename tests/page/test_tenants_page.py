"""The page of the tenants: quota, GPU-hours and cost, and a type without a price."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import GpuHourBudget, TenantQuota
from testbed.histories import History
from testbed.page_ledger import NOW_S, page_history, write_export
from testbed.served_page import served_page
from tests.page.axe import findings
from tests.page.conftest import opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The recorded ledger, and a quota of its tenant."""
    history = page_history()
    quota = TenantQuota(
        max_gpu_hours_per_day=2.0, max_jobs_per_day=9, budgets=(GpuHourBudget(max_gpu_hours=5.0, window_s=172_800.0),)
    )
    config = replace(history.state.config, quotas={"lab": quota})
    write_export(decided(history, events.PoolConfigured(config=config, at_s=NOW_S + 59.0)), tmp_path / "run.ledger")
    return tmp_path / "run.ledger"


def decided(history: History, event: Any) -> History:
    based_on = history.state.sequence
    return history.then(events.PlanDecided(service="operator", based_on=based_on, now_s=event.at_s, events=(event,)))


@pytest.mark.parametrize(
    ("price", "cost", "problem"),
    [("36", "$4.40", ""), ("V100=2", "\N{EN DASH}", "no price for GPUs without a type"), ("", "", "")],
    ids=["priced", "another type", "no price"],
)
def test_a_tenant_has_its_quota_its_gpu_hours_and_their_cost(
    browser: Any, file: Path, price: str, cost: str, problem: str
) -> None:
    arguments = ["--price", price] if price else []
    with served_page(str(file), *arguments) as link, opened(browser, link) as viewer:
        viewer.go("tenants")
        viewer.page.wait_for_selector("tbody tr")
        titles = viewer.page.locator("thead th").all_inner_texts()
        cells = viewer.page.locator("tbody tr > *").all_inner_texts()
        row = dict(zip(titles, cells, strict=True))
        assert (row["Tenant"], row["Used GPU-hours"], row.get("Cost", "")) == ("lab", "0.122", cost)
        assert row["Quota"].strip() == "0.122 of 5 GPU-hours in 2d 00h"
        assert viewer.page.get_by_label("Quota of lab").get_attribute("max") == "2"
        assert (viewer.page.locator(".problem").all_inner_texts() or [""])[0].startswith(problem)
        for theme, width in (("light", 1280), ("dark", 390)):
            viewer.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            viewer.page.set_viewport_size({"width": width, "height": 844})
            assert findings(viewer.page) == []
            assert viewer.page.evaluate("document.documentElement.scrollWidth") <= width
        assert viewer.problems == []

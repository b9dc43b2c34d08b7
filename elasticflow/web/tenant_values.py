"""What each tenant was promised, has used since the ledger began, and what that costs: as `eflow report` counts it."""

from typing import Any

from elasticflow.history.usage_report import NoPrice, Prices, TenantUsage, cost_of
from elasticflow.web.page_values import tenant_rows
from elasticflow.web.pool_history import PoolHistory


def tenant_values(history: PoolHistory, now_s: float, prices: Prices | None) -> dict[str, Any]:
    """since_s: of the first message. has_costs: whether there are prices. unpriced: used without a price, in words."""
    used = {usage.tenant: usage for usage in history.usage.usage(now_s=now_s)}
    has_types = len(history.state.gpu_types) > 1
    none_used = {"gpu_hours": 0.0, "gpu_hours_by_type": {}, "cost": None if prices is None else 0.0}
    rows = [
        row | (_used(used[row["tenant"]], prices, has_types) if row["tenant"] in used else none_used)
        for row in tenant_rows(history.state, now_s, more=used)
    ]
    unpriced = {row.pop("unpriced", "") for row in rows} - {""}
    return {
        "since_s": history.first_at_s,
        "has_costs": prices is not None,
        "unpriced": "; ".join(sorted(unpriced)),
        "rows": rows,
    }


def _used(usage: TenantUsage, prices: Prices | None, has_types: bool) -> dict[str, Any]:
    """cost: None without the price of a type that it used; unpriced: which."""
    by_type = dict(usage.gpu_hours_by_type) if has_types else {}
    shown = {"gpu_hours": usage.gpu_hours, "gpu_hours_by_type": by_type, "cost": None}
    if prices is None:
        return shown
    try:
        return shown | {"cost": cost_of(usage.gpu_hours_by_type, prices)}
    except NoPrice as error:
        return shown | {"unpriced": str(error)}

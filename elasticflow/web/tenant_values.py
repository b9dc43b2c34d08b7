"""What each tenant was promised, has used since the ledger began, and what that costs: as `eflow report` counts it."""

from typing import Any

from elasticflow.history.usage_report import NoPrice, Prices, cost_of
from elasticflow.web.page_values import tenant_rows
from elasticflow.web.pool_history import PoolHistory


def tenant_values(history: PoolHistory, now_s: float, prices: Prices | None) -> dict[str, Any]:
    """since_s: of the first message. has_costs: whether there are prices. unpriced: used without a price, in words."""
    used = {usage.tenant: usage for usage in history.usage.usage(now_s=now_s)}
    has_types = len(history.state.gpu_types) > 1
    unpriced = set[str]()
    rows = tenant_rows(history.state, now_s, more=used)
    for row in rows:
        usage = used.get(row["tenant"])
        hours = dict(usage.gpu_hours_by_type) if usage else {}
        row |= {"gpu_hours": sum(hours.values()), "gpu_hours_by_type": hours if has_types else {}, "cost": None}
        try:
            row["cost"] = None if prices is None else cost_of(hours, prices)
        except NoPrice as error:
            unpriced.add(str(error))
    return {
        "since_s": history.first_at_s,
        "has_costs": prices is not None,
        "unpriced": "; ".join(sorted(unpriced)),
        "rows": rows,
    }

"""What each tenant was promised, for its quota, and what all tenants asked for, for the price."""

from collections.abc import Mapping

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.state.demand import Demand
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.usage import Usage

MAX_USAGES = 1_440  # entries of one tenant within its longest window; one more may exist


def with_usage(state: PoolState, tenant: str, newest: Usage) -> PoolState:
    """Add what a promise uses of the tenant's quota."""
    usage = _added(state.usage.get(tenant, ()), newest, state.config.quota(tenant).longest_window_s)
    return fast_replace(state, usage=state.usage.set(tenant, usage))


def _added(usage: tuple[Usage, ...], newest: Usage, window_s: float) -> tuple[Usage, ...]:
    """With one entry more, and without those that are older than a window.

    Usage within one interval shares an entry with the time of the last one. The interval is a minute, or longer in
    proportion if the window exceeds a day. So at most 1,441 entries exist.
    """
    interval_s = window_s / MAX_USAGES
    num_old = next((n for n, used in enumerate(usage) if used.at_s > newest.at_s - window_s), len(usage))
    if usage and newest.at_s // interval_s <= usage[-1].at_s // interval_s:
        last = usage[-1]
        newest = Usage(
            at_s=max(last.at_s, newest.at_s),
            gpu_seconds=last.gpu_seconds + newest.gpu_seconds,
            num_jobs=last.num_jobs + newest.num_jobs,
            on_other_types=_sum(last.on_other_types, newest.on_other_types),
        )
        usage = usage[:-1]
    return (*usage[num_old:], newest)


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {each: one.get(each, 0.0) + other.get(each, 0.0) for each in sorted({*one, *other})}


def with_demand(state: PoolState, event: events.JobAdmitted | events.JobRejected) -> PoolState:
    if event.deadline_s is None:
        return state
    window_s = max(event.deadline_s - state.config.deadline_slack_s - event.at_s, 0.0)
    least = {event.gpu_type: event.least_gpu_seconds}
    if isinstance(event, events.JobRejected):
        least = {**event.least_elsewhere, **least}
    for gpu_type, least_gpu_seconds in least.items():
        if least_gpu_seconds:
            state = _with_demand_on(state, gpu_type, event.at_s, least_gpu_seconds, window_s)
    return state


def _with_demand_on(state: PoolState, gpu_type: str, at_s: float, gpu_seconds: float, window_s: float) -> PoolState:
    if not gpu_type:
        return fast_replace(state, demand=state.demand.added(at_s, gpu_seconds, window_s))
    of_type = state.demand_by_type.get(gpu_type, Demand()).added(at_s, gpu_seconds, window_s)
    return fast_replace(state, demand_by_type=state.demand_by_type.set(gpu_type, of_type))


def with_rejected_demand(state: PoolState, event: events.JobRejected) -> PoolState:
    """Add to what a tenant with a quota asked for without a promise: it bounds the demand that counts."""
    quota = state.config.quota(event.tenant)
    if not event.least_gpu_seconds or quota == TenantQuota():
        return state
    newest = Usage(at_s=event.at_s, gpu_seconds=event.least_gpu_seconds)
    before = state.rejected_demand.get(event.tenant, ())
    after = _added(before, newest, quota.longest_window_s)
    return fast_replace(state, rejected_demand=state.rejected_demand.set(event.tenant, after))

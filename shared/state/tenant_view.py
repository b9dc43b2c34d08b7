"""What a tenant sees of a pool: its own jobs, and the nodes and settings that concern all tenants. Pure.

Both parts are lists of what is seen: a new field of the state stays unseen until it is named here (docs/adr/0071).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from elasticflow.shared.frozen_values import memoize_last
from elasticflow.shared.messages.gpu_limits import GpuLimits
from elasticflow.shared.messages.job_spec import SHARED
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.fold.owned_profiles import curves_by_owner
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.load import Load
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import NodeState, PoolState, QuoteReservation

Value = TypeVar("Value")
EventOfAJob = TypeVar("EventOfAJob")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPart:
    """What all tenants see: the nodes without what ran on them, the settings without those of single tenants."""

    config: PoolConfig
    configured: bool
    nodes: Mapping[str, NodeState]
    gpu_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPart:
    """What one tenant sees besides. Fields: as in `PoolState`, of this tenant only.

    curves: also those that tenants share, and those that belong to no tenant.
    num_left_out: live jobs that one message has no place for; the oldest.
    """

    live_jobs: Mapping[str, Job] = field(default_factory=dict[str, Job])
    ended_jobs: Mapping[str, Job] = field(default_factory=dict[str, Job])
    loads: Mapping[str, Load] = field(default_factory=dict[str, Load])
    quote_reservations: Mapping[str, QuoteReservation] = field(default_factory=dict[str, QuoteReservation])
    gpu_limits: Mapping[str, GpuLimits] = field(default_factory=dict[str, GpuLimits])
    curves: Mapping[str, MeasuredCurve] = field(default_factory=dict[str, MeasuredCurve])
    profile_owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    num_gpus_by_job: Mapping[str, int] = field(default_factory=dict[str, int])
    virtual_nodes_by_type: Mapping[str, Mapping[str, tuple[int, ...]]] = field(
        default_factory=dict[str, Mapping[str, tuple[int, ...]]]
    )
    num_left_out: int = 0


def pool_part(state: PoolState) -> PoolPart:
    return PoolPart(
        config=replace(state.config, quotas={}, padding_weights={}, curves={}),
        configured=state.configured,
        nodes=_without_jobs(state.nodes),
        gpu_types=state.gpu_types,
    )


@memoize_last
def _without_jobs(nodes: Mapping[str, NodeState]) -> Mapping[str, NodeState]:
    """Reports on slow GPUs name the jobs that ran there."""
    return {
        name: replace(node, incarnation="", slow_gpus=(), earlier_incarnations=())
        for name, node in sorted(nodes.items())
    }


def tenant_parts(state: PoolState) -> dict[str, TenantPart]:
    """By tenant; of each that has a job, a load or a reserved quote."""
    live, ended = _live_by_tenant(state.live_jobs), _ended_by_tenant(state.ended_jobs)
    loads, quotes = _by_tenant(state.loads), _by_tenant(state.quote_reservations)
    return {
        tenant: _part(state, tenant, live.get(tenant, {}), ended.get(tenant, {}), loads, quotes)
        for tenant in sorted({*live, *ended, *loads, *quotes})
    }


def _part(
    state: PoolState,
    tenant: str,
    live: Mapping[str, Job],
    ended: Mapping[str, Job],
    loads: Mapping[str, Mapping[str, Load]],
    quotes: Mapping[str, Mapping[str, QuoteReservation]],
) -> TenantPart:
    owners = {
        family: seen
        for family, owners in sorted(state.profile_owners.items())
        if (seen := tuple(owner for owner in owners if owner in (tenant, SHARED)))
    }
    return TenantPart(
        live_jobs=live,
        ended_jobs=ended,
        loads={name: replace(load, counted=()) for name, load in loads.get(tenant, {}).items()},
        quote_reservations=quotes.get(tenant, {}),
        gpu_limits=_of_jobs(state.gpu_limits, live),
        curves=_curves(state, tenant),
        profile_owners=owners,
        num_gpus_by_job=_of_jobs(state.num_gpus_by_job, live),
        virtual_nodes_by_type=_of_jobs(state.virtual_nodes_by_type, live),
    )


def _curves(state: PoolState, tenant: str) -> dict[str, MeasuredCurve]:
    by_owner = curves_by_owner(state.curves, state.profile_owners)
    others = {*by_owner, *state.config.quotas, *state.config.padding_weights} - {"", SHARED, tenant}
    of_none = {  # an operator may configure a curve for a tenant before its first job
        key: curve for key, curve in by_owner.get("", {}).items() if key.partition("/")[0] not in others
    }
    return dict(sorted({**of_none, **by_owner.get(SHARED, {}), **by_owner.get(tenant, {})}.items()))


def _of_jobs(values: Mapping[str, Value], jobs: Mapping[str, Job]) -> dict[str, Value]:
    return {job_id: values[job_id] for job_id in jobs if job_id in values}


def _by_tenant(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in sorted(values.items()):
        found.setdefault(value.tenant, {})[name] = value
    return found


_live_by_tenant, _ended_by_tenant = memoize_last(_by_tenant), memoize_last(_by_tenant)


def seen_state(pool: PoolPart, tenant: TenantPart, sequence: int) -> PoolState:
    """The pool as its tenant sees it: a state without what other tenants do."""
    return PoolState(
        sequence=sequence,
        config=pool.config,
        configured=pool.configured,
        nodes=Map(pool.nodes),
        gpu_types=pool.gpu_types,
        live_jobs=Map(tenant.live_jobs),
        ended_jobs=Map(tenant.ended_jobs),
        loads=Map(tenant.loads),
        quote_reservations=Map(tenant.quote_reservations),
        gpu_limits=Map(tenant.gpu_limits),
        curves=Map(tenant.curves),
        profile_owners=Map(tenant.profile_owners),
        num_gpus_by_job=tenant.num_gpus_by_job,
        virtual_nodes_by_type=tenant.virtual_nodes_by_type,
    )


def without_other_jobs(state: PoolState, tenant: str, event: EventOfAJob) -> EventOfAJob:
    """An event or reply as the tenant may see it: jobs of others that were replanned for it are left out."""
    replanned = cast("Mapping[str, object] | None", getattr(event, "replanned", None))
    if not replanned:
        return event
    jobs = ((job_id, state.job(job_id)) for job_id in replanned)
    own = {job_id: replanned[job_id] for job_id, job in jobs if job is not None and job.tenant == tenant}
    return replace(cast(Any, event), replanned=own)

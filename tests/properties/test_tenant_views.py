"""A tenant sees of each of its jobs what an operator sees, and nothing of others, after any history."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from hypothesis import given

from elasticflow.history.pool_views import job_views
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.tenant_view import (
    PoolPart,
    StoredView,
    TenantBodies,
    TenantPart,
    body_of_pool,
    pool_part,
    seen_state,
    tenant_parts,
)
from tests.support.history_strategies import histories

TENANTS = {"a": "alice", "b": "bob", "load": "alice", "another-load": "bob"}
NOW_S = 50.0


def owned(value: Any, tenant: str = "") -> Any:
    """The same message, with the tenant of the job or load that it is about."""
    if isinstance(value, PlanDecided):
        return replace(value, events=tuple(map(owned, value.events)))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    tenant = TENANTS.get(getattr(value, "job_id", "") or getattr(value, "load_id", ""), tenant)
    changes: dict[str, Any] = {}
    for each in fields(value):
        old = getattr(value, each.name)
        if each.name == "tenant" and tenant:
            changes["tenant"] = tenant
        elif isinstance(old, JobSpec):
            changes[each.name] = replace(old, owner=tenant)
    return replace(value, **changes)


def folded(messages: tuple[Any, ...]) -> PoolState:
    state = PoolState()
    for sequence, message in enumerate(map(owned, messages), 1):
        state = ledger_fold.evolve(state, message, sequence)
    return state


def through_the_wire(state: PoolState) -> dict[str, PoolState]:
    """What each tenant reads."""
    bodies, pool = TenantBodies(), StoredView(sequence=state.sequence, body=body_of_pool(pool_part(state)))
    read_pool = StoredView.decode(pool.encode()).part(PoolPart)
    read: dict[str, PoolState] = {}
    for tenant, part in tenant_parts(state).items():
        stored = StoredView.decode(StoredView(sequence=state.sequence, body=bodies.body(part)).encode())
        read[tenant] = seen_state(read_pool, stored.part(TenantPart), stored.sequence)
    return read


@given(histories())
def test_each_tenant_sees_its_own_rows_of_the_table(messages: tuple[Any, ...]) -> None:
    state = folded(messages)
    rows = job_views(state, NOW_S, ended=True)
    read = through_the_wire(state)
    assert {row.tenant for row in rows} <= read.keys()
    for tenant, seen in read.items():
        assert job_views(seen, NOW_S, ended=True) == tuple(row for row in rows if row.tenant == tenant)
        assert seen.num_gpus == state.num_gpus


@given(histories())
def test_a_tenant_sees_nothing_that_belongs_to_another(messages: tuple[Any, ...]) -> None:
    for tenant, seen in through_the_wire(folded(messages)).items():
        owners = [*seen.live_jobs.values(), *seen.ended_jobs.values(), *seen.loads.values()]
        assert {each.tenant for each in (*owners, *seen.quote_reservations.values())} <= {tenant}
        assert {owner for owners in seen.profile_owners.values() for owner in owners} <= {tenant, "*"}
        others = {job_id for job_id, owner in TENANTS.items() if owner != tenant}
        assert not others & {*seen.gpu_limits, *seen.num_gpus_by_job, *seen.virtual_nodes_by_type}
        assert not any(node.slow_gpus or node.incarnation for node in seen.nodes.values())

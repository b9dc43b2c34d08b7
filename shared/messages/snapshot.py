"""A folded pool as bytes: a cache that anyone may delete, written so that a restart need not fold from 1.

A snapshot names the fold and the shape of the state it holds; after either changed it is not read any more.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from immutables import Map
from pydantic import TypeAdapter, ValidationError

from shared.messages.cluster import GpuHourBudget, PoolConfig, TenantQuota
from shared.messages.codec import Undecodable
from shared.messages.demand import Demand
from shared.messages.gpu_range import GpuBound
from shared.messages.job import JobSpec, MetricCondition
from shared.messages.job_state import Job, Predecessor, StoppingWorkers
from shared.messages.lifecycle import FOLD
from shared.messages.node_state import NodeState
from shared.messages.pool_state import HeldQuote, MeasuredCurve, PoolState, Usage
from shared.messages.speed import SpeedSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flat:
    """PoolState with plain dicts for its persistent maps."""

    shape: str
    sequence: int
    plan_sequence: int
    config: PoolConfig
    configured: bool
    nodes: dict[str, NodeState]
    live_jobs: dict[str, Job]
    ended_jobs: dict[str, Job]
    num_forgotten: int
    held_quotes: dict[str, HeldQuote]
    bounds: dict[str, GpuBound]
    curves: dict[str, MeasuredCurve]
    micro_batch_sizes: dict[str, int]
    usage: dict[str, tuple[Usage, ...]]
    demand: Demand
    num_gpus_by_job: dict[str, int]
    start_cost_s: float
    scheduling_event_sequence: int
    allocation_based_on: int
    allocation_valid_until_s: float | None


_MAPS = ("nodes", "live_jobs", "ended_jobs", "held_quotes", "bounds", "curves", "micro_batch_sizes", "usage")
_STATE = (
    *(PoolState, Job, HeldQuote, GpuBound, NodeState, MeasuredCurve, Usage, Demand, PoolConfig),
    *(TenantQuota, GpuHourBudget, StoppingWorkers, Predecessor, JobSpec, MetricCondition, SpeedSeen),
)
_FIELDS = [(t.__name__, [(f.name, str(f.type)) for f in fields(t)]) for t in _STATE]
SHAPE = hashlib.sha256(repr((FOLD, _FIELDS)).encode()).hexdigest()[:16]


@cache
def _adapter() -> TypeAdapter[_Flat]:
    """Made when it is first asked for: most commands read no snapshot."""
    return TypeAdapter(_Flat)


def dump(state: PoolState) -> bytes:
    """The state as msgpack."""
    flat = {f.name: getattr(state, f.name) for f in fields(state)}
    for name in _MAPS:
        flat[name] = dict(flat[name])
    plain = _adapter().dump_python(_Flat(shape=SHAPE, **flat), warnings=False)
    return cast(bytes, msgpack.packb(plain))  # pyright: ignore[reportUnknownMemberType]


def load(data: bytes) -> PoolState:
    """The state in these bytes. Raises Undecodable for another shape or damaged bytes."""
    try:
        plain = msgpack.unpackb(data, strict_map_key=False)  # pyright: ignore
        if not isinstance(plain, dict) or cast(Mapping[str, Any], plain).get("shape") != SHAPE:
            raise Undecodable("a snapshot of another shape")
        flat = _adapter().validate_python(plain)
    except (ValueError, TypeError, msgpack.UnpackException, ValidationError) as error:
        raise Undecodable(f"damaged snapshot: {type(error).__name__}") from error
    values: dict[str, Any] = {f.name: getattr(flat, f.name) for f in fields(PoolState)}
    for name in _MAPS:
        values[name] = Map(values[name])
    return PoolState(**values)

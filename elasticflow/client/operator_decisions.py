"""Decisions of a pool's operator, appended to the plan: its configuration, and the announced end of a node."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from elasticflow.client.ledger import LedgerView
from elasticflow.errors import NotThere, did_you_mean
from elasticflow.shared.errors import BadSettings, Reload
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.codec import READER_VERSION
from elasticflow.shared.messages.events import NodeEndAnnounced, PlanDecided, PoolConfigured
from elasticflow.shared.messages.pool_config import GpuHourBudget, PoolConfig, TenantQuota
from elasticflow.shared.messages.syntax_problems import parsed_json, parsed_toml
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.streams import StreamLimits
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from elasticflow.shared.runtime.service.ledger_encoding import decision_id


async def append_decision(bus: NatsBus, pool: str, decision: PlanDecided, *, plan_end: int, sender: str) -> bool:
    """Whether it was appended; False if another decision won. plan_end: the last sequence of the plan before the state
    was read, on which the decision rests."""
    message_id = decision_id(decision, sender)
    try:
        await bus.append(
            subjects.plan(pool),
            codec.encode(decision, id=message_id, recorded_at_s=decision.now_s),
            message_id=message_id,
            expected_last_subject_sequence=plan_end,
        )
    except Reload:
        return False
    return True


# --- configure pool ------------------------------------------------------------------------------------
# A pool's configuration: read from the operator's file, and appended to the plan as a decision.

_CONNECT_WAIT_S = 5.0
# The default of a new pool. In a ledger without this field the field is False.
_NEW = PoolConfig(stop_free=True)
_SETTINGS = {each.name for each in fields(PoolConfig)}
_NAMES = {each.name for kind in (PoolConfig, TenantQuota, GpuHourBudget, FailureTimeouts) for each in fields(kind)}
_AS_WANTED: Mapping[str, Any] = MappingProxyType({})


def read_config(file: Path) -> PoolConfig:
    """Raises BadSettings, naming each setting that is unknown or wrong."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadSettings((f"{file}: not a text in UTF-8",)) from None
    try:
        given = parsed_json(text) if file.suffix == ".json" else parsed_toml(text)
    except ValueError as error:
        raise BadSettings((f"{file}: {error}",)) from None
    if not isinstance(given, dict):
        raise BadSettings((f"{file}: a pool's configuration is a map of settings",))
    if misplaced := tuple(_misplaced(cast("dict[str, Any]", given))):
        where = "to the top level" if file.suffix == ".json" else "above the first [table]"
        raise BadSettings(tuple(f"{file}: {key} is a setting of the pool: move it {where}" for key in misplaced))
    try:
        config = TypeAdapter(PoolConfig).validate_python({"stop_free": _NEW.stop_free} | given, extra="forbid")
    except ValidationError as error:
        raise BadSettings(tuple(f"{file}: {_problem_in(details)}" for details in error.errors())) from None
    if problems := config.timeouts.problems():
        raise BadSettings(tuple(f"{file}: {problem}" for problem in problems))
    return config


def _misplaced(table: Mapping[str, Any], *tables: str) -> Iterator[str]:
    """The settings of the pool that a table of tenants, nodes or GPU types would take as names of these.

    A line that is appended to a TOML file belongs to its last table. A table is no such line: a tenant may be called
    `curves`.
    """
    for key, value in table.items():
        inner = cast("list[Any]", value if isinstance(value, list) else [value])
        inner_tables = [cast("Mapping[str, Any]", each) for each in inner if isinstance(each, Mapping)]
        for each in inner_tables:
            yield from _misplaced(each, *tables, key)
        if tables and key in _SETTINGS and not inner_tables:
            yield ".".join((*tables, key))


def _problem_in(details: ErrorDetails) -> str:
    if details["type"] == "unexpected_keyword_argument":
        named = ".".join(map(str, details["loc"]))
        return f"{named} is not a setting of a pool{did_you_mean(str(details['loc'][-1]), _NAMES)}"
    return codec.problem_in(details)


async def configure(
    url: str,
    pool: str,
    wanted: PoolConfig | None,
    clock: Clock,
    *,
    changes: Mapping[str, Any] = _AS_WANTED,
    stream_replicas: int = 1,
) -> PoolConfig:
    """Create the pool and configure it by compare-and-set, as every decision. Returns the resulting configuration.

    wanted: None keeps the configuration of a configured pool and gives a new one the defaults. changes: single
    settings that override it. Raises BadSettings where the timeouts detect false losses, or no losses, where no service
    of this version could read the pool, and where the ledger ends before `skip_plan_up_to`.
    """
    if wanted is not None:
        _check(wanted)
    limits = StreamLimits(replicas=stream_replicas)
    access = NatsAccess.from_environment(os.environ)
    bus = await connect_nats(url, name="eflow-up", wait_s=_CONNECT_WAIT_S, limits=limits, access=access)
    try:
        await bus.ensure_pool(pool)
        while (config := await _configured(bus, pool, wanted, changes, clock)) is None:
            pass
        return config
    finally:
        await bus.close()


def _check(config: PoolConfig) -> None:
    """Raises BadSettings."""
    problems = config.timeouts.problems()
    if config.minimum_reader_version > READER_VERSION:
        version = f"minimum_reader_version: must be at most {READER_VERSION}, the version that this eflow reads"
        problems = (*problems, version)
    if problems:
        raise BadSettings(problems)


async def _configured(
    bus: NatsBus, pool: str, wanted: PoolConfig | None, changes: Mapping[str, Any], clock: Clock
) -> PoolConfig | None:
    """The pool's resulting configuration; None if another decision won the compare-and-set."""
    plan_end = await bus.last_subject_sequence(subjects.plan(pool))
    state = await LedgerView(bus, pool).state()
    wanted = replace(wanted or (state.config if state.configured else _NEW), **changes)
    if state.configured and state.config == wanted:
        return wanted
    _check(wanted)
    if wanted.skip_plan_up_to > state.sequence:  # it would also skip messages that come later
        raise BadSettings((f"skip_plan_up_to: must be at most {state.sequence}, the end of the ledger",))
    now_s = clock.now_s()
    configured = PoolConfigured(config=wanted, at_s=now_s)
    decision = PlanDecided(service="operator", based_on=state.sequence, now_s=now_s, events=(configured,))
    has_won = await append_decision(bus, pool, decision, plan_end=plan_end, sender="eflow-up")
    return wanted if has_won else None


# --- The end of a node, announced by the operator: as a decision ---------------------------------------

NOW = -1.0  # as a time: as soon as its jobs can have moved


async def announce_node_end(url: str, pool: str, node_id: str, until_s: float | None, clock: Clock) -> NodeEndAnnounced:
    """Announce or move the end of a node that is there. until_s: None takes an announcement back; `NOW`: at once.

    Raises NotThere if no such node is there.
    """
    access = NatsAccess.from_environment(os.environ)
    bus = await connect_nats(url, name="eflow-drain", wait_s=_CONNECT_WAIT_S, access=access)
    try:
        while (announced := await _announced(bus, pool, node_id, until_s, clock)) is None:
            pass
        return announced
    finally:
        await bus.close()


async def _announced(
    bus: NatsBus, pool: str, node_id: str, until_s: float | None, clock: Clock
) -> NodeEndAnnounced | None:
    """What was announced; None if another decision won the compare-and-set."""
    plan_end = await bus.last_subject_sequence(subjects.plan(pool))
    state = await LedgerView(bus, pool).state()
    node = state.nodes.get(node_id)
    if node is None or not node.alive:
        there = (other for other, each in state.nodes.items() if each.alive)
        meant = did_you_mean(node_id, there) or ";"
        raise NotThere("unknown_node", f"no node {node_id!r} is in pool {pool} now{meant} `eflow nodes` lists them")
    now_s = clock.now_s()
    announced = NodeEndAnnounced(
        node_id=node_id,
        incarnation=node.incarnation,
        until_s=now_s + state.config.leave_s if until_s == NOW else until_s,
        at_s=now_s,
    )
    decision = PlanDecided(service="operator", based_on=state.sequence, now_s=now_s, events=(announced,))
    has_won = await append_decision(bus, pool, decision, plan_end=plan_end, sender="eflow-drain")
    return announced if has_won else None

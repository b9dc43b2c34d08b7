"""A pool's configuration: read from the operator's file, decided upon, on the plan as all other decisions."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from elasticflow.ledger_view import LedgerView
from shared.errors import BadSettings, Reload
from shared.messages import codec, subjects
from shared.messages.cluster import PoolConfig
from shared.messages.events import PlanDecided, PoolConfigured
from shared.runtime.clock import Clock
from shared.runtime.nats_bus import NatsBus, connect_nats
from shared.runtime.outbox import decision_id
from shared.runtime.streams import StreamLimits

_CONNECT_WAIT_S = 5.0
# Of a new pool, unless its operator says otherwise; a ledger that does not speak of it means no.
_NEW = PoolConfig(stop_free=True)
_AS_WANTED: Mapping[str, Any] = MappingProxyType({})


def read_config(file: Path) -> PoolConfig:
    """Raises BadSettings, naming each setting that is unknown or wrong."""
    try:
        text = file.read_text()
        fields = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (ValueError, tomllib.TOMLDecodeError) as error:
        raise BadSettings((f"{file}: {error}",)) from None
    if not isinstance(fields, dict):
        raise BadSettings((f"{file}: a pool's configuration is a map of settings",))
    try:
        config = TypeAdapter(PoolConfig).validate_python(
            {"stop_free": _NEW.stop_free} | fields, extra="forbid"
        )
    except ValidationError as error:
        raise BadSettings(tuple(f"{file}: {_problem_in(details)}" for details in error.errors())) from None
    if problems := config.detection.problems():
        raise BadSettings(tuple(f"{file}: {problem}" for problem in problems))
    return config


def _problem_in(details: ErrorDetails) -> str:
    if details["type"] == "unexpected_keyword_argument":
        return f"{'.'.join(map(str, details['loc']))} is no setting of a pool"
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
    """Make the pool, and make its configuration the wanted one, by compare-and-set as every decision; what it is then.

    wanted: None leaves a configured pool as it is, and gives a new one the defaults. changes: single settings that
    go before these. Raises BadSettings where losses would be imagined, or never be known.
    """
    if wanted is not None and (problems := wanted.detection.problems()):
        raise BadSettings(problems)
    limits = StreamLimits(replicas=stream_replicas)
    bus = await connect_nats(url, name="eflow-up", wait_s=_CONNECT_WAIT_S, limits=limits)
    try:
        await bus.ensure_pool(pool)
        while (config := await _configured(bus, pool, wanted, changes, clock)) is None:
            pass
        return config
    finally:
        await bus.close()


async def _configured(
    bus: NatsBus, pool: str, wanted: PoolConfig | None, changes: Mapping[str, Any], clock: Clock
) -> PoolConfig | None:
    """What the pool's configuration is now; None if a rival decision came between."""
    plan_end = await bus.last_subject_sequence(subjects.plan(pool))
    state = await LedgerView(bus, pool).state()
    wanted = replace(wanted or (state.config if state.configured else _NEW), **changes)
    if state.configured and state.config == wanted:
        return wanted
    now_s = clock.now_s()
    decision = PlanDecided(
        service="operator",
        based_on=state.sequence,
        now_s=now_s,
        events=(PoolConfigured(config=wanted, at_s=now_s),),
    )
    message_id = decision_id(decision, "eflow-up")
    try:
        await bus.append(
            subjects.plan(pool),
            codec.encode(decision, id=message_id, recorded_at_s=now_s),
            message_id=message_id,
            expected_last_subject_sequence=plan_end,
        )
    except Reload:
        return None
    return wanted

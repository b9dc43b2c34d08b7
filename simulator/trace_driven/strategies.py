"""What `--policy` may name: the services' own policies under each of their settings, and the baselines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.errors import BadSettings
from shared.messages.policy import Policy
from simulator.policies import PLANNERS
from simulator.trace_driven.pool import AdmissionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Who decides, in the order in which they are asked. admission: the pool's setting."""

    name: str
    policies: Mapping[str, Policy[Any]] = field(default_factory=lambda: PLANNERS)
    admission: AdmissionPolicy = "selective"


_OURS = (
    Strategy(name="selective", admission="selective"),
    Strategy(name="first-come", admission="first-come"),
)


def strategy_names() -> tuple[str, ...]:
    return tuple(known.name for known in _OURS)


def strategy(name: str) -> Strategy:
    for known in _OURS:
        if known.name == name:
            return known
    raise BadSettings((f"policy {name!r} must be one of {', '.join(strategy_names())}",))

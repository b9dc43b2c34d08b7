"""Ctrl-C at a chosen moment of a simulation."""

import signal
from collections.abc import Mapping
from dataclasses import replace

import pytest

from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import PlanEvent
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.baseline import UserRequest
from elasticflow.simulator.baselines.policy_catalogue import NamedPolicies, policies_named
from elasticflow.simulator.trace import simulated_run


def interrupt_at(num_decisions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the allocator's decision of this number, counted over all simulations."""
    count = 0

    def interrupted(name: str, requests: Mapping[str, UserRequest]) -> NamedPolicies:
        chosen = policies_named(name, requests)
        allocator = chosen.policies["allocator"]

        def decide(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[PlanEvent, ...]:
            nonlocal count
            count += 1
            if count == num_decisions:
                signal.raise_signal(signal.SIGINT)
            return allocator.decide(state, commands, now_s)

        return replace(chosen, policies={**chosen.policies, "allocator": replace(allocator, decide=decide)})

    monkeypatch.setattr(simulated_run, "policies_named", interrupted)

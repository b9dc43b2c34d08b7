"""Ctrl-C at a chosen moment of a simulation."""

import signal
from dataclasses import replace

import pytest

from shared.messages.commands import Command
from shared.messages.events import PlanEvent
from shared.messages.pool_state import PoolState
from simulator.trace_driven import trial
from simulator.trace_driven.strategies import Strategy, strategy
from simulator.workload.jobs import Workload


def interrupt_at(num_decisions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of the allocator's decision of this number, counted over all simulations."""
    count = 0

    def interrupted(name: str, workload: Workload) -> Strategy:
        chosen = strategy(name, workload)
        allocator = chosen.policies["allocator"]

        def decide(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[PlanEvent, ...]:
            nonlocal count
            count += 1
            if count == num_decisions:
                signal.raise_signal(signal.SIGINT)
            return allocator.decide(state, commands, now_s)

        return replace(chosen, policies={**chosen.policies, "allocator": replace(allocator, decide=decide)})

    monkeypatch.setattr(trial, "strategy", interrupted)

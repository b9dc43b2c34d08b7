"""A model of the command queue: how long one tenant waits beside the flood of another, without a bus and its noise.

`python -m benchmarks.pipeline.turns` prints one line for each cost of the flood's commands.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.runtime.bus.contract import WorkItem
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.logs import get_log
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.command_queue import CommandQueue, Pending
from elasticflow.shared.runtime.service.host import MAX_COMMANDS
from elasticflow.shared.runtime.service.service_context import ServiceContext
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from testbed.histories import submit

NUM_WAITING = 500  # of the flood, always
NUM_SUBMITTED = 400  # by the other tenant
SUBMIT_EVERY_S = 0.25
COMMAND_S = 0.005  # of the other tenant
APPEND_S = 0.005  # of each decision

COSTS_S: dict[str, Callable[[np.random.Generator], float]] = {
    "1 ms": lambda _: 0.001,
    "20 ms": lambda _: 0.02,
    "5 ms, a tenth of them 160 ms": lambda chance: 0.16 if chance.random() < 0.1 else 0.005,
}


class _Item:
    """A command in the work queue, for which the model settles nothing."""

    num_delivered, stored_at_s, data = 1, 0.0, bytes(550)

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence


def waits_s(cost_s: Callable[[np.random.Generator], float], *, is_known: bool) -> list[float]:
    """The waits of the other tenant. is_known: it has sent commands before the flood begins."""
    chance, bus = np.random.default_rng(0), MemoryBus()
    metrics = Metrics("model", "p")
    context = ServiceContext(
        bus=bus, pool="p", clock=SystemClock(), instance="one", log=get_log("model"), metrics=metrics
    )
    queue = CommandQueue(context, "admission", lambda: None, PoolState)
    sent: dict[int, tuple[float, float]] = {}  # by position: its time, and its cost

    def add(tenant: str, command_s: float, at_s: float) -> None:
        position = len(sent) + 1
        sent[position] = at_s, command_s
        command: SubmitJob = submit(f"job-{position}", tenant=tenant)
        item = cast(WorkItem, _Item(position))
        queue._pending.append(Pending(command=command, envelope_id="", item=item))

    now_s, next_s, found = 0.0, 0.1, list[float]()
    if is_known:
        add("other", COMMAND_S, now_s)
        now_s += _decide(queue, sent)[1]
    num_waiting = 0
    while len(found) < NUM_SUBMITTED:
        for _ in range(NUM_WAITING - num_waiting):
            add("flood", cost_s(chance), now_s)
        num_waiting = NUM_WAITING
        while next_s <= now_s:
            add("other", COMMAND_S, next_s)
            next_s += SUBMIT_EVERY_S * (0.5 + chance.random())
        taken, decision_s = _decide(queue, sent)
        now_s += decision_s
        for pending in taken:
            if pending.command.tenant == "other":
                found.append(now_s - sent[pending.item.sequence][0])
            else:
                num_waiting -= 1
    return found


def _decide(queue: CommandQueue, sent: dict[int, Any]) -> tuple[tuple[Pending, ...], float]:
    taken = queue.take(MAX_COMMANDS)
    work_s = sum(sent[pending.item.sequence][1] for pending in taken)
    queue.took(taken, work_s)
    queue.settled(taken)
    return taken, work_s + APPEND_S


if __name__ == "__main__":
    for name, cost_s in COSTS_S.items():
        for is_known in (True, False):
            p50_ms, p99_ms = 1e3 * np.percentile(waits_s(cost_s, is_known=is_known), [50, 99])
            words = "known" if is_known else "new"
            print(f"each {name}; the other tenant is {words}: {p50_ms:.0f} / {p99_ms:.0f} ms")

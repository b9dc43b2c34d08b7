"""A pool on the in-memory bus and on virtual time, for tests of the service host."""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import PlanDecided, PlanEvent, PoolConfigured
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.replica import Replica, open_replica
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.memory_broker import MemoryBroker
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from elasticflow.simulator.replay.recorded_ledger import Entry, read_entries
from elasticflow.simulator.virtual_time import VirtualClock, VirtualTimeLoop
from testbed.histories import NOW_S, submit
from tests.support.service_contexts import service_context

POOL = "p"
PLAN = subjects.plan(POOL)

Store = Callable[[], Awaitable[int]]
Fault = Callable[["FaultyBus", Store], Awaitable[int]]


class FaultyBus(MemoryBus):
    """append_faults: one for each append to the plan, until there are none left."""

    append_faults: list[Fault]
    after_look: list[Store]  # what reaches the broker after the host has looked for the end of the ledger

    async def append(self, subject: str, data: bytes, **options: Any) -> int:
        async def store() -> int:
            return await MemoryBus.append(self, subject, data, **options)

        if subject == PLAN and self.append_faults:
            return await self.append_faults.pop(0)(self, store)
        return await store()

    async def last_sequence(self, pool: str) -> int:
        end = await super().last_sequence(pool)
        for store in self.after_look:
            await store()
        self.after_look.clear()
        return end


class RecordingLog(SilentLog):
    """A logger that keeps the names of the lines, and the errors in them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []

    def _keep(self, event: str, **keys: Any) -> None:
        self.lines.append(event)
        self.errors += [keys["error"]] if "error" in keys else []

    debug = info = warning = error = _keep


@dataclass
class OnePool:
    """A pool on the in-memory bus and on virtual time."""

    loop: VirtualTimeLoop = field(default_factory=lambda: VirtualTimeLoop(NOW_S))
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    log: RecordingLog = field(default_factory=RecordingLog)

    def __post_init__(self) -> None:
        self.broker.ensure_pool(POOL)
        self.metrics = Metrics("test", POOL)
        self._numbers = itertools.count()

    def bus(self, *append_faults: Fault) -> FaultyBus:
        bus = FaultyBus(self.broker, clock=VirtualClock(self.loop), delayed=True)
        bus.append_faults, bus.after_look = list(append_faults), []
        return bus

    def start(
        self, bus: MemoryBus, policy: Policy[PoolState], instance: str = "one", *, clock: VirtualClock | None = None
    ) -> Replica[PoolState]:
        opening = open_replica(
            service_context(
                bus,
                POOL,
                clock or VirtualClock(self.loop),
                instance=instance,
                log=self.log,
                metrics=self.metrics,
            ),
            policy,
            leads_by_lease=policy.service != "admission",
        )
        replica = self.loop.run_until_complete(opening)
        self.loop.spawn(replica.run(), instance)
        return replica

    def run_for(self, duration_s: float) -> None:
        self.loop.advance_to(self.loop.now_s + duration_s)

    def submit(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.send(submit(job_id))

    def send(self, command: Command) -> int:
        """Into the work queue; its sequence there."""
        data = codec.encode(command, id=command.job_id, recorded_at_s=NOW_S)
        return self.store(subjects.submit(command.tenant, POOL), data)

    @property
    def next_command(self) -> int:
        """The sequence of the next command in the work queue."""
        return self.broker.stream(streams.submit_stream(POOL)).last_sequence + 1

    def decide(self, *plan: PlanEvent) -> None:
        """Another service's decision, at the broker now."""
        decision = PlanDecided(service="operator", based_on=0, now_s=NOW_S, events=plan)
        self.store(PLAN, codec.encode(decision, id="other", recorded_at_s=NOW_S))

    def configure(self, **settings: Any) -> None:
        self.decide(PoolConfigured(config=PoolConfig(**settings), at_s=NOW_S))

    def store(self, subject: str, data: bytes) -> int:
        message_id = f"given{next(self._numbers)}"
        return self.broker.route(subject).append(subject, data, message_id, {}, None, self.loop.now_s)

    @property
    def decisions(self) -> list[PlanDecided]:
        return [entry.message for entry in self.entries if isinstance(entry.message, PlanDecided)]

    @property
    def entries(self) -> tuple[Entry, ...]:
        return read_entries(self.broker.ledger(POOL).messages.values())

    @property
    def decided(self) -> list[tuple[str, str]]:
        """Each decided event and its job, in the order of the ledger."""
        return [(type(e).__name__, getattr(e, "job_id", "")) for d in self.decisions for e in d.events]

    @property
    def num_unacknowledged(self) -> int:
        return len(self.broker.stream(streams.submit_stream(POOL)).messages)

    def count(self, name: str) -> float:
        labels = {"service": "test", "pool": POOL}
        return self.metrics.registry.get_sample_value(f"ef_{name}_total", labels) or 0.0

    def blocked(self, reason: str) -> float | None:
        labels = {"service": "test", "pool": POOL, "reason": reason}
        return self.metrics.registry.get_sample_value("ef_decisions_blocked", labels)

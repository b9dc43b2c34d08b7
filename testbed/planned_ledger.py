"""A ledger into which a test writes decisions, and from which it awaits events."""

import asyncio
from collections.abc import Callable
from typing import Any

from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.service.ledger_encoding import ledger_message, subject_of
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.pool import PoolState
from testbed.histories import NOW_S, gpus, spec

POOL = "pool-a"
PATIENCE_S = 60.0  # much longer than any event takes


class Ledger:
    """Writes decisions as the planners do, and awaits events of the executor."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.state = PoolState()
        self.received: list[Any] = []

    async def append(self, *messages: Any) -> None:
        for message in messages:
            number = len(self.received) + await self.bus.last_sequence(POOL)
            data = codec.encode(message, id=f"test-{number}", recorded_at_s=NOW_S)
            plan = isinstance(message, events.PlanDecided)
            subject = subjects.plan(POOL) if plan else subject_of(POOL, message)
            await self.bus.append(subject, data, message_id=f"test-{number}")

    async def place(
        self, job_id: str, generation: int, *names: str, virtual_nodes_by_rank: tuple[int, ...] = (), **changes: Any
    ) -> None:
        """changes: of the specification of a job in its first generation."""
        admitted = events.JobAdmitted(
            job_id=job_id,
            tenant="lab",
            spec=spec(**changes),
            deadline_s=None,
            minimum_satisfactory_share=(),
            gpu_seconds=0.0,
            at_s=NOW_S,
        )
        placed = events.PlacedJob(
            job_id=job_id, generation=generation, gpus=gpus(*names), virtual_nodes_by_rank=virtual_nodes_by_rank
        )
        placement = events.PlacementDecided(placements=(placed,), at_s=NOW_S)
        await self.plan(admitted, placement) if generation == 1 else await self.plan(placement)

    async def plan(self, *plan: Any) -> None:
        await self.append(events.PlanDecided(service="test", based_on=0, now_s=NOW_S, events=plan))

    async def until(self, wanted: Callable[[PoolState], object]) -> PoolState:
        """The first state for which `wanted` holds; `received` has every event up to then."""
        if wanted(self.state):
            return self.state
        async with asyncio.timeout(PATIENCE_S):
            async for batch in self.bus.follow(POOL, after_sequence=self.state.sequence):
                for stored in batch:
                    message = ledger_message(stored.subject, stored.data)
                    self.received.append(message)
                    self.state = ledger_fold.evolve(self.state, message, stored.sequence)
                    if wanted(self.state):
                        return self.state
        raise AssertionError("the ledger has an end")

    async def until_received(self, kind: type, count: int = 1) -> Any:
        def has_received(_: PoolState) -> bool:
            return sum(isinstance(message, kind) for message in self.received) >= count

        await self.until(has_received)
        return [message for message in self.received if isinstance(message, kind)][count - 1]

"""The fence's view of the ledger: when leases are extended, and when all workers end."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.executor.heartbeat import Heartbeat
from services.executor.model import Membership
from services.executor.notes import ContactLost, ContactRestored
from shared.messages.cluster import PoolConfig
from shared.messages.pool_state import PoolState
from shared.runtime.clock import SystemClock
from shared.runtime.logs import get_log

PATIENCE_S = 60.0  # for what must come; far above what it takes


class Node:
    """A host, its bus and its workers in one; silent: which questions for the ledger's end get no answer."""

    def __init__(self, *, silent: range, heartbeat_timeout_s: float) -> None:
        self.state = SimpleNamespace(membership=Membership.OUTSIDE, node_id="node-0")
        self.folded = PoolState(config=PoolConfig(heartbeat_timeout_s=heartbeat_timeout_s))
        self.notes: list[Any] = []
        self.leases: list[float] = []
        self.kills = 0
        self._silent, self._asked = silent, 0

    note = property(lambda self: self.notes.append)

    async def last_sequence(self, pool: str) -> int:
        self._asked += 1
        if self._asked in self._silent:
            await asyncio.Event().wait()
        return 0

    def kill_all(self) -> None:
        self.kills += 1

    def extend_leases(self, until_s: float) -> None:
        self.leases.append(until_s)


async def until(node: Node, num_leases: int) -> None:
    """Let the heart beat until so many leases were given."""
    here: Any = node
    heartbeat = asyncio.create_task(
        Heartbeat(here, here, "pool-a", SystemClock(), get_log("executor"), here).run()
    )
    async with asyncio.timeout(PATIENCE_S):
        while len(node.leases) < num_leases:  # noqa: ASYNC110 - nobody else is told
            await asyncio.sleep(0.01)
    heartbeat.cancel()
    with pytest.raises(asyncio.CancelledError):
        await heartbeat


async def test_one_answer_that_never_comes_costs_no_worker() -> None:
    node = Node(silent=range(2, 3), heartbeat_timeout_s=8.0)
    await until(node, num_leases=2)
    assert (node.kills, node.notes) == (0, [])
    assert node.leases == sorted(node.leases)


async def test_a_ledger_out_of_sight_extends_nothing_and_ends_all() -> None:
    node = Node(silent=range(2, 6), heartbeat_timeout_s=1.0)
    await until(node, num_leases=2)
    assert node.kills > 0
    assert [type(note) for note in node.notes[:1]] == [ContactLost]
    assert all(isinstance(note, ContactLost | ContactRestored) for note in node.notes)

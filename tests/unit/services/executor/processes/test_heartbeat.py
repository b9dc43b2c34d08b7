"""When contact with the ledger extends the leases of workers, and when its loss kills them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.services.executor.decisions.local_events_and_actions import ContactLost, ContactRestored
from elasticflow.services.executor.decisions.state import PoolMembership
from elasticflow.services.executor.processes.heartbeat import Heartbeat
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.logs import get_log
from elasticflow.shared.state.pool import PoolState

TIMEOUT_S = 60.0  # far above the usual time


class Node:
    """A host, its bus and its workers in one. silent: numbers of the requests for the ledger's end without a reply."""

    def __init__(self, *, silent: range, heartbeat_timeout_s: float) -> None:
        self.state = SimpleNamespace(membership=PoolMembership.OUTSIDE, node_id="node-0")
        self.folded = PoolState(config=PoolConfig(heartbeat_timeout_s=heartbeat_timeout_s))
        self.notes: list[Any] = []
        self.leases: list[float] = []
        self.kills = 0
        self._silent, self._num_requests = silent, 0

    note = property(lambda self: self.notes.append)

    async def last_sequence(self, pool: str) -> int:
        self._num_requests += 1
        if self._num_requests in self._silent:
            await asyncio.Event().wait()
        return 0

    def kill_all(self) -> None:
        self.kills += 1

    def extend_leases(self, until_s: float) -> None:
        self.leases.append(until_s)


async def until(node: Node, num_leases: int) -> None:
    """Run the heartbeat until it has extended the leases so often."""
    here: Any = node
    heartbeat = asyncio.create_task(Heartbeat(here, here, "pool-a", SystemClock(), get_log("executor"), here).run())
    async with asyncio.timeout(TIMEOUT_S):
        while len(node.leases) < num_leases:  # noqa: ASYNC110 - the fake signals nothing
            await asyncio.sleep(0.01)
    heartbeat.cancel()
    with pytest.raises(asyncio.CancelledError):
        await heartbeat


async def test_a_single_missing_reply_kills_no_worker() -> None:
    node = Node(silent=range(2, 3), heartbeat_timeout_s=8.0)
    await until(node, num_leases=2)
    assert (node.kills, node.notes) == (0, [])
    assert node.leases == sorted(node.leases)


async def test_a_ledger_out_of_reach_extends_no_lease_and_kills_all_workers() -> None:
    node = Node(silent=range(2, 6), heartbeat_timeout_s=1.0)
    await until(node, num_leases=2)
    assert node.kills > 0
    assert [type(note) for note in node.notes[:1]] == [ContactLost]
    assert all(isinstance(note, ContactLost | ContactRestored) for note in node.notes)

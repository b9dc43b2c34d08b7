"""When an acknowledged heartbeat extends the leases of workers, and when silence kills them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.executor.decisions.local_events_and_actions import ContactLost, ContactRestored, NodeClaimed
from elasticflow.services.executor.heartbeat import Heartbeat
from elasticflow.shared.errors import WrongExpectedSequence
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.events import NodeReported
from elasticflow.shared.messages.events.nodes import KnownStarts
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES, MAX_METRICS_BYTES
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.worker_protocol.from_worker import Progressed
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.runtime.bus.contract import Value
from elasticflow.shared.runtime.process.clock import SystemClock, boot_s
from elasticflow.shared.runtime.process.logs import get_log
from elasticflow.shared.state.pool import PoolState
from tests.support.executor_node import ExecutorNode

TIMEOUT_S = 60.0  # far above the usual time


class Node:
    """A host, its bus and its workers in one.

    unacknowledged: numbers of the writes without a reply. are_stored: whether they are stored all the same. The ledger
    can always be read, as from a stale leader.
    """

    def __init__(self, *, unacknowledged: range, heartbeat_timeout_s: float, are_stored: bool = False) -> None:
        self.folded = PoolState(config=PoolConfig(heartbeat_timeout_s=heartbeat_timeout_s))
        self.state = ExecutorNode(self.folded).settle().state
        self.ready = asyncio.Event()
        self.ready.set()
        self.notes: list[Any] = []
        self.leases: list[float] = []
        self.sent_s: list[float] = []
        self.kills = 0
        self.stored: Value | None = None
        self._unacknowledged, self._are_stored, self._num_writes = unacknowledged, are_stored, 0

    note = property(lambda self: self.notes.append)
    preparing = ("waits",)

    async def last_sequence(self, pool: str) -> int:
        return 0

    async def get_value(self, bucket: str, key: str) -> Value | None:
        return self.stored

    async def put_value(self, bucket: str, key: str, data: bytes, *, expected_revision: int) -> int:
        self._num_writes += 1
        self.sent_s.append(boot_s())
        revision = self.stored.revision if self.stored is not None else 0
        if expected_revision != revision:
            raise WrongExpectedSequence(key, expected_revision)
        is_silent = self._num_writes in self._unacknowledged
        if not is_silent or self._are_stored:
            self.stored = Value(data=data, revision=revision + 1)
        if is_silent:
            await asyncio.Event().wait()
        return revision + 1

    def preparations(self, starts: KnownStarts) -> KnownStarts:
        return starts[1:]

    def kill_all(self) -> None:
        self.kills += 1

    def extend_leases(self, until_s: float) -> None:
        self.leases.append(until_s)


async def until(node: Node, num_leases: int) -> None:
    """Run the heartbeat until it has extended the leases so often."""
    here: Any = node
    log = get_log("executor")
    heartbeat = asyncio.create_task(Heartbeat(here, here, "pool-a", SystemClock(), log, here, boot_s=boot_s).run())
    async with asyncio.timeout(TIMEOUT_S):
        while len(node.leases) < num_leases:  # noqa: ASYNC110 - the fake signals nothing
            await asyncio.sleep(0.01)
    heartbeat.cancel()
    with pytest.raises(asyncio.CancelledError):
        await heartbeat


async def test_a_heartbeat_that_metrics_make_too_large_is_sent_without_them() -> None:
    node = Node(unacknowledged=range(0), heartbeat_timeout_s=2.0)
    trains = ExecutorNode(node.folded).training(1)
    most = {f"{n:0200d}": 0.0 for n in range(MAX_METRICS_BYTES // 212)}
    trains.reports(Progressed(iteration=9, iterations_per_s=1.0, metrics=most))
    (worker,) = trains.state.running
    jobs = (worker.id._replace(job_id=f"job-{n}") for n in range(MAX_MESSAGE_BYTES // MAX_METRICS_BYTES + 10))
    node.state = replace(trains.state, workers=Map({id: replace(worker, id=id) for id in jobs}))
    await until(node, num_leases=1)
    assert node.stored is not None
    heartbeat = codec.decode(node.stored.data).message
    assert isinstance(heartbeat, NodeReported)
    assert len(heartbeat.workers) == len(node.state.workers)
    assert {(report.iteration, len(report.metrics)) for report in heartbeat.workers} == {(9, 0)}


async def test_a_heartbeat_tells_of_which_starts_no_worker_has_run() -> None:
    node = Node(unacknowledged=range(0), heartbeat_timeout_s=2.0)
    node.state = (
        ExecutorNode(node.folded).settle().admit("a").place("node-0:0").admit("b").place("node-0:1", job_id="b").state
    )
    await until(node, num_leases=1)
    assert node.stored is not None
    heartbeat = codec.decode(node.stored.data).message
    assert isinstance(heartbeat, NodeReported)
    assert (heartbeat.starts, heartbeat.preparations) == ((("a", 1), ("b", 1)), (("b", 1),))


@pytest.mark.parametrize("are_stored", [False, True])
async def test_a_single_missing_acknowledgement_kills_no_worker(are_stored: bool) -> None:
    node = Node(unacknowledged=range(2, 3), heartbeat_timeout_s=8.0, are_stored=are_stored)
    await until(node, num_leases=2)
    assert node.kills == 0
    assert {type(note) for note in node.notes} <= {NodeClaimed}
    assert node.leases == sorted(node.leases)


async def test_a_lease_counts_from_the_sending_of_the_heartbeat() -> None:
    node = Node(unacknowledged=range(0), heartbeat_timeout_s=2.0)
    await until(node, num_leases=3)
    assert all(lease <= sent + 1.0 for lease, sent in zip(node.leases, node.sent_s, strict=False))
    assert node.stored is not None
    heartbeat = codec.decode(node.stored.data).message
    assert isinstance(heartbeat, NodeReported)
    assert heartbeat.lease_s == 1.0


async def test_a_ledger_that_can_be_read_extends_no_lease_while_no_write_is_acknowledged() -> None:
    node = Node(unacknowledged=range(2, 7), heartbeat_timeout_s=1.0)
    await until(node, num_leases=2)
    assert node.kills > 0
    notes = [note for note in node.notes if not isinstance(note, NodeClaimed)]
    assert [type(note) for note in notes[:1]] == [ContactLost]
    assert all(isinstance(note, ContactLost | ContactRestored) for note in notes)


async def test_a_heartbeat_that_names_a_start_is_stored_at_once() -> None:
    node = Node(unacknowledged=range(3, 5), heartbeat_timeout_s=8.0)
    here: Any = node
    heartbeat = Heartbeat(here, here, "pool-a", SystemClock(), get_log("executor"), here, boot_s=boot_s)
    running = asyncio.create_task(heartbeat.run())
    async with asyncio.timeout(TIMEOUT_S):
        while not node.leases:  # noqa: ASYNC110 - the fake signals nothing
            await asyncio.sleep(0.01)
        node.state = ExecutorNode(node.folded).settle().admit().place("node-0:2").state
        for _ in range(3):  # of which the second one meets a server that does not answer twice
            await heartbeat.stored()
    assert node.stored is not None
    stored = codec.decode(node.stored.data).message
    assert isinstance(stored, NodeReported)
    assert stored.starts == (("a", 1),)
    running.cancel()
    await asyncio.wait({running})

"""One seed: three NATS servers, an executor whose worker trains, the monitor; a partition; what each side then knew.

The command (arguments: seed, folder) needs namespaces of its own: see `network.ISOLATED`. It prints one JSON object.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.partitions.network import SERVERS, Network, start_server, url_of
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.streams import StreamLimits, stream_configs
from elasticflow.shared.runtime.process.clock import SystemClock, boot_s
from testbed.histories import NOW_S
from testbed.planned_ledger import POOL, Ledger

NODE = "node-0"
READY_TIMEOUT_S = 300.0  # the monitor may compile its loops first
WATCH_S = 40.0  # after the partition: a stale leader notices its loss after 10 to 20 s
REJOIN_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """cuts: packets from each machine of the first group to each of the second are dropped.

    leader: where all streams have their leader; "": where it happens to be.
    """

    name: str
    executor_at: str
    monitor_at: str
    cuts: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    leader: str = ""


_LEFT, _RIGHT = ("server-1", "executor"), ("server-2", "server-3", "monitor")
_WITH_MONITOR, _WITHOUT_MONITOR = ("server-1", "monitor"), ("server-2", "server-3", "executor")
PARTITIONS = (
    Partition(
        name="executor with the leader in the minority",
        executor_at="server-1",
        monitor_at="server-2",
        cuts=((_LEFT, _RIGHT), (_RIGHT, _LEFT)),
        leader="server-1",
    ),
    Partition(
        name="the same, only its packets are lost",
        executor_at="server-1",
        monitor_at="server-2",
        cuts=((_LEFT, _RIGHT),),
        leader="server-1",
    ),
    Partition(
        name="the same, only packets to it are lost",
        executor_at="server-1",
        monitor_at="server-2",
        cuts=((_RIGHT, _LEFT),),
        leader="server-1",
    ),
    Partition(
        name="executor's and monitor's servers reach only the third",
        executor_at="server-1",
        monitor_at="server-2",
        cuts=((("server-1", "executor"), ("server-2", "monitor")), (("server-2", "monitor"), ("server-1", "executor"))),
    ),
    Partition(
        name="monitor with the leader in the minority",
        executor_at="server-2",
        monitor_at="server-1",
        cuts=((_WITH_MONITOR, _WITHOUT_MONITOR), (_WITHOUT_MONITOR, _WITH_MONITOR)),
        leader="server-1",
    ),
    Partition(
        name="executor alone",
        executor_at="server-1",
        monitor_at="server-2",
        cuts=((("executor",), SERVERS), (SERVERS, ("executor",))),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Seconds from the partition. trained_until_s: end of the fence: killed, or the last lease; None: it trained on.

    lost_s: when the ledger held the loss of the node; None: never. rejoined: the node trains or is a member at the end.
    """

    seed: int
    partition: str
    trained_until_s: float | None
    lost_s: float | None
    rejoined: bool

    @property
    def overlap_s(self) -> float | None:
        """How long two generations could train at once, at least; negative: the first had ended so long before."""
        if self.lost_s is None:
            return None
        return (WATCH_S if self.trained_until_s is None else self.trained_until_s) - self.lost_s


class Pool:
    """Three servers, monitor and executor on one network."""

    def __init__(self, folder: Path, partition: Partition) -> None:
        self._folder, self._partition = folder, partition
        self.network = Network((*SERVERS, "executor", "monitor"))
        self.records = folder / "records.jsonl"
        self._env = {
            **os.environ,
            "EF_POOL": POOL,
            "EF_REPLICAS": "3",
            "EF_LOG_FORMAT": "json",
            "EF_LOG_LEVEL": "debug",
        }

    async def open(self) -> Ledger:
        """Return once the pool has one training worker, and its leaders where the partition wants them."""
        for name in SERVERS:
            start_server(self.network, name, self._folder)
        bus = await connect_nats(f"{self.url('server-3')},{self.url('server-2')}", name="observer", wait_s=30.0)
        bus = NatsBus(bus._connection, StreamLimits(replicas=3))
        await _persistently(lambda: bus.ensure_pool(POOL))
        ledger = Ledger(bus)
        await _persistently(lambda: ledger.plan(events.PoolConfigured(config=PoolConfig(), at_s=NOW_S)))
        self._start_monitor()
        await _persistently(self._monitor_follows)
        self._start_executor()
        await ledger.until_received(events.NodeJoined)
        await ledger.place("a", 1, f"{NODE}:0")
        await ledger.until_received(events.GenerationStarted)
        if self._partition.leader:
            for config in stream_configs(POOL, StreamLimits()):
                await _persistently(lambda name=config["name"]: _move_leader(bus, name, self._partition.leader))
        return ledger

    def url(self, server: str) -> str:
        return url_of(self.network, server)

    def _start_monitor(self) -> None:
        data_dir = str(self._folder / "monitor")
        env = {**self._env, "NATS_URL": self.url(self._partition.monitor_at), "EF_DATA_DIR": data_dir}
        command = [sys.executable, "-m", "elasticflow.services.monitor"]
        self.network.start("monitor", command, env=env, log=self._folder / "monitor.log")

    def _start_executor(self) -> None:
        url = self.url(self._partition.executor_at)
        arguments = (url, POOL, NODE, self._folder / "executor", self.records)
        command = [sys.executable, "-m", "benchmarks.partitions.recording_executor", *map(str, arguments)]
        self.network.start("executor", command, env=self._env, log=self._folder / "executor.log")

    async def _monitor_follows(self) -> None:
        if "caught up" not in (self._folder / "monitor.log").read_text():
            raise _NotYet

    def trained_until_s(self) -> float | None:
        """When the first worker's permission ended, on the boot clock; None while it has not ended."""
        records = [json.loads(line) for line in self.records.read_text().splitlines()]
        mine = [record for record in records if record["generation"] == 1]
        leases = [record["at_s"] for record in mine if record["what"] == "lease"]
        kills = [record["at_s"] for record in mine if record["what"] == "killed"]
        end_s = min([max(leases), *kills])
        return end_s if end_s < boot_s() else None


async def run(seed: int, folder: Path) -> Result:
    rng = np.random.default_rng(seed)
    partition = PARTITIONS[seed % len(PARTITIONS)]
    pool = Pool(folder, partition)
    ledger = await pool.open()
    await asyncio.sleep(rng.uniform(1.0, 3.0))
    boot_offset_s = SystemClock().now_s() - boot_s()
    cut_s = boot_s()
    for sources, targets in partition.cuts:
        pool.network.drop(sources, targets)
    lost_s = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WATCH_S):
            lost_s = await _lost_s(ledger) - boot_offset_s - cut_s
    while (trained_until_s := pool.trained_until_s()) is None and boot_s() < cut_s + WATCH_S:
        await asyncio.sleep(0.1)
    if trained_until_s is not None:
        trained_until_s -= cut_s
    pool.network.heal()
    return Result(
        seed=seed,
        partition=partition.name,
        trained_until_s=trained_until_s,
        lost_s=lost_s,
        rejoined=await _rejoined(ledger),
    )


async def _lost_s(ledger: Ledger) -> float:
    """When the ledger stored the loss of the node, on the wall clock of its server."""
    async for batch in ledger.bus.follow(POOL, after_sequence=ledger.state.sequence):
        for record in batch:
            if b"NodeLost" in record.data:
                return record.stored_at_s
    raise AssertionError("the ledger has an end")


async def _rejoined(ledger: Ledger) -> bool:
    try:
        async with asyncio.timeout(REJOIN_TIMEOUT_S):
            await ledger.until(lambda state: state.nodes[NODE].alive and state.sequence > 0)
    except (TimeoutError, AssertionError):
        return False
    return True


async def _move_leader(bus: NatsBus, stream: str, server: str) -> None:
    connection = bus._connection
    info = await connection.api(f"STREAM.INFO.{stream}")
    if info.get("cluster", {}).get("leader") != server:
        await connection.api(f"STREAM.LEADER.STEPDOWN.{stream}", {"placement": {"preferred": server}})
        raise _NotYet


class _NotYet(Exception):
    """A stream has its leader elsewhere, or a process is not ready."""


async def _persistently(attempt: Callable[[], Any]) -> None:
    async with asyncio.timeout(READY_TIMEOUT_S):
        while True:
            try:
                await attempt()
            except (ElasticFlowError, _NotYet):
                await asyncio.sleep(0.3)
            else:
                return


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(run(int(sys.argv[1]), Path(sys.argv[2]))))))

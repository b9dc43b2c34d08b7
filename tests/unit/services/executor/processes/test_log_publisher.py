"""From log files to a reader, over the bus in memory: each line once, in order, through faults and restarts."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.client.worker_logs import StoredLogs
from elasticflow.services.executor.decisions.local_events_and_actions import WorkerId
from elasticflow.services.executor.processes.job_logs import (
    MAX_BACKLOG_BYTES,
    MAX_LOG_BYTES,
    QUIET_TURNS,
    TURNS_AFTER_END,
    LogPublisher,
    rotate,
)
from elasticflow.services.executor.processes.prepared_folders import take_folders
from elasticflow.shared.errors import MaybeStored, NotPermitted, StorageFull, Unavailable
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.events import JobAdmitted
from elasticflow.shared.messages.log_chunk import NUM_SLOTS
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.process.files import BLOCK_BYTES
from elasticflow.shared.state.job import Job
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.histories import NOW_S, gpus, pool, spec
from tests.support.holes import skip_without_holes

POOL, NODE = "p", "node-0"

ADMITTED = JobAdmitted(
    job_id="a",
    tenant="lab",
    spec=spec(),
    deadline_s=NOW_S + 100.0,
    minimum_satisfactory_share=(),
    gpu_seconds=100.0,
    at_s=NOW_S,
)
LIVE = pool(1).then(ADMITTED).state.live_jobs


class UnreliableBus(MemoryBus):
    """Each call that writes a value takes the next fault, if there is one; some are stored nevertheless."""

    faults: list[Exception]

    async def put_value(self, *arguments: Any, **more: Any) -> int:
        if not self.faults:
            return await super().put_value(*arguments, **more)
        fault = self.faults.pop(0)
        if isinstance(fault, MaybeStored):
            await super().put_value(*arguments, **more)
        raise fault


class Node:
    """A node with a log folder, its publisher, and a reader elsewhere."""

    def __init__(self, bus: UnreliableBus, data_dir: Path) -> None:
        self.bus, self.data_dir = bus, data_dir
        self.folder = data_dir / "logs" / "a"
        self.folder.mkdir(parents=True)
        self.state = pool(1).then(ADMITTED).state
        self.job: Job = self.state.live_jobs["a"]
        self.publisher = self.started()
        self.reader = self.new_reader()

    def started(self) -> LogPublisher:
        return LogPublisher(self.bus, POOL, self.data_dir, NODE, SilentLog())

    def new_reader(self, rank: int | None = None) -> StoredLogs:
        return StoredLogs(self.bus, POOL, self.job, rank)  # pyright: ignore[reportArgumentType]

    def runs(self, generation: int = 1, rank: int = 0) -> None:
        assignment = SimpleNamespace(job_identity=self.job.identity)
        worker = WorkerId("a", generation, rank)
        started: Any = SimpleNamespace(worker=worker, tenant=self.job.tenant, assignment=assignment)
        self.publisher.follow(started)
        placed = fast_replace(self.job, gpus=gpus(f"{NODE}:0"), num_gpus=1)
        self.state = fast_replace(self.state, live_jobs=self.state.live_jobs.set("a", placed))

    def writes(self, text: str, name: str = "g1-r0") -> None:
        with (self.folder / f"{name}.log").open("a") as file:
            file.write(text)

    async def read(self, reader: StoredLogs | None = None) -> list[str]:
        return [line async for line in (reader or self.reader).new_lines(self.state)]


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    bus = UnreliableBus()
    bus.faults = []
    await bus.ensure_pool(POOL)
    return Node(bus, tmp_path)


async def test_each_line_arrives_once_while_the_file_grows(node: Node) -> None:
    node.runs()
    await node.publisher.publish(LIVE)
    assert await node.read() == []
    assert node.reader.silent
    node.writes("one\ntw")
    await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | one"]
    node.writes("o\nthree\n")
    await node.publisher.publish(LIVE)
    await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | two", "g1-r0 | three"]
    assert await node.read() == []
    assert await node.read(node.new_reader()) == ["g1-r0 | one", "g1-r0 | two", "g1-r0 | three"]


async def test_lines_of_an_earlier_job_of_the_same_id_are_not_published(node: Node) -> None:
    take_folders(node.data_dir, "a", "of an earlier job")
    node.writes("secret\n")
    node.runs()
    await node.publisher.publish(LIVE)
    assert await node.read() == []
    take_folders(node.data_dir, "a", node.job.identity)
    node.folder.mkdir()
    node.writes("own\n")
    await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | own"]


async def test_workers_of_a_job_share_a_ring_and_a_reader_may_want_one(node: Node) -> None:
    for rank in (0, 1, 11):
        node.runs(rank=rank)
        node.writes(f"rank {rank}\n", f"g1-r{rank}")
    await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | rank 0", "g1-r1 | rank 1", "g1-r11 | rank 11"]
    assert await node.read(node.new_reader(rank=1)) == ["g1-r1 | rank 1"]


async def test_files_of_other_nodes_in_a_shared_folder_are_not_published(node: Node) -> None:
    node.runs()
    node.writes("mine\n")
    node.writes("of another node\n", "g1-r1")
    await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | mine"]


async def test_an_executor_that_starts_again_continues_where_it_stopped(node: Node) -> None:
    node.runs()
    node.writes("one\n")
    await node.publisher.publish(LIVE)
    node.writes("two\n")
    node.publisher = node.started()
    node.publisher.resume([node.job])
    await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | one", "g1-r0 | two"]
    node.runs(generation=2)
    node.writes("three\n", "g2-r0")
    await node.publisher.publish(LIVE)
    assert await node.read() == ["g2-r0 | three"]


@pytest.mark.parametrize(
    "fault", [Unavailable("nats://n", "no leader"), MaybeStored("$KV.x", "id")], ids=["refused", "maybe stored"]
)
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("restarts", [False, True])
async def test_no_line_is_lost_or_twice_when_nats_fails(
    node: Node, fault: Exception, position: int, restarts: bool
) -> None:
    """position 1 is the number of the newest chunk."""
    node.runs()
    node.writes("one\n")
    node.bus.faults = [fault] if position == 0 else []
    if position:
        put, calls = node.bus.put_value, []

        async def put_value(*arguments: Any, **more: Any) -> int:
            calls.append(arguments)
            node.bus.faults = [fault] if len(calls) == 2 else []
            return await put(*arguments, **more)

        node.bus.put_value = put_value  # type: ignore[method-assign]
    await node.publisher.publish(LIVE)
    node.bus.faults = []
    node.writes("two\n")
    if restarts:
        node.publisher = node.started()
        node.runs()
    await node.publisher.publish(LIVE)
    node.writes("three\n")
    await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | one", "g1-r0 | two", "g1-r0 | three"]


async def test_the_ring_keeps_the_newest_lines_and_a_slow_reader_is_told(node: Node) -> None:
    node.runs()
    node.writes("first\n")
    await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | first"]
    width, turns = 4_000, NUM_SLOTS // 4
    for turn in range(turns * 2):
        node.writes("".join(f"{turn:03d}-{line:02d}".ljust(width - 1, ".") + "\n" for line in range(30)))
        await node.publisher.publish(LIVE)
    note, *lines = await node.read()
    assert note.startswith("eflow: lines of node-0 left out")
    names = [line.partition(" | ")[2][:6] for line in lines]
    everything = [f"{turn:03d}-{line:02d}" for turn in range(turns * 2) for line in range(30)]
    assert names == everything[-len(names) :]
    assert len(names) > NUM_SLOTS
    assert len(node.bus.broker._values[streams.log_bucket(POOL)]) == NUM_SLOTS + 1
    assert await node.read(node.new_reader()) == lines


async def test_a_flood_is_bounded_and_says_how_much_is_left_out(node: Node) -> None:
    node.runs()
    for _ in range(3):
        node.writes(("x" * 99 + "\n") * 100_000)
        await node.publisher.publish(LIVE)
    lines = await node.read()
    left_out = [int(line.split()[3].replace(",", "")) for line in lines if "lines left out" in line]
    shown = sum(line.endswith("x") for line in lines)
    assert len(left_out) == 3
    assert shown <= 3 * 2_001
    stored = node.bus.broker._values[streams.log_bucket(POOL)].values()
    assert sum(len(value.data) for value, _ in stored) < 1_000_000


async def test_the_work_of_a_turn_is_bounded_however_much_was_written(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_holes(node.data_dir)
    read = list[int]()
    pread = os.pread

    def counting_pread(file: int, num_bytes: int, offset: int) -> bytes:
        read.append(num_bytes)
        return pread(file, num_bytes, offset)

    node.runs()
    node.writes("x\n")
    await node.publisher.publish(LIVE)
    for _ in range(4):  # seconds without NATS
        node.writes(("x" * 99 + "\n") * 100_000)
        rotate(node.folder / "g1-r0.log")
    monkeypatch.setattr(os, "pread", counting_pread)
    await node.publisher.publish(LIVE)
    assert MAX_LOG_BYTES / 2 < sum(read) < MAX_LOG_BYTES + 4 * MAX_BACKLOG_BYTES
    assert max(read) <= MAX_BACKLOG_BYTES
    shown = [line for line in await node.read() if line.endswith("x")]
    assert 2 <= len(shown) <= 2_002


async def test_a_job_that_stays_within_the_bounds_loses_no_line_by_rotation(node: Node) -> None:
    skip_without_holes(node.data_dir)
    node.runs()
    num_turns, lines = 2 * NUM_SLOTS, list[str]()
    for turn in range(num_turns):
        if turn == num_turns // 2:
            node.publisher = node.started()
            node.publisher.resume([node.job])
        node.writes("".join(f"{turn:06d}-{line:03d}-{'x' * 88}\n" for line in range(100)))
        await node.publisher.publish(LIVE)
        rotate(node.folder / "g1-r0.log", max_bytes=4 * BLOCK_BYTES)
        lines += await node.read()
    assert [line[8:18] for line in lines] == [
        f"{turn:06d}-{line:03d}" for turn in range(num_turns) for line in range(100)
    ]
    assert (node.folder / "g1-r0.log").stat().st_blocks * 512 <= 5 * BLOCK_BYTES


async def test_after_the_end_of_its_job_the_last_line_arrives_and_the_reader_knows(node: Node) -> None:
    node.runs()
    node.writes("one\nno end")
    await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | one"]
    for _ in range(QUIET_TURNS):
        await node.publisher.publish({})
        assert not node.reader.complete
    await node.publisher.publish({})
    assert await node.read() == ["g1-r0 | no end"]
    assert node.reader.complete
    assert node.publisher._jobs == {}


async def test_a_pool_without_the_bucket_has_no_lines_and_trains_on(tmp_path: Path) -> None:
    bus = UnreliableBus()
    bus.faults = []
    node = Node(bus, tmp_path)
    node.runs()
    node.writes("one\n")
    await node.publisher.publish(LIVE)
    assert await node.read() == []


async def test_a_reader_that_came_first_finds_the_node_that_runs_the_job_later(node: Node) -> None:
    assert await node.read() == []
    node.runs()
    node.writes("one\n")
    await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | one"]


async def test_a_bucket_that_is_full_or_forbidden_stops_no_job(node: Node) -> None:
    node.runs()
    node.writes("one\n")
    node.bus.faults = [StorageFull("$KV.x", "maximum bytes exceeded"), NotPermitted("nats://n", "$KV.x")]
    for _ in range(3):
        await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | one"]


async def test_a_reader_sees_whole_lines_when_a_stored_part_of_a_flood_is_not_acknowledged(node: Node) -> None:
    node.runs()
    for turn in range(4):
        node.writes("".join(f"{number:099d}\n" for number in range(100_000)))
        node.bus.faults = [MaybeStored("$KV.x", "id")] if turn % 2 == 0 else []
        await node.publisher.publish(LIVE)
        lines = await node.read()
        texts = [line.removeprefix("g1-r0 | ") for line in lines]
        assert all(len(text) == 99 or "lines left out" in text for text in texts)
        assert all(line.startswith("g1-r0 | ") for line in lines)


async def test_the_first_lines_are_found_although_their_number_was_not_stored(node: Node) -> None:
    node.runs()
    node.writes("one\n")
    put, keys = node.bus.put_value, list[str]()

    async def put_value(bucket: str, key: str, data: bytes) -> int:
        keys.append(key)
        if len(keys) == 2:
            raise Unavailable("nats://n", "no leader")
        return await put(bucket, key, data)

    node.bus.put_value = put_value  # type: ignore[method-assign]
    for _ in range(2):
        await node.publisher.publish(LIVE)
    assert await node.read() == ["g1-r0 | one"]
    assert len(keys) == 3


async def test_a_log_that_grows_after_its_job_is_given_up(node: Node) -> None:
    node.runs()
    for turn in range(TURNS_AFTER_END):
        assert node.publisher._jobs
        node.writes(f"{turn}\n")
        await node.publisher.publish({})
    assert node.publisher._jobs == {}
    await node.read()
    assert node.reader.complete


async def test_a_job_whose_log_the_bus_refuses_is_the_last_one_of_the_next_turn(node: Node) -> None:
    node.runs()
    (node.data_dir / "logs" / "b").mkdir()
    assignment = SimpleNamespace(job_identity="of b")
    started: Any = SimpleNamespace(worker=WorkerId("b", 1, 0), tenant="lab", assignment=assignment)
    node.publisher.follow(started)
    (node.data_dir / "logs" / "b" / "g1-r0.log").write_text("of b\n")
    node.writes("of a\n")
    node.bus.faults = [Unavailable("put", "refused")]
    both = LIVE.set("b", fast_replace(node.job, job_id="b", identity="of b"))
    await node.publisher.publish(both)
    assert list(node.publisher._jobs) == ["b", "a"]
    node.bus.faults = []
    await node.publisher.publish(both)
    assert await node.read() == ["g1-r0 | of a"]


async def test_lines_of_a_later_job_of_the_id_are_its_own(node: Node) -> None:
    """The first job's lines are not complete on the bus when a worker of the second one starts."""
    take_folders(node.data_dir, "a", node.job.identity)
    node.runs()
    node.writes("first\n")
    await node.publisher.publish(LIVE)
    of_first = node.reader
    assert await node.read(of_first) == ["g1-r0 | first"]
    node.job = fast_replace(node.job, identity="of the second")
    take_folders(node.data_dir, "a", node.job.identity)
    node.folder.mkdir()
    node.runs(generation=3)
    node.writes("second\n", "g3-r0")
    assert await node.read(of_first) == []
    await node.publisher.publish(node.state.live_jobs)
    assert await node.read(node.new_reader()) == ["g3-r0 | second"]
    assert await node.read(of_first) == []


async def test_the_lines_of_an_ended_job_are_complete_although_a_later_one_of_its_id_trains_elsewhere(
    node: Node,
) -> None:
    node.runs()
    node.writes("first\n")
    later = node.state.live_jobs.set("a", fast_replace(node.job, identity="of the second"))
    for _ in range(QUIET_TURNS + 1):
        await node.publisher.publish(later)
    assert node.publisher._jobs == {}
    assert await node.read() == ["g1-r0 | first"]
    assert node.reader.complete

"""A worker that sends without end is ended, before its messages fill the memory of its executor."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from elasticflow.services.executor.processes.fork_server_client import Exited, ForkedProcess, ProcessChannel
from elasticflow.services.executor.processes.launcher import (
    FRAMES_PER_S,
    MAX_AT_ONCE,
    FrameRate,
    Launcher,
    WorkerHandle,
)
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, encode_frame
from elasticflow.shared.messages.worker_protocol.from_worker import Alive
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan
from testbed.histories import spec


def test_a_burst_is_allowed_and_a_flood_is_not() -> None:
    now_s = [0.0]
    rate = FrameRate(lambda: now_s[0])
    for _ in range(MAX_AT_ONCE):
        rate.count_one()
    now_s[0] = 2.0
    for _ in range(int(2 * FRAMES_PER_S)):
        rate.count_one()
    with pytest.raises(BrokenChannel, match="more than 100 messages a second"):
        rate.count_one()


def test_a_worker_that_reports_twice_a_second_is_never_ended() -> None:
    now_s = [0.0]
    rate = FrameRate(lambda: now_s[0])
    for _ in range(10 * MAX_AT_ONCE):
        now_s[0] += 0.5
        rate.count_one()


async def test_a_launcher_kills_a_worker_that_floods_it(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop, events = asyncio.get_running_loop(), list[Any]()
    exited: asyncio.Future[Exited] = loop.create_future()

    class Process(ForkedProcess):
        def kill(self) -> None:
            if not exited.done():
                exited.set_result(Exited(code=None, signal=9))

    launcher = Launcher(data_dir=tmp_path, node_id="n", on_event=lambda _, event: events.append(event))
    assignment = Assignment(
        job_id="a",
        plan=GenerationPlan(generation=1, world_size=1),
        rank=0,
        spec=spec(),
        checkpoint_dir="",
    )
    process = Process(pid=1, exited=exited, channel=ProcessChannel(ours))
    handle = WorkerHandle(assignment, process, tmp_path / "worker.log")
    flood = encode_frame(Alive(iteration=1, seconds_since_progress=0.0)) * (2 * MAX_AT_ONCE)
    following = asyncio.create_task(launcher._follow(handle))
    with theirs, contextlib.suppress(ConnectionError):
        await loop.sock_sendall(theirs, flood)
        theirs.shutdown(socket.SHUT_WR)
        await following
    await following
    assert len(events) < 2 * MAX_AT_ONCE
    assert events[-1] == Exited(code=None, signal=9)

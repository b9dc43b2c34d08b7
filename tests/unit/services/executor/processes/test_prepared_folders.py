"""What a process that prepares a folder may send to its executor."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from elasticflow.services.executor.processes.fork_server_client import Exited, ForkedProcess, ProcessChannel
from elasticflow.services.executor.processes.prepared_folders import CannotPrepare, Preparation, PreparedFolders
from elasticflow.shared.messages.worker_protocol.forking import FetchData, NotPrepared
from elasticflow.shared.messages.worker_protocol.frames import encode_frame
from elasticflow.simulator.pipeline.simulated_process import SilentLog


class RunsOn(ForkedProcess):
    """It ends when it is killed."""

    def kill(self) -> None:
        if not self.exited.done():
            self.exited.set_result(Exited(code=None, signal=9))


async def test_a_preparer_that_replies_again_is_ended_and_its_first_reply_counts(tmp_path: Path) -> None:
    """Others would wait in the memory of the executor, as many as it sends."""
    ours, theirs = socket.socketpair()
    exited: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()
    theirs.sendall(b"".join(encode_frame(NotPrepared(error=f"reply {number}")) for number in range(3)))

    async def fork() -> ForkedProcess:
        return RunsOn(pid=1, exited=exited, channel=ProcessChannel(ours))

    preparation = Preparation(
        folder=tmp_path / "digest",
        what="its data",
        order=lambda unfinished: FetchData(folder=unfinished, uri="s3://bucket/set", environment={}),
        max_bytes=1 << 20,
        advice="fetch less",
        key="data",
    )
    with theirs, pytest.raises(CannotPrepare, match="its data cannot be had: reply 0"):
        await PreparedFolders(fork, SilentLog()).prepare(preparation, within_s=20.0)
    assert exited.result().signal == 9
    assert os.listdir(tmp_path) == []

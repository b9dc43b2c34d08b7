"""The executor's end of a channel: writes that wait, a process that is gone, its last messages."""

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator

import pytest

from elasticflow.services.executor.processes.fork_server_client import ProcessChannel
from elasticflow.shared.messages.worker_protocol.frames import FrameReader, encode_frame
from elasticflow.shared.messages.worker_protocol.task_running import RunBundle, RunnerReady
from elasticflow.shared.messages.worker_protocol.to_worker import ShowStacks

LARGE = RunBundle(bundle_id=1, tasks=((0, bytes(500_000)),))
NUM_LARGE = 20  # far more than a socket's buffer


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def test_messages_beyond_the_buffer_arrive_whole_and_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    channel = ProcessChannel(pair[0])
    for _ in range(NUM_LARGE):
        channel.send(LARGE)
    frames, received = FrameReader(RunBundle), list[RunBundle]()
    pair[1].setblocking(False)
    async with asyncio.timeout(60):
        while len(received) < NUM_LARGE:
            received += frames.feed(await asyncio.get_running_loop().sock_recv(pair[1], 65_536))
    assert received == [LARGE] * NUM_LARGE
    channel.close()
    channel.close()


async def test_the_last_messages_of_a_process_that_is_gone_are_read(pair: tuple[socket.socket, socket.socket]) -> None:
    channel = ProcessChannel(pair[0])
    channel.send(LARGE)  # never read
    pair[1].sendall(encode_frame(RunnerReady()))
    pair[1].close()
    channel.send(LARGE)
    channel.send(LARGE)
    assert list(FrameReader(RunnerReady).feed(await channel.receive())) == [RunnerReady()]
    assert await channel.receive() == b""
    channel.close()


async def test_a_message_that_is_too_large_is_an_error_of_the_sender(pair: tuple[socket.socket, socket.socket]) -> None:
    channel = ProcessChannel(pair[0])
    with pytest.raises(ValueError, match="is above"):
        channel.send(RunBundle(bundle_id=1, tasks=((0, bytes(2_000_000)),)))
    channel.close()


async def test_files_come_with_their_message_or_it_is_not_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    channel = ProcessChannel(pair[0])
    with tempfile.TemporaryFile() as file:
        assert channel.send_with_files(ShowStacks(), [file.fileno()])
        data, files, _, _ = socket.recv_fds(pair[1], 65_536, 4)
        assert list(FrameReader(ShowStacks).feed(data)) == [ShowStacks()]
        assert [os.fstat(each).st_ino for each in files] == [os.fstat(file.fileno()).st_ino]
        os.close(files[0])
        for _ in range(NUM_LARGE):
            channel.send(LARGE)
        assert not channel.send_with_files(ShowStacks(), [file.fileno()]), "it would pass the others"
        pair[1].close()
        assert not channel.send_with_files(ShowStacks(), [file.fileno()])
    channel.close()

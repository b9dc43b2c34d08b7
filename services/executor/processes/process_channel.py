"""The executor's end of the channel to one of its processes.

It reads to the end whatever happens to writes. asyncio's streams drop what they have not yet read when a write finds
that the process has ended; its last messages say why it ended.
"""

import asyncio
import socket

from elasticflow.shared.messages.worker_protocol.frames import ChannelMessage, encode_frame


class ProcessChannel:
    """sock: a connected stream socket, which belongs to this object from now on."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._is_writable = True

    def send(self, message: ChannelMessage) -> None:
        """Does not wait. No effect if the process is gone. Raises ValueError above MAX_FRAME_BYTES."""
        frame = encode_frame(message)
        if self._is_writable:
            waits = bool(self._unsent)
            self._unsent += frame
            if not waits:
                self._flush()

    async def receive(self) -> bytes:
        """The next bytes; empty at the end of the file."""
        await asyncio.sleep(0)  # a process that sends without end must not keep the event loop
        try:
            return await self._loop.sock_recv(self._socket, 65_536)
        except ConnectionError:  # the process ended with unread messages
            return b""

    def close(self) -> None:
        """Idempotent. Not during `receive`."""
        self._stop_writing()
        self._socket.close()

    def _flush(self) -> None:
        try:
            num_sent = self._socket.send(self._unsent)
        except BlockingIOError:
            num_sent = 0
        except OSError:  # the process is gone
            return self._stop_writing()
        del self._unsent[:num_sent]
        if self._unsent:
            return self._loop.add_writer(self._socket, self._flush)
        self._loop.remove_writer(self._socket)
        return None

    def _stop_writing(self) -> None:
        if self._is_writable:
            self._is_writable = False
            self._unsent.clear()
            self._loop.remove_writer(self._socket)

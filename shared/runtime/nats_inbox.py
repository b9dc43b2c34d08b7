"""Where messages of a subscription wait until somebody takes them, many at once."""

import asyncio
from collections import deque

from nats.aio.msg import Msg


class Inbox:
    """What has arrived on a subject and was not taken yet."""

    def __init__(self) -> None:
        self.messages: deque[Msg] = deque()
        self.closed = False
        self._something = asyncio.Event()

    async def on_message(self, message: Msg) -> None:
        self.messages.append(message)
        self._something.set()

    def wake(self) -> None:
        """Let a waiter look around, although nothing may have arrived."""
        self._something.set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Until something arrives, or has arrived since the last wait, or we are woken; False after timeout_s."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._something.wait()
        except TimeoutError:
            return False
        self._something.clear()
        return True


def status_of(message: Msg) -> str | None:
    """The status of a message that is one of the server's own words, None for others."""
    return message.headers.get("Status") if message.headers and not message.data else None

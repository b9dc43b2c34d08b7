"""A subscription of the bus in memory."""

from collections.abc import AsyncIterator, Callable

from elasticflow.shared.runtime.bus.contract import Message
from elasticflow.shared.runtime.bus.memory.broker import Listener
from elasticflow.shared.runtime.process.clock import Clock


class MemorySubscription:
    """See `bus.Subscription`. ignore: the client takes no more messages for this listener."""

    def __init__(self, listener: Listener, clock: Clock, ignore: Callable[[Listener], None]) -> None:
        self._listener = listener
        self._clock = clock
        self._ignore = ignore

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while not self._listener.messages:
            if self._listener.closed:
                raise StopAsyncIteration
            await self._listener.bell.wait(self._clock)
        return self._listener.take()

    async def close(self) -> None:
        self._ignore(self._listener)

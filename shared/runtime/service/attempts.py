"""How often replicas began to decide on a command and died: what kills one replica would kill the next one too.

The process that counts an attempt may not survive it, so the number is kept on the bus.
"""

from elasticflow.shared.messages.events import QueuePosition
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.streams import state_bucket

_KEPT_S = 86_400
_MAX_DIGITS = 9


class Attempts:
    """The attempts at the commands of one pool that were not survived. Each call raises Retry without a server."""

    def __init__(self, bus: Bus, pool: str) -> None:
        self._bus, self._bucket = bus, state_bucket(pool)

    async def begin(self, position: QueuePosition) -> int:
        """Count one more attempt. Returns the number of earlier ones."""
        value = await self._bus.get_value(self._bucket, _key(position))
        num_earlier = _number(value.data) if value is not None else 0
        await self._write(position, num_earlier + 1)
        return num_earlier

    async def survived(self, position: QueuePosition) -> None:
        """This attempt ended, so the command does no harm: no attempt at it counts any more."""
        await self._write(position, 0)

    async def _write(self, position: QueuePosition, number: int) -> None:
        await self._bus.put_value(self._bucket, _key(position), b"%d" % number, ttl_s=_KEPT_S)


def _number(data: bytes) -> int:
    """0 if the value is damaged: then a command may have more attempts, but no service ends."""
    return int(data) if data.isdigit() and len(data) <= _MAX_DIGITS else 0


def _key(position: QueuePosition) -> str:
    return f"attempts.{position.sequence}-{int(position.stored_at_s)}"

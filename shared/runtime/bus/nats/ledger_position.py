"""Does the ledger still hold what was read of it?

A server that lags behind seems to have a shorter one, and catches up. Only what its leader tells counts; in a cluster,
only if it stays so. Then messages are lost that NATS had acknowledged: no reader may continue, because what follows
would take the place of what it has folded.
"""

import asyncio

import structlog

from elasticflow.shared.errors import LedgerTruncated, Unavailable
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.bus.nats.jetstream_api import leader_info

CONFIRMED_AFTER_S = 5.0  # a leader that was paused believes for a moment that it still leads

log = structlog.get_logger()


class LedgerPosition:
    """Of one reader of a pool's ledger."""

    def __init__(self, connection: Connection, pool: str) -> None:
        self._connection, self._pool = connection, pool
        self._shorter_since_s: float | None = None

    async def is_held(self, sequence: int) -> bool:
        """Whether the ledger reaches this sequence; False: ask again. Raises LedgerTruncated, Unavailable."""
        try:
            info = await leader_info(self._connection, streams.ledger_stream(self._pool))
        except Unavailable:
            self._shorter_since_s = None
            raise
        end, now_s = info["state"]["last_seq"], asyncio.get_running_loop().time()
        if end >= sequence:
            self._shorter_since_s = None
            return True
        if self._shorter_since_s is None:
            self._shorter_since_s = now_s
        is_replicated = bool(info.get("cluster", {}).get("replicas"))
        if not is_replicated or now_s - self._shorter_since_s >= CONFIRMED_AFTER_S:
            raise LedgerTruncated(self._pool, sequence, end)
        log.warning("LedgerSeemsTruncated", pool=self._pool, read=sequence, end=end, leader=info["cluster"]["leader"])
        return False

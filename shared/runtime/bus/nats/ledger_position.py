"""Does the ledger still hold what was read of it, and what its leader counts?

A server that lags behind seems to have a shorter one, and catches up. Only what its leader tells counts; in a cluster,
only if it stays so. Then messages are lost that NATS had acknowledged: no reader may continue, because what follows
would take the place of what it has folded.
A server with a damaged file counts messages that it cannot read. It delivers none of them and says nothing.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from elasticflow.shared.errors import LedgerBroken, LedgerTruncated, Unavailable
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.bus.nats.jetstream_api import first_readable, leader_info

CONFIRMED_AFTER_S = 5.0  # a leader that was paused believes for a moment that it still leads

log = structlog.get_logger()


class LedgerPosition:
    """Of one reader of a pool's ledger."""

    def __init__(self, connection: Connection, pool: str) -> None:
        self._connection, self._pool = connection, pool
        self._shorter_since_s: float | None = None
        self._is_reached = False  # the end that the ledger had at some moment
        self._unreadable_since_s: float | None = None

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
        if not _is_replicated(info) or now_s - self._shorter_since_s >= CONFIRMED_AFTER_S:
            raise LedgerTruncated(self._pool, sequence, end)
        log.warning("LedgerSeemsTruncated", pool=self._pool, read=sequence, end=end, leader=info["cluster"]["leader"])
        return False

    async def check_readable(self, last: int, *, directly: bool = False) -> None:
        """Compare the last message that was read with the end, until the reader has come there once.

        For a reader that gets nothing more. directly: it may not ask the leader for messages, and so it believes a
        server only if there is no other one. Raises LedgerBroken if the next message cannot be read, Unavailable.
        """
        if self._is_reached:
            return
        stream = streams.ledger_stream(self._pool)
        info = await leader_info(self._connection, stream)
        end = info["state"]["last_seq"]
        self._is_reached = end <= last
        if self._is_reached or (directly and _is_replicated(info)):
            return
        found = await first_readable(self._connection, stream, last + 1, directly=directly) or end + 1
        if found == last + 1:
            self._unreadable_since_s = None
            return
        now_s = asyncio.get_running_loop().time()
        if self._unreadable_since_s is None:
            self._unreadable_since_s = now_s
        # a new leader may not have applied yet what the old one has counted
        if not _is_replicated(info) or now_s - self._unreadable_since_s >= CONFIRMED_AFTER_S:
            raise LedgerBroken(self._pool, last + 1, found)


def _is_replicated(info: Mapping[str, Any]) -> bool:
    return bool(info.get("cluster", {}).get("replicas"))

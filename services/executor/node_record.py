"""The record of this node on the bus: its last heartbeat. One executor at a time writes it.

Each write is a compare-and-set, and NATS acknowledges it once a majority of its servers has stored it. So neither a
stale leader nor a second executor of the same node id can extend a lease. The first heartbeat of an incarnation claims
the record: it waits until the workers of the executor that wrote the record before have no lease any more.
"""

from collections.abc import Callable

from elasticflow.shared.errors import BadSettings, WrongExpectedSequence
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.events import NodeFenced, NodeReported
from elasticflow.shared.messages.timeouts import takeover_s
from elasticflow.shared.runtime.bus.contract import Bus, Value
from elasticflow.shared.runtime.bus.streams import node_bucket

_MAX_FOREIGN_WRITES = 1  # during a claim: a heartbeat that was on its way when its executor ended


class NodeRecord:
    """run_id: of this executor. previous_run_id: of the executor before it on this machine, whose workers have
    ended; "" if unknown. boot_s: the clock of the leases.
    """

    def __init__(
        self, bus: Bus, pool: str, node_id: str, *, run_id: str, previous_run_id: str, boot_s: Callable[[], float]
    ) -> None:
        self._bus, self._bucket, self._node_id, self._boot_s = bus, node_bucket(pool), node_id, boot_s
        self._ended_run_ids = {run_id, previous_run_id} - {""}
        self._incarnation = ""  # the claimed one
        self.replaced = ""  # the incarnation whose heartbeat its first one has replaced, sent at replaced_heard_s
        self.replaced_heard_s: float | None = None
        self._revision = 0
        self._is_uncertain = False  # whether the last heartbeat was stored
        self._foreign_data = b""
        self._foreign_since_s = 0.0
        self._num_foreign_writes = 0

    def num_replies(self, incarnation: str) -> int:
        """Of the bus, that `store` waits for: one, unless it must read the record first."""
        return 2 if self._is_uncertain or incarnation != self._incarnation else 1

    async def store(self, heartbeat: NodeReported) -> bool:
        """Whether the heartbeat is stored. False: another executor's workers may run, or this incarnation is over.

        Raises BadSettings if another executor of this node id is alive, and Retry.
        """
        data = codec.encode(heartbeat, id="", recorded_at_s=heartbeat.at_s)
        try:
            if heartbeat.incarnation == self._incarnation:
                return await self._renew(data)
            return await self._claim(heartbeat, data)
        except WrongExpectedSequence:
            return False

    async def _renew(self, data: bytes) -> bool:
        if self._is_uncertain:
            record = await self._read()
            message = _message(record)
            if record is None or not isinstance(message, NodeReported) or message.incarnation != self._incarnation:
                return False
            self._revision = record.revision
        await self._write(data, self._revision)
        return True

    async def _claim(self, heartbeat: NodeReported, data: bytes) -> bool:
        record = await self._read()
        if record is not None and not self._has_ended(record, heartbeat.lease_s):
            return False
        message = _message(record)
        await self._write(data, record.revision if record is not None else 0)
        self._incarnation = heartbeat.incarnation
        self.replaced, self.replaced_heard_s = "", None
        if isinstance(message, NodeReported):
            self.replaced, self.replaced_heard_s = message.incarnation, message.at_s
        return True

    def _has_ended(self, record: Value, lease_s: float) -> bool:
        """Whether no worker of the executor that wrote this record runs. lease_s: if the record does not tell."""
        message = _message(record)
        if isinstance(message, NodeFenced):
            return True
        if isinstance(message, NodeReported):
            if message.incarnation.rpartition("-")[0] in self._ended_run_ids:
                return True
            lease_s = message.lease_s
        if record.data != self._foreign_data:  # the monitor may write the same again: that extends no lease
            self._num_foreign_writes += self._foreign_data != b""
            if self._num_foreign_writes > _MAX_FOREIGN_WRITES:
                problem = "another executor of this name is alive: stop it, or give this one another name"
                raise BadSettings((f"EF_NODE_ID={self._node_id!r}: {problem}",))
            self._foreign_data, self._foreign_since_s = record.data, self._boot_s()
        return self._boot_s() - self._foreign_since_s > takeover_s(lease_s)

    async def _read(self) -> Value | None:
        return await self._bus.get_value(self._bucket, self._node_id)

    async def _write(self, data: bytes, expected_revision: int) -> None:
        self._is_uncertain = True
        self._revision = await self._bus.put_value(
            self._bucket, self._node_id, data, expected_revision=expected_revision
        )
        self._is_uncertain = False


def _message(record: Value | None) -> codec.Message | None:
    """The message in the record; None without a record, or if it is unreadable."""
    return codec.message_or_none(record.data) if record is not None else None

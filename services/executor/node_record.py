"""The record of this node on the bus: its last heartbeat. One executor at a time writes it.

Each write is a compare-and-set, and NATS acknowledges it once a majority of its servers has stored it. So neither a
stale leader nor a second executor of the same node id can extend a lease. The first heartbeat of an incarnation claims
the record: it waits until the workers of the executor that wrote the record before have no lease any more.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from elasticflow.services.executor.decisions.state import NodeSpecification
from elasticflow.services.executor.processes.worker_isolation import WorkerIsolation
from elasticflow.services.executor.settings import ExecutorSettings
from elasticflow.shared.errors import BadSettings, WrongExpectedSequence
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.events import NodeFenced, NodeReported
from elasticflow.shared.messages.timeouts import takeover_s
from elasticflow.shared.runtime.bus.contract import Bus, Value
from elasticflow.shared.runtime.bus.streams import node_bucket
from elasticflow.shared.runtime.process.clock import boot_id, fresh_id, started_by
from elasticflow.shared.runtime.process.files import keep_token

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


# --- The name of a data folder, by which nodes say whether they share one ------------------------------

FILE_NAME = "folder.id"


def data_folder_name(data_dir: Path) -> str:
    """Made once, by the first executor on the folder; "" where it cannot be kept or read."""
    file = data_dir / FILE_NAME
    with contextlib.suppress(OSError):
        keep_token(file)
        found = re.match("[0-9a-f]{16}", file.read_text(errors="replace"))
        return found[0] if found else ""
    return ""


# --- node identity -------------------------------------------------------------------------------------
# What a node says of itself to the pool, and the lock that lets one executor of a machine have its name.


def node_specification_of(
    settings: ExecutorSettings, data_dir: Path, isolation: WorkerIsolation, workers_secret: str
) -> NodeSpecification:
    return NodeSpecification(
        node_id=settings.node_id,
        run_id=fresh_id(),
        num_gpus=settings.num_gpus,
        device=settings.device,
        advertise_host=settings.advertise_host,
        sockets=settings.sockets,
        rack=settings.rack,
        until_s=settings.until_s,
        gpu_type=settings.gpu_type,
        gpu_memory_bytes=settings.gpu_memory_bytes,
        cpu_share=settings.cpu_share,
        data_dir=str(data_dir),
        stores_artifacts=True,
        stop_grace_s=settings.stop_grace_s,
        memory_limit_bytes=settings.job_memory_bytes,
        isolation=isolation.kind,
        workers_secret=workers_secret,
        unenforced=isolation.missing,
        started_by=started_by(),
        data_folder=data_folder_name(data_dir),
    )


@contextlib.contextmanager
def only_executor(data_dir: Path, specification: NodeSpecification) -> Iterator[str]:
    """Lock the node's name on this machine; yield the run id of the executor that held the lock before, if it ran
    here since the machine was started, else "". Raises BadSettings if a running executor holds the lock."""
    folder = data_dir / "services"
    folder.mkdir(parents=True, exist_ok=True)
    node_id = specification.node_id
    lock = os.open(folder / f"executor-{node_id}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"EF_NODE_ID={node_id!r}: an executor of this name already runs here"
            raise BadSettings(problems=(problem,)) from None
        run_id, _, machine = os.pread(lock, 200, 0).decode(errors="replace").partition(" ")
        previous_run_id = run_id if machine == boot_id() else ""
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{specification.run_id} {boot_id()}".encode(), 0)
        yield previous_run_id
    finally:
        os.close(lock)

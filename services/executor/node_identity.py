"""What a node says of itself to the pool, and the lock that lets one executor of a machine have its name."""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from elasticflow.services.executor.decisions.state import NodeSpecification
from elasticflow.services.executor.processes.worker_isolation import WorkerIsolation
from elasticflow.services.executor.settings import ExecutorSettings
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.runtime.process.clock import boot_id, fresh_id, started_by
from elasticflow.shared.runtime.process.files import keep_token

FILE_NAME = "folder.id"  # names the data folder: nodes that share one say the same


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
        copies_checkpoints=bool(settings.checkpoint_store),
        stop_grace_s=settings.stop_grace_s,
        memory_limit_bytes=settings.job_memory_bytes,
        isolation=isolation.kind,
        workers_secret=workers_secret,
        unenforced=isolation.missing,
        started_by=started_by(),
        data_folder=data_folder_name(data_dir),
        separates_gpus=isolation.separates_gpus,
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


def data_folder_name(data_dir: Path) -> str:
    """Made once, by the first executor on the folder; "" where it cannot be kept or read."""
    file = data_dir / FILE_NAME
    with contextlib.suppress(OSError):
        keep_token(file)
        found = re.match("[0-9a-f]{16}", file.read_text(errors="replace"))
        return found[0] if found else ""
    return ""

"""The executor process of a node with CPU slots."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from elasticflow.services.executor.processes.fork_server_client import marked_processes, wait_until_gone

ROOT = Path(__file__).parents[2]


@contextmanager
def executor_process(
    nats_url: str,
    pool: str,
    data_dir: Path,
    node_id: str,
    *,
    slots: int = 2,
    cpu_share: str = "1",
    isolation: str = "none",
    until_notice: str = "",
    stderr: int | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[subprocess.Popen[bytes]]:
    """pytest shows its output if the test fails."""
    settings = {
        "NATS_URL": nats_url,
        "EF_POOL": pool,
        "EF_DATA_DIR": str(data_dir),
        "EF_NODE_ID": node_id,
        "EF_DEVICE": "cpu",
        "EF_SLOTS": str(slots),
        "EF_CPU_SHARE": cpu_share,
        "EF_ISOLATION": isolation,
        "EF_UNTIL_NOTICE": until_notice,
        "EF_DIE_WITH_PARENT": "1",
        **environment,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "elasticflow.services.executor"], cwd=ROOT, env=os.environ | settings, stderr=stderr
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        left = marked_processes({"EF_NODE_ID": node_id, "EF_DATA_DIR": str(data_dir)})
        wait_until_gone([worker.pid for worker in left if worker.pid != process.pid])

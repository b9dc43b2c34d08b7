"""The names of all variables EF_...: one that is nearly such a name is a slip, and is refused instead of ignored."""

import difflib
from collections.abc import Mapping

from elasticflow.shared.errors import BadSettings

# All that processes of a pool, commands and deploy/compose.yaml read. Other names may belong to other programs.
_NAMES = """
    ADVERTISE_HOST ARCHIVES ARTIFACTS ARTIFACT_STORE CALLED_AS CGROUP CHECKPOINT_STORE CPU_SHARE DATA_DIR DATA_FOLDERS
    DATA_INTERFACE DEVICE DIE_WITH_PARENT FORK_SERVER GPU_MEMORY_BYTES GPU_TYPE GPU_SLOTS GPUS_PER_REPLICA INSTANCE
    ISOLATION JOB_MEMORY_BYTES KEYS_DIR LOG_FORMAT LOG_LEVEL METRICS_HOST METRICS_PORT NATS_CA NATS_CERT NATS_CREDS
    NATS_KEY NODE_ID NODE_UNTIL NOTICE_ADDRESS POOL PRELOAD RACK REPLICAS SCRIPT_PROCESS SECRETS_DIR SECRETS_KEY
    SHOWN_GPUS SLOTS SLOTS_OF_GPU SOCKETS STOP_GRACE_S TENANT UNTIL_NOTICE WARM_WORKERS WEBHOOK_URL WORKER
    WORKERS_SECRET_FILE
"""
VARIABLES = tuple(f"EF_{name}" for name in _NAMES.split())
_IN_WORKER = "EF_WORKER"  # a job names its data there
_CLOSE = 0.8


def check_names(environment: Mapping[str, str]) -> None:
    """Raises BadSettings for each variable whose name is nearly that of a setting: it would be ignored."""
    given = [name for name in environment if name.startswith("EF_") and name not in VARIABLES]
    if not given or _IN_WORKER in environment:
        return
    close = {name: difflib.get_close_matches(name, VARIABLES, n=1, cutoff=_CLOSE) for name in sorted(given)}
    problems = [f"{name}: no setting has this name; did you mean {near[0]}?" for name, near in close.items() if near]
    if problems:
        raise BadSettings(problems=tuple(problems))

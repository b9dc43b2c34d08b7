"""The processes that `eflow up` runs on this machine, and the environment of each."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from elasticflow.client.pool_endpoint import DEFAULT_POOL
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.process.local_hardware import (
    CPU_SLOTS_PART_OF_CORES,
    memory_bytes,
    num_cores,
    slot_memory_bytes,
    visible_gpus,
)
from elasticflow.shared.runtime.process.secret_sealing import FILE_NAME

DECIDERS = ("admission", "allocator", "placement")
REPLICABLE = (*DECIDERS, "monitor")


class PlannedProcess(NamedTuple):
    name: str
    service: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """nats_url: an external server, "" for our own. stream_replicas: more than 1 needs a cluster."""

    data_dir: Path
    pool: str = DEFAULT_POOL
    num_nodes: int | None = None  # None: depends on the machine
    slots_per_node: int | None = None
    device: str = "auto"
    replicas: Mapping[str, int] = field(default_factory=dict[str, int])
    config: PoolConfig | None = None  # None: unchanged
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])  # single settings that override config
    nats_url: str = ""
    nats_host: str = "127.0.0.1"
    nats_port: int = 0
    stream_replicas: int = 1

    @property
    def secrets_file(self) -> Path:
        """The private key for secrets of jobs, of a pool with a server of its own."""
        return self.data_dir / "secrets.key"

    @property
    def workers_secret_file(self) -> Path:
        """The secret by which workers know each other. Executors find it in their data folder."""
        return self.data_dir / FILE_NAME

    def nodes(self) -> tuple[dict[str, str], ...]:
        """The environment that only its executor gets, for each node of this machine."""
        wanted = {"EF_DEVICE": self.device} if self.device != "auto" else {}
        environment = {**os.environ, **wanted}
        gpus = () if environment.get("EF_DEVICE") == "cpu" else tuple(gpu.name for gpu in visible_gpus(environment))
        nodes = node_environments(self.num_nodes, self.slots_per_node, gpus=gpus)
        return tuple({**node, **wanted} for node in nodes)

    def processes(self, url: str, own_nodes: Sequence[Mapping[str, str]]) -> Iterator[PlannedProcess]:
        """Services with their replicas, then an executor for each node. url: NATS server."""
        for service in REPLICABLE:
            count = self.replicas.get(service, 1)
            for index in range(count):
                name = service if count == 1 else f"{service}-{index}"
                yield self._process(name, service, url, {})
        for own in own_nodes:
            if not self.nats_url:
                own = {**own, "EF_SECRETS_KEY": str(self.secrets_file)}
            yield self._process(f"executor-{own['EF_NODE_ID']}", "executor", url, own)

    def _process(self, name: str, service: str, url: str, own: Mapping[str, str]) -> PlannedProcess:
        environment = {
            **os.environ,
            "NATS_URL": url,
            "EF_POOL": self.pool,
            "EF_REPLICAS": str(self.stream_replicas),
            "EF_DATA_DIR": str(self.data_dir),
            "EF_INSTANCE": name,
            "EF_DIE_WITH_PARENT": "1",
            **own,
        }
        return PlannedProcess(name, service, environment)


CPU_NODES, CPU_SLOTS = 2, 4  # default: a laptop behaves like a small cluster


def node_environments(
    num_nodes: int | None,
    slots_per_node: int | None,
    *,
    gpus: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
) -> tuple[dict[str, str], ...]:
    """The environment of each node's executor. None: depends on the machine.

    Raises BadSettings if there are GPUs, but fewer than nodes, if a node's slots are no equal parts of its GPUs, or if
    EF_CPU_SHARE is no number.
    """
    environment = os.environ if environment is None else environment
    if gpus:
        return _gpu_nodes(num_nodes, slots_per_node, gpus)
    num_nodes = CPU_NODES if num_nodes is None else num_nodes
    slots = slots_per_node or CPU_SLOTS
    share = CPU_SLOTS_PART_OF_CORES * num_cores() / max(1, num_nodes * slots)
    given = environment.get("EF_CPU_SHARE") or f"{min(1.0, share):.4g}"
    try:
        float(given)
    except ValueError:
        raise BadSettings((f"EF_CPU_SHARE={given}: must be a number of cores, such as 0.2",)) from None
    own = {
        "EF_SLOTS": str(slots),
        "EF_CPU_SHARE": given,
        "EF_JOB_MEMORY_BYTES": environment.get("EF_JOB_MEMORY_BYTES")
        or str(slot_memory_bytes(memory_bytes(), max(1, num_nodes * slots))),
    }
    return tuple({"EF_NODE_ID": f"node-{index}", **own} for index in range(num_nodes))


def _gpu_nodes(num_nodes: int | None, slots_per_node: int | None, gpus: tuple[str, ...]) -> tuple[dict[str, str], ...]:
    """Nodes with as many GPUs each. More slots than GPUs are equal parts of each GPU, as an executor has them."""
    num_nodes = 1 if num_nodes is None else num_nodes
    most = len(gpus) // max(1, num_nodes)
    if not most:
        raise BadSettings(
            (f"{num_nodes} nodes are more than the {len(gpus)} GPUs here: choose fewer, or --device cpu",)
        )
    slots = slots_per_node or most
    used = min(slots, most)
    if slots % used:
        raise BadSettings(
            (
                f"--slots {slots}: must be at most {most}, the number of GPUs of each node, or a multiple of it: equal "
                "parts of each GPU",
            )
        )
    return tuple(
        {
            "EF_NODE_ID": f"node-{index}",
            "EF_SLOTS": str(slots),
            "CUDA_VISIBLE_DEVICES": ",".join(gpus[index * used : (index + 1) * used]),
        }
        for index in range(num_nodes)
    )

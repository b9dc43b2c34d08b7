"""The processes that `eflow up` runs on this machine, and the environment of each."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from elasticflow.client.pool_endpoint import DEFAULT_POOL
from elasticflow.local.machine import node_environments
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.process.local_hardware import visible_gpus

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

    def nodes(self) -> tuple[dict[str, str], ...]:
        """For each node of this machine, the environment that only its executor gets."""
        wanted = {"EF_DEVICE": self.device} if self.device != "auto" else {}
        environment = {**os.environ, **wanted}
        gpus = () if environment.get("EF_DEVICE") == "cpu" else visible_gpus(environment)
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

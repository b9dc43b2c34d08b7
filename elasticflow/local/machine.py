"""The nodes of this machine: its GPUs if it has any, else equal shares of its cores."""

import os
from collections.abc import Mapping

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.runtime.process.local_hardware import CPU_SLOTS_PART_OF_CORES, num_cores

CPU_NODES, CPU_SLOTS = 2, 4  # default: a laptop behaves like a small cluster


def node_environments(
    num_nodes: int | None,
    slots_per_node: int | None,
    *,
    gpus: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
) -> tuple[dict[str, str], ...]:
    """The environment of each node's executor. None: depends on the machine.

    Raises BadSettings if there are GPUs, but fewer than requested.
    """
    environment = os.environ if environment is None else environment
    if gpus:
        return _gpu_nodes(num_nodes, slots_per_node, gpus)
    num_nodes = CPU_NODES if num_nodes is None else num_nodes
    slots = slots_per_node or CPU_SLOTS
    share = CPU_SLOTS_PART_OF_CORES * num_cores() / max(1, num_nodes * slots)
    own = {
        "EF_SLOTS": str(slots),
        "EF_CPU_SHARE": environment.get("EF_CPU_SHARE") or f"{min(1.0, share):.4g}",
    }
    return tuple({"EF_NODE_ID": f"node-{index}", **own} for index in range(num_nodes))


def _gpu_nodes(
    num_nodes: int | None, slots_per_node: int | None, gpus: tuple[str, ...]
) -> tuple[dict[str, str], ...]:
    num_nodes = 1 if num_nodes is None else num_nodes
    slots = slots_per_node or len(gpus) // max(1, num_nodes)
    if num_nodes * slots > len(gpus) or (num_nodes and not slots):
        raise BadSettings(
            (
                f"{num_nodes} nodes of {max(1, slots)} GPUs are more than the {len(gpus)} GPUs here; "
                "choose fewer, or --device cpu",
            )
        )
    return tuple(
        {
            "EF_NODE_ID": f"node-{index}",
            "EF_SLOTS": str(slots),
            "CUDA_VISIBLE_DEVICES": ",".join(gpus[index * slots : (index + 1) * slots]),
        }
        for index in range(num_nodes)
    )

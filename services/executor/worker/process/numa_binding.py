"""Runs a worker on the cores of its GPU's NUMA node: copies from other nodes' memory are slower, and disturb others."""

import os
from pathlib import Path

import structlog

log = structlog.get_logger()


def bind_to_numa_node(pci_address: str, system: Path = Path("/sys")) -> None:
    """For this thread and those that it starts; readers inherit it. Cores that the process may not use stay unused.

    pci_address: of the GPU, as "0000:3b:00.0". No effect on machines with one NUMA node or an unknown one.
    """
    nodes = list(system.glob("devices/system/node/node[0-9]*"))
    gpu = system / "bus/pci/devices" / pci_address
    try:
        node, cores = int((gpu / "numa_node").read_text()), _cores((gpu / "local_cpulist").read_text())
    except (OSError, ValueError):  # the kernel does not show it, for example in a container
        return
    usable = cores & os.sched_getaffinity(0)
    if len(nodes) < 2 or node < 0:
        return
    if not usable:
        log.warning(
            "gpu_is_on_another_numa_node",
            numa_node=node,
            cores=sorted(cores),
            advice="let the executor use some of these cores, or leave the GPU out of its CUDA_VISIBLE_DEVICES",
        )
        return
    os.sched_setaffinity(0, usable)
    log.info("bound_to_numa_node", numa_node=node, num_cores=len(usable))


def _cores(listed: str) -> set[int]:
    """Those of the kernel's list, for example "0-15,32-47"."""
    cores: set[int] = set()
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores

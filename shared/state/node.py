"""What the ledger says of one node and its GPUs, folded."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGpu:
    """A GPU on which a worker was slower than its peers. It counts as slow for `PoolConfig.slow_gpu_s`.

    slowdown: the worker's time for equal work, divided by the median of its peers'.
    job_id, generation: of the report.
    """

    gpu_index: int
    slowdown: float
    job_id: str
    generation: int
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node, as last reported by its executor and the monitor."""

    node_id: str
    incarnation: str
    num_gpus: int
    device: str
    alive: bool
    since_s: float
    left: bool = False  # its executor deregistered it
    sockets: int = 1
    rack: str = ""
    slow_gpus: tuple[SlowGpu, ...] = ()  # some may have expired
    earlier_incarnations: tuple[str, ...] = ()  # newest first; their repeated joins are ignored

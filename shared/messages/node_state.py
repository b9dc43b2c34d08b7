"""What the ledger says of one node and its GPUs, folded."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGpu:
    """A GPU on which a worker was slower than its peers; it counts as slow for `PoolConfig.slow_gpu_s`.

    slowdown: its time for as many samples, by the median of theirs. Of which job and generation that was said.
    """

    gpu_index: int
    slowdown: float
    job_id: str
    generation: int
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node, as its executor and the monitor last said."""

    node_id: str
    incarnation: str
    num_gpus: int
    device: str
    alive: bool
    since_s: float
    left: bool = False  # it said good-bye
    sockets: int = 1
    rack: str = ""
    slow_gpus: tuple[SlowGpu, ...] = ()  # for some, the time may be over
    earlier_incarnations: tuple[str, ...] = ()  # newest first: their joining, told again, is old news

"""What torchrun tells its workers in their environment, from where the workers of a generation sit. Pure."""
# pyright: strict

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.messages.to_worker import Assignment

_FOR_EVER = 2**31 - 1  # restarts: whether to go on is not the script's to know


class Seat(NamedTuple):
    node_id: str
    gpu_index: int  # on its node


def environment(
    assignment: Assignment,
    seats: Sequence[Seat],
    address: str,
    inherited: Mapping[str, str] = os.environ,
    *,
    sees_all_gpus: bool = False,
) -> dict[str, str]:
    """seats: of all workers, by rank. address: host:port of the store of rank 0, with which a worker that is alone does
    not reckon.

    The script numbers the GPUs of its node from 0, and sees no others; unless CUDA is up already, in a warm worker:
    sees_all_gpus, and its local rank is the number of its GPU.
    """
    host, _, port = address.rpartition(":")
    rank, world_size = assignment.rank, len(seats)
    nodes = list(dict.fromkeys(seat.node_id for seat in seats))
    local = [r for r, seat in enumerate(seats) if seat.node_id == seats[rank].node_id]
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": seats[rank].gpu_index if sees_all_gpus else local.index(rank),
        "LOCAL_WORLD_SIZE": len(local),
        "GROUP_RANK": nodes.index(seats[rank].node_id),
        "GROUP_WORLD_SIZE": len(nodes),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_PORT": int(port),
        "TORCHELASTIC_RESTART_COUNT": max(assignment.generation - 1, 0),
        "TORCHELASTIC_MAX_RESTARTS": _FOR_EVER,
    }
    words = {
        "MASTER_ADDR": host,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": assignment.job_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(world_size > 1),
    }
    if assignment.device == "cpu":
        words["CUDA_VISIBLE_DEVICES"] = ""
    elif not sees_all_gpus:
        words["CUDA_VISIBLE_DEVICES"] = _visible([seats[r].gpu_index for r in local], inherited)
    return {name: str(number) for name, number in numbers.items()} | words


def _visible(gpu_indices: Sequence[int], inherited: Mapping[str, str]) -> str:
    """As CUDA names them, where the executor itself sees but some."""
    names = inherited.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return ",".join(names[i] if i < len(names) and names[i] else str(i) for i in gpu_indices)

"""Where the process groups of users' code meet: at the job's own rendezvous, whatever address the code names.

Scripts set MASTER_PORT or an address in `init_process_group` for one job on a machine. Here several workers share it,
and its ports. A number of processes or a rank that is not the job's is refused.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export all of them)

import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers

from elasticflow.services.executor.worker.steps.training_function import TrainingFailed

_Met = Iterator[tuple[dist.Store, int, int]]
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


def use_own_rendezvous(environment: Mapping[str, str]) -> None:
    """From now on, in this process. environment: what the worker sets for the code; RANK and WORLD_SIZE included."""
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    of_torch = _rendezvous_handlers["env"]

    def meet(url: str, **options: Any) -> _Met:
        asked = dict(parse_qsl(urlparse(url).query))
        asked_rank = asked.get("rank", os.environ.get("RANK"))
        asked_size = asked.get("world_size", os.environ.get("WORLD_SIZE"))
        if asked_rank is None or asked_size is None:
            yield from of_torch(url, **options)  # its error names what is missing
        elif int(asked_size) == 1:
            yield dist.HashStore(), 0, 1
        elif int(asked_size) != size:
            raise TrainingFailed(_other_size(int(asked_size), size))
        elif int(asked_rank) != rank:
            raise TrainingFailed(
                f"init_process_group(rank={asked_rank}) in the worker of rank {rank}: leave rank and world_size out, "
                'or pass int(os.environ["RANK"]) and int(os.environ["WORLD_SIZE"])'
            )
        else:
            os.environ.update({name: environment[name] for name in _ADDRESS})
            yield from of_torch(f"env://?rank={rank}&world_size={size}", **options)

    for scheme in ("env", "tcp", "file"):
        _rendezvous_handlers[scheme] = meet


def _other_size(asked: int, size: int) -> str:
    sees = "one process, because the job sums gradients by itself" if size == 1 else f"{size} processes now"
    return (
        f"init_process_group(world_size={asked}): the code sees {sees}, and the number of workers changes. Leave rank "
        'and world_size out, or pass int(os.environ["RANK"]) and int(os.environ["WORLD_SIZE"])'
    )

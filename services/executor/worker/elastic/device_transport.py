"""Which transport moves the tensors of a group's device."""
# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

import threading
from collections.abc import Sequence
from enum import Enum
from itertools import combinations

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.elastic.device_identity import DeviceIdentity, share_a_gpu
from elasticflow.services.executor.worker.elastic.gloo_transport import GlooTransport
from elasticflow.services.executor.worker.elastic.nccl_problems import one_line, warn_of_nccl
from elasticflow.services.executor.worker.elastic.nccl_transport import NcclTransport
from elasticflow.services.executor.worker.elastic.peer_loss import PeerLost
from elasticflow.services.executor.worker.elastic.staged_transport import StagedTransport
from elasticflow.services.executor.worker.elastic.transport import Transport
from elasticflow.services.executor.worker.process.device import is_out_of_memory
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed


class Route(Enum):
    """By which tensors of the device travel between workers: the same for all workers of a group."""

    HOST = "gloo; a worker on a GPU copies from and to the host"
    NCCL = "between the GPUs"


def route_between(identities: Sequence[DeviceIdentity]) -> Route:
    """identities: of all workers. Raises TrainingFailed if they need NCCL and one of them lacks it."""
    kinds = {each.kind for each in identities}
    if kinds != {"cuda"} or any(share_a_gpu(one, other) for one, other in combinations(identities, 2)):
        return Route.HOST
    if lacking := [rank for rank, each in enumerate(identities) if not each.has_nccl]:
        raise TrainingFailed(
            f"torch {torch.__version__} of rank {lacking[0]} has no NCCL, by which {len(identities)} workers on GPUs "
            "exchange tensors: install torch's build for CUDA on Linux on its node, or limit the job to one GPU "
            "(--max-gpus 1)"
        )
    return Route.NCCL


def device_transport(
    gloo: GlooTransport,
    store: dist.Store,
    rank: int,
    size: int,
    *,
    device: torch.device,
    identities: Sequence[DeviceIdentity],
    timeout_s: float,
    aborted: threading.Event,
    collective_timeout_s: float | None = None,
) -> Transport:
    """A collective of all workers, whose identities decide alike on each of them.

    timeout_s: to connect. collective_timeout_s: of NCCL's calls afterwards; None: as long. Raises RendezvousAborted;
    PeerLost if NCCL does not connect; TrainingFailed if torch lacks it.
    """
    if route_between(identities) is Route.HOST:
        return gloo if identities[rank].kind == "cpu" else StagedTransport(gloo, device)
    try:
        return NcclTransport(
            store,
            rank,
            size,
            device=device,
            timeout_s=timeout_s,
            aborted=aborted,
            collective_timeout_s=collective_timeout_s,
        )
    except (TimeoutError, RuntimeError) as error:
        if not isinstance(error, TimeoutError | dist.DistError) and not is_out_of_memory(error):
            raise
        warn_of_nccl(reason := one_line(str(error)))
        raise PeerLost(reason) from error

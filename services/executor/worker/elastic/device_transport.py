"""Which transport moves the tensors of a group's device."""
# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

import threading

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.elastic.data_interface import warn_unconnected
from elasticflow.services.executor.worker.elastic.gloo_transport import GlooTransport
from elasticflow.services.executor.worker.elastic.nccl_transport import NcclTransport
from elasticflow.services.executor.worker.elastic.peer_loss import PeerLost
from elasticflow.services.executor.worker.elastic.staged_transport import StagedTransport
from elasticflow.services.executor.worker.elastic.transport import Transport
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed


def device_transport(
    gloo: GlooTransport,
    store: dist.Store,
    rank: int,
    size: int,
    *,
    device: torch.device,
    timeout_s: float,
    aborted: threading.Event,
) -> Transport:
    """A collective of all workers: NCCL, or copies through the host where two workers share a GPU; gloo on CPU slots.

    Raises RendezvousAborted; PeerLost if NCCL does not connect in time; TrainingFailed if torch lacks it.
    """
    if device.type == "cpu":
        return gloo
    if _share_a_gpu(gloo, device):
        return StagedTransport(gloo, device)
    if not dist.is_nccl_available():
        raise TrainingFailed(
            f"torch {torch.__version__} has no NCCL, by which {size} workers on GPUs exchange tensors: install torch's "
            "build for CUDA on Linux on this node, or limit the job to one GPU (--max-gpus 1)"
        )
    try:
        return NcclTransport(store, rank, size, device=device, timeout_s=timeout_s, aborted=aborted)
    except TimeoutError as error:
        warn_unconnected("nccl", str(error))
        raise PeerLost(str(error)) from error


def _share_a_gpu(gloo: GlooTransport, device: torch.device) -> bool:
    """Whether two workers name the same GPU, or the same part of one."""
    mine = torch.cuda.get_device_properties(device).uuid.bytes
    of_all = gloo.all_gather(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
    return len({bytes(theirs.tolist()) for theirs in of_all}) < len(of_all)

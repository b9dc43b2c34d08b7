"""Which transport moves the tensors of a group's device."""
# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.elastic.data_interface import warn_unconnected
from elasticflow.services.executor.worker.elastic.gloo_transport import GlooTransport
from elasticflow.services.executor.worker.elastic.nccl_transport import NcclTransport
from elasticflow.services.executor.worker.elastic.peer_loss import PeerLost
from elasticflow.services.executor.worker.elastic.staged_transport import StagedTransport
from elasticflow.services.executor.worker.elastic.transport import Transport
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed

NO_GPU = bytes(16)


def device_transport(
    gloo: GlooTransport,
    store: dist.Store,
    rank: int,
    size: int,
    *,
    device: torch.device,
    gpus: Sequence[bytes],
    timeout_s: float,
    aborted: threading.Event,
) -> Transport:
    """A collective of all workers: NCCL; gloo on CPU slots; copies through the host on GPUs beside CPU slots, or where
    two workers share a GPU.

    gpus: of all workers, by rank, as in `gpu_of`.
    Raises RendezvousAborted; PeerLost if NCCL does not connect in time; TrainingFailed if torch lacks it.
    """
    if device.type == "cpu":
        return gloo
    if NO_GPU in gpus or len(set(gpus)) < len(gpus):
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


def gpu_of(device: torch.device | None) -> bytes:
    """Names the GPU of a worker, or the part of one; `NO_GPU` for a CPU slot."""
    if device is None or device.type == "cpu":
        return NO_GPU
    return torch.cuda.get_device_properties(device).uuid.bytes

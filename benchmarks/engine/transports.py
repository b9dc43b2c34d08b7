"""Transports for the tensors of CPU slots, which use gloo otherwise: what GPUs use can be tried without one."""
# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

from collections.abc import Callable
from enum import StrEnum

import torch

from benchmarks.engine.asynchronous_transport import AsynchronousTransport, Faults
from benchmarks.engine.simulated_stream import follow_in_later_threads
from elasticflow.services.executor.worker.group import groups
from elasticflow.services.executor.worker.group.gloo_transport import GlooTransport, StagedTransport
from elasticflow.services.executor.worker.group.transport import Membership, Transport


class TransportName(StrEnum):
    """asynchronous: like NCCL. staged: as between workers that share a GPU."""

    GLOO = "gloo"
    ASYNCHRONOUS = "asynchronous"
    STAGED = "staged"


def connecting(name: str, faults: Faults | None = None) -> Callable[..., Transport]:
    """Return a replacement of the engine's `device_transport`, for any identities. faults: of the asynchronous one."""

    def connect(
        gloo: GlooTransport,
        member: Membership,
        *,
        device: torch.device,
        **_: object,
    ) -> Transport:
        match TransportName(name):
            case TransportName.GLOO:
                return gloo
            case TransportName.ASYNCHRONOUS:
                return AsynchronousTransport(member, faults)
            case TransportName.STAGED:
                return StagedTransport(gloo, device)

    return connect


def use_in_this_process(name: str) -> None:
    """Use this transport for all groups of this worker from now on. The engine's threads outlive a generation, so they
    follow the order of a simulated stream from their beginning."""
    if name == TransportName.ASYNCHRONOUS:
        follow_in_later_threads()
    if name != TransportName.GLOO:
        groups.device_transport = connecting(name)  # pyright: ignore[reportAttributeAccessIssue]

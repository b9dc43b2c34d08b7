"""Transports for the tensors of CPU slots, which use gloo otherwise: what GPUs use can be tried without one."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from benchmarks.engine.asynchronous_transport import AsynchronousTransport
from elasticflow.services.executor.worker.elastic import groups
from elasticflow.services.executor.worker.elastic.gloo_transport import GlooTransport
from elasticflow.services.executor.worker.elastic.staged_transport import StagedTransport
from elasticflow.services.executor.worker.elastic.transport import Transport


class TransportName(StrEnum):
    """asynchronous: like NCCL. staged: as between workers that share a GPU."""

    GLOO = "gloo"
    ASYNCHRONOUS = "asynchronous"
    STAGED = "staged"


_MAKE: Mapping[TransportName, Callable[[GlooTransport, Any], Transport]] = {
    TransportName.ASYNCHRONOUS: lambda gloo, _: AsynchronousTransport(gloo),
    TransportName.STAGED: StagedTransport,
}


def use_in_this_process(name: str) -> None:
    """For all groups of this worker from now on."""
    if name != TransportName.GLOO:
        make = _MAKE[TransportName(name)]
        groups.device_transport = lambda gloo, *_, device, **__: make(gloo, device)  # pyright: ignore

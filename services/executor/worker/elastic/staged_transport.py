"""Collectives of tensors on a GPU by way of the host: copies through pinned memory, and gloo between the workers.

NCCL refuses two workers on one GPU, so workers that share one need this. Sums have the same bits as over NCCL where the
engine adds them itself.
"""

from collections.abc import Callable, Sequence

import torch

from elasticflow.services.executor.worker.elastic.gloo_transport import GlooTransport
from elasticflow.services.executor.worker.elastic.transport import Transfer


class StagedTransport:
    """Exchanges are complete after their wait, other calls on return. They raise gloo's errors."""

    def __init__(self, gloo: GlooTransport, device: torch.device) -> None:
        self._gloo, self._device = gloo, device

    @property
    def error(self) -> str:
        return self._gloo.error

    def begin_exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> Callable[[], None]:
        staged = self._on_host([transfer.tensor for transfer in sends])
        received = [self._host_memory(transfer.tensor) for transfer in receives]
        wait_for_gloo = self._gloo.begin_exchange(_with_tensors(sends, staged), _with_tensors(receives, received))

        def wait() -> None:
            wait_for_gloo()
            self._copy_back([transfer.tensor for transfer in receives], received)

        return wait

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        staged = self._on_host([tensor])
        self._gloo.all_reduce(staged[0]).wait()
        self._copy_back([tensor], staged)
        done = torch.futures.Future[torch.Tensor](devices=[] if self._device.type == "cpu" else [self._device])
        done.set_result(tensor)
        return done

    def broadcast(self, tensors: list[torch.Tensor], *, source: int) -> None:
        staged = self._on_host(tensors)
        self._gloo.broadcast(staged, source=source)
        self._copy_back(tensors, staged)

    def wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def abort(self) -> None:
        self._gloo.abort()

    def release(self) -> None:
        """The gloo group belongs to the caller."""

    def _on_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies; complete on return, because gloo reads them without the GPU's order."""
        copies = [self._host_memory(tensor).copy_(tensor, non_blocking=True) for tensor in tensors]
        self.wait()
        return copies

    def _copy_back(self, onto: Sequence[torch.Tensor], staged: Sequence[torch.Tensor]) -> None:
        """Complete on return: the next call may reuse the host's memory."""
        with torch.no_grad():
            for tensor, copy in zip(onto, staged, strict=True):
                tensor.copy_(copy, non_blocking=True)
        self.wait()

    def _host_memory(self, like: torch.Tensor) -> torch.Tensor:
        """Pinned memory, which torch keeps for the next call."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=self._device.type == "cuda")


def _with_tensors(transfers: Sequence[Transfer], tensors: Sequence[torch.Tensor]) -> list[Transfer]:
    return [transfer._replace(tensor=tensor) for transfer, tensor in zip(transfers, tensors, strict=True)]

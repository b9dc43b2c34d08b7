"""A digest of the gradients with which an optimizer steps: a few thousand of their elements, others in each step.

All calls of train() in all workers must step with the gradient of the global batch. A digest of each step finds those
that do not, for example since train() has assigned a gradient that it computed from its own part of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.device import DeviceNumbers, Number

COMPARE_TENSORS_EVERY = 100  # steps, by all that compares tensors beside gradients
_SAMPLES = 4096
_KEPT_BITS = 52  # which a float64 holds exactly


@dataclass(frozen=True, slots=True)
class StepDigest:
    """digest: of the gradients of this worker. differs: 1 if those of two calls of train() differ, else 0."""

    digest: Number = 0.0
    differs: Number = 0.0

    @classmethod
    def of(cls, first: Number, others: Sequence[Number]) -> "StepDigest":
        """The digests of a worker's calls."""
        different = [torch.as_tensor(first != other) for other in others]
        return cls(first, torch.stack(different).any().double() if different else 0.0)

    def __add__(self, later: "StepDigest") -> "StepDigest":
        """The digest of two optimizer steps in one call of train()."""
        return StepDigest(self.digest + later.digest, self.differs + later.differs)


def gradient_digest(gradients: Sequence[torch.Tensor | None], iteration: int) -> torch.Tensor | float:
    """A whole number below 2^52, as float64 on the device of the gradients; 0.0 without gradients."""
    samples = sampled_bits([gradient for gradient in gradients if gradient is not None], iteration)
    if not samples:
        return 0.0
    total, *others = [(bits * torch.arange(1, 2 * len(bits), 2, device=bits.device)).sum() for bits in samples]
    for other in others:
        total = total + other.to(total.device)
    return ((total ^ (total >> 32)) & ((1 << _KEPT_BITS) - 1)).double()


def sampled_bits(tensors: Sequence[torch.Tensor], iteration: int) -> list[torch.Tensor]:
    """Every n-th element in memory, from another one in each iteration, as whole numbers; a tensor for each device."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    every = max(sum(tensor.numel() for tensor in tensors) // _SAMPLES, 1)
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(_sampled(tensor.detach(), every, iteration))
    return [torch.cat(samples).double().view(torch.int64) for samples in by_device.values()]


def _sampled(tensor: torch.Tensor, every: int, iteration: int) -> torch.Tensor:
    """A sample of the tensor's elements: at least one, if there is one."""
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    is_dense = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
    flat = tensor.as_strided((tensor.numel(),), (1,)) if is_dense else tensor.reshape(-1)
    return flat[iteration % max(min(every, len(flat)), 1) :: every]


class StepDigests:
    """The digests of one worker's steps. Those of a GPU are read one step late, so that the host does not wait for
    it."""

    def __init__(self, device: torch.device) -> None:
        self._is_late = device.type != "cpu"
        self._unread: tuple[int, DeviceNumbers] | None = None

    def next(self, digest: StepDigest, iteration: int) -> tuple[int, float]:
        """What workers compare now: an iteration, and its digest. Raises TrainingFailed if two calls differ."""
        mine = iteration, DeviceNumbers([{"digest": digest.digest, "differs": digest.differs}])
        if self._is_late:
            mine, self._unread = self._unread, mine
        if mine is None:
            return iteration, 0.0
        its_iteration, numbers = mine
        (row,) = numbers.read()
        if row["differs"]:
            raise TrainingFailed(
                f"the calls of train() for different parts of a batch have different gradients before optimizer.step() "
                f"in iteration {its_iteration}. {ADVICE}"
            )
        return its_iteration, row["digest"]

    def forget(self) -> None:
        """Forget the unread digest, at the beginning of a generation and after a failed step."""
        self._unread = None


ADVICE = (
    "Compute gradients by backward(), which sums them over all parts of the batch, not by torch.autograd.grad; and "
    "change them in the same way for any part, for example clip them"
)


def require_same_gradients(differing: Sequence[tuple[int, float]], iteration: int) -> None:
    """differing: ranks, and their digests. Raises TrainingFailed if there are some."""
    if differing:
        found = " and ".join(f"{int(digest):013x} on rank {rank}" for rank, digest in differing)
        raise TrainingFailed(
            f"the workers' optimizers step with different gradients in iteration {iteration}: their digest is {found}. "
            f"{ADVICE}"
        )

"""Numbers that a device computes, on their way to the host: nothing waits for them until they are read."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Number = float | torch.Tensor


def number_of(value: Any) -> Number:
    """A number as it is now, also if the device computes it later and the tensor changes after that.

    Raises TypeError, ValueError or RuntimeError if it is none.
    """
    if not isinstance(value, torch.Tensor):
        return float(value)
    if value.is_complex():
        raise TypeError("a complex number")
    return value.detach().reshape(()).to(torch.float64, copy=True)


class DeviceNumbers:
    """Rows of numbers by name. The constructor begins to copy those of a device to the host."""

    def __init__(self, rows: Sequence[Mapping[str, Number]]) -> None:
        self._rows = rows
        self.names = [tuple(row) for row in rows]
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for number in (number for row in rows for number in row.values()):
            if isinstance(number, torch.Tensor):
                by_device.setdefault(number.device, []).append(number)
        self._copies = {device: _begin_copy(torch.stack(numbers)) for device, numbers in by_device.items()}
        self._copied: torch.cuda.Event | None = None
        if any(device.type == "cuda" for device in by_device):
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> list[dict[str, float]]:
        """Wait for the device, unless it is done with them."""
        if self._copied is not None:
            self._copied.synchronize()
        arrived = {device: iter(copy.tolist()) for device, copy in self._copies.items()}
        return [
            {
                name: next(arrived[number.device]) if isinstance(number, torch.Tensor) else number
                for name, number in row.items()
            }
            for row in self._rows
        ]


def _begin_copy(numbers: torch.Tensor) -> torch.Tensor:
    if not numbers.is_cuda:
        return numbers
    return torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)

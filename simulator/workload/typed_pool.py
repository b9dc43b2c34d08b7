"""A pool with GPUs of several types, as users write it: `4xV100,8xP100,16xK80`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.messages.gpus_by_type import gpus_by_type


@dataclass(frozen=True, slots=True)
class TypedPool:
    """num_gpus: of each type, in the same order."""

    gpu_types: tuple[str, ...]
    num_gpus: tuple[int, ...]

    @property
    def num_gpus_I(self) -> NDArray[np.int64]:
        return np.array(self.num_gpus)

    @property
    def num_gpus_by_type(self) -> dict[str, int]:
        return dict(zip(self.gpu_types, self.num_gpus, strict=True))

    @property
    def total_gpus(self) -> int:
        return sum(self.num_gpus)

    def __str__(self) -> str:
        return ",".join(f"{count}x{name}" for name, count in zip(self.gpu_types, self.num_gpus, strict=True))


def typed_pool(text: str) -> TypedPool:
    """The pool that `text` describes; BadSettings names the part that is wrong."""
    counts = gpus_by_type(text, "pool")
    return TypedPool(tuple(counts), tuple(counts.values()))

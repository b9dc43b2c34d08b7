"""A pool with GPUs of several types, as users write it: `4xV100,8xP100,16xK80`."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.limits import MAX_GPUS

_GPUS_OF_TYPE = re.compile(r"([0-9]{1,9})x([A-Za-z0-9][A-Za-z0-9._-]{0,63})")
_EXPECTED = "give each type once, as NUMBERxTYPE, for example 4xV100,8xP100,16xK80"


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
    counts = dict[str, int]()
    for part in text.split(","):
        match = _GPUS_OF_TYPE.fullmatch(part.strip())
        if match is None:
            raise BadSettings((f"pool {text!r}: cannot read {part.strip()!r}; {_EXPECTED}",))
        count, name = int(match[1]), match[2]
        if name in counts:
            raise BadSettings((f"pool {text!r}: type {name} appears twice; {_EXPECTED}",))
        if not 1 <= count <= MAX_GPUS:
            raise BadSettings((f"pool {text!r}: the number of {name} must be 1 to {MAX_GPUS}",))
        counts[name] = count
    return TypedPool(tuple(counts), tuple(counts.values()))

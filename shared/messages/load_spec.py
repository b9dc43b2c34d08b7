"""The specification of a padding load: many calls of one function, each a task, on GPUs that no job uses.

Source: PaddingTorch, section 3.1, definitions 1 and 6.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le
from pydantic import AllowInfNan, Strict

from elasticflow.shared.messages.limits import (
    MAX_TIME_S,
    Digest,
    DurationS,
    FunctionPath,
    GpuType,
    NumBytes,
    PositiveDurationS,
    Text,
)

MAX_TASKS = 1 << 40
NumTasks = Annotated[int, Strict(), Ge(0), Le(MAX_TASKS)]
TaskS = Annotated[float, Strict(), Ge(1e-6), Le(MAX_TIME_S), AllowInfNan(False)]
NumAttempts = Annotated[int, Strict(), Ge(1), Le(100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """A padding load, as its user describes it. Tasks are atomic and idempotent: one may run again at any time."""

    task_function: FunctionPath  # "package.module:function"
    code_digest: Digest = ""  # SHA-256 of the code archive in the object store; "": importable on the nodes
    task_s: TaskS  # computation of one task, about
    overhead_s: DurationS = 0.0  # the rest of each task
    start_stop_s: DurationS = 0.0  # start and end of a runner, once in each idle window
    memory_bytes: NumBytes = 0  # of a GPU, or of a CPU slot; 0: any
    gpu_type: GpuType = ""  # of the GPU or CPU slot; "": any
    task_timeout_s: PositiveDurationS = 3_600.0  # a longer task has failed
    max_attempts: NumAttempts = 3  # that fail; preemptions do not count
    description: Text = ""

    def fits(self, gpu_type: str, gpu_memory_bytes: int) -> bool:
        """Whether such a GPU may execute its tasks. gpu_memory_bytes: 0 if unknown."""
        return self.gpu_type in ("", gpu_type) and (not gpu_memory_bytes or self.memory_bytes <= gpu_memory_bytes)


# --- index ranges --------------------------------------------------------------------------------------
# Sets of task indices, kept as ranges: the results of a load arrive in runs, so a few ranges say which are there.

Ranges = tuple[tuple[int, int], ...]  # (first, last), both included; in order, and a gap between any two


class IndexSet:
    """A growing set of indices. Its memory is that of its ranges."""

    def __init__(self, ranges: Ranges = ()) -> None:
        self._firsts = [first for first, _ in ranges]
        self._lasts = [last for _, last in ranges]
        self._num_indices = sum(last - first + 1 for first, last in ranges)

    def __len__(self) -> int:
        return self._num_indices

    @property
    def ranges(self) -> Ranges:
        return tuple(zip(self._firsts, self._lasts, strict=True))

    @property
    def first_missing(self) -> int:
        """The least index that is not in the set."""
        return self._lasts[0] + 1 if self._firsts[:1] == [0] else 0

    def add(self, first: int, last: int) -> int:
        """Add first to last, both included; how many of them are new."""
        begin = bisect_left(self._lasts, first - 1)  # the first range that touches them
        end = bisect_right(self._firsts, last + 1)
        before = sum(self._lasts[at] - self._firsts[at] + 1 for at in range(begin, end))
        if begin < end:
            first, last = min(first, self._firsts[begin]), max(last, self._lasts[end - 1])
        self._firsts[begin:end], self._lasts[begin:end] = [first], [last]
        num_new = last - first + 1 - before
        self._num_indices += num_new
        return num_new

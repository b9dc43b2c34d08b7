"""GPUs, and the number of GPUs of one job over time. A GPU is one slot of a node: a device, or a share of a CPU."""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from annotated_types import Len
from pydantic import AfterValidator

from elasticflow.shared.messages.limits import Index, TimeS, Token


class GpuId(NamedTuple):
    """One GPU: its node, and its number there, from 0."""

    node_id: Token
    gpu_index: Index


MAX_NAMED_GPUS = 4096
NamedGpus = Annotated[tuple[GpuId, ...], Len(max_length=MAX_NAMED_GPUS)]


class ShareSegment(NamedTuple):
    """A job holds num_gpus GPUs from start_s until end_s."""

    start_s: float
    end_s: float
    num_gpus: int


def _in_threes(numbers: tuple[float, ...]) -> tuple[float, ...]:
    if len(numbers) % 3:
        raise ValueError(f"must be start_s, end_s, num_gpus of each segment, not {len(numbers)} numbers")
    return numbers


# start_s, end_s, num_gpus of each segment, one after another. Flat, because one decision may carry thousands of
# schedules: the message is a fifth as large as with a map for each segment.
ShareSchedule = Annotated[tuple[TimeS, ...], AfterValidator(_in_threes)]


def segments(schedule: ShareSchedule) -> Iterator[ShareSegment]:
    """The segments of a schedule, in order of time."""
    numbers = iter(schedule)
    for start_s, end_s, num_gpus in zip(numbers, numbers, numbers, strict=True):
        yield ShareSegment(start_s, end_s, int(num_gpus))

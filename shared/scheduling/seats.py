"""Seats: the GPUs that jobs have, as positions among buddy blocks. Who gets which is decided by `buddy`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from shared.messages.cluster import GpuId
from shared.scheduling.blocks import BitSet, Blocks
from shared.scheduling.topology import Level, Topology


@dataclass(frozen=True)  # not slotted: the level is worked out once
class Seat:
    """The GPUs of a job and their positions; num_gpus: how many they are, or -1 if not all of them exist."""

    blocks: Blocks
    gpus: tuple[GpuId, ...]
    positions: BitSet
    num_gpus: int

    @cached_property
    def level(self) -> Level:
        """What connects them."""
        return self.blocks.level(self.positions)

    @property
    def spread(self) -> bool:
        """Whether there are blocks of as many GPUs that are connected better, taken or not."""
        return self.level > self.blocks.blocks_by_level(log2(self.num_gpus))[0][0]


def seat_on(blocks: Blocks, gpus: tuple[GpuId, ...], last: Seat | None = None) -> Seat:
    """The seat of a job on these GPUs; last: where it sat before, which may be here."""
    if last is not None and last.gpus == gpus:
        return last
    positions = blocks.positions(gpus)
    return Seat(blocks, gpus, positions, len(gpus) if positions.bit_count() == len(gpus) else -1)


@lru_cache(maxsize=8)
def last_seats(topology: Topology) -> dict[str, Seat]:
    """By job, the seats of the last placement: a memo and no state, for GPUs keep their positions."""
    return {}


@dataclass(frozen=True, slots=True)
class Movers:
    """Where those sit that may be moved."""

    positions: BitSet
    job_by_position: Mapping[int, str]

    @staticmethod
    def of(blocks: Blocks, seats: Mapping[str, Seat]) -> "Movers":
        positions, job_by_position = 0, dict[int, str]()
        for job_id, seat in seats.items():
            positions |= seat.positions
            job_by_position.update(dict.fromkeys(map(blocks.position_by_gpu.__getitem__, seat.gpus), job_id))
        return Movers(positions, job_by_position)

    def within(self, positions: Iterable[int]) -> list[str]:
        """Those on any of these positions."""
        here = map(self.job_by_position.get, positions)
        return list(dict.fromkeys(job_id for job_id in here if job_id is not None))


def log2(num_gpus: int) -> int:
    """The exponent of a power of two."""
    return num_gpus.bit_length() - 1

"""Seats: the GPUs that jobs have, as positions among buddy blocks. Who gets which is decided by `buddy`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from shared.messages.cluster import GpuId
from shared.scheduling.blocks import BitSet, Blocks, blocks_of
from shared.scheduling.topology import Level, Topology


@dataclass(frozen=True)  # not slotted: what follows from the positions is worked out once
class Seat:
    """The GPUs of a job, and the positions of those that exist."""

    blocks: Blocks
    gpus: tuple[GpuId, ...]
    positions: BitSet

    @cached_property
    def exists(self) -> bool:
        """Whether all of its GPUs do."""
        return self.positions.bit_count() == len(self.gpus)

    @cached_property
    def level(self) -> Level:
        """What connects them."""
        return self.blocks.level(self.positions)

    @property
    def spread(self) -> bool:
        """Whether there are blocks of as many GPUs that are connected better, taken or not."""
        return self.level > self.blocks.blocks_by_level(log2(len(self.gpus)))[0][0]


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


class LastSeats:
    """The last placement on a topology. It only saves work: most jobs still sit where they sat."""

    def __init__(self, blocks: Blocks) -> None:
        self.keep({}, 0)
        self._blocks = blocks

    def keep(self, seats: Mapping[str, Seat], taken: BitSet) -> None:
        """Remember a placement, and the positions it takes."""
        self._seats, self._taken = seats, taken

    def seat(self, job_id: str, gpus: tuple[GpuId, ...]) -> Seat:
        """The seat of a job on these GPUs."""
        seat = self._seats.get(job_id)
        if seat is None or (seat.gpus is not gpus and seat.gpus != gpus):
            seat = Seat(self._blocks, gpus, self._blocks.positions(gpus))
        return seat

    def taken_by(self, staying: Mapping[str, Seat]) -> BitSet:
        """All positions of these seats, by way of the few that are not those of the last placement."""
        taken = self._taken
        for job_id, seat in self._seats.items():
            if staying.get(job_id) is not seat:
                taken ^= seat.positions
        for job_id, seat in staying.items():
            if self._seats.get(job_id) is not seat:
                assert not taken & seat.positions, f"{job_id} sits on a GPU of another job"
                taken |= seat.positions
        return taken


@lru_cache(maxsize=8)
def last_seats(topology: Topology) -> LastSeats:
    return LastSeats(blocks_of(topology))


def log2(num_gpus: int) -> int:
    """The exponent of a power of two."""
    return num_gpus.bit_length() - 1

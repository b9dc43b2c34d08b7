"""Seats: the GPUs that jobs have, as positions among buddy blocks. Who gets which is decided by `buddy`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from shared.messages.cluster import GpuId
from shared.scheduling.blocks import BitSet, Blocks, blocks_of
from shared.scheduling.topology import Level, Topology


@dataclass(frozen=True)  # not slotted: what follows from the GPUs is worked out once, when it is asked for
class Seat:
    """The GPUs of a job; num_gpus: how many they are, or -1 if not all of them exist."""

    blocks: Blocks
    gpus: tuple[GpuId, ...]
    num_gpus: int

    @cached_property
    def positions(self) -> BitSet:
        """Where they are."""
        return self.blocks.positions(self.gpus)

    @cached_property
    def level(self) -> Level:
        """What connects them."""
        return self.blocks.level(self.positions)

    @property
    def spread(self) -> bool:
        """Whether there are blocks of as many GPUs that are connected better, taken or not."""
        return self.level > self.blocks.blocks_by_level(log2(self.num_gpus))[0][0]


class LastSeats:
    """The last placement on a topology: a memo and no state, for most jobs still sit where they sat."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self.keep({}, 0)

    def keep(self, seats: Mapping[str, Seat], taken: BitSet) -> None:
        """Remember a placement, and all positions that it takes."""
        self._seats, self._taken = seats, taken

    def seat(self, job_id: str, gpus: tuple[GpuId, ...]) -> Seat:
        """The seat of a job on these GPUs."""
        seat = self._seats.get(job_id)
        if seat is not None and (seat.gpus is gpus or seat.gpus == gpus):
            return seat
        exist = all(gpu in self._blocks.position_by_gpu for gpu in gpus)
        return Seat(self._blocks, gpus, len(gpus) if exist else -1)

    def taken_by(self, seats: Mapping[str, Seat]) -> BitSet:
        """All positions of these seats, by way of the few that are not those of the last placement."""
        taken = self._taken
        gone = [seat for job_id, seat in self._seats.items() if seats.get(job_id) is not seat]
        new = [seat for job_id, seat in seats.items() if self._seats.get(job_id) is not seat]
        if len(gone) > len(seats):
            taken, gone, new = 0, [], list(seats.values())
        for seat in gone:
            taken ^= seat.positions
        for seat in new:
            assert not taken & seat.positions, f"two jobs on one GPU of {seat.gpus}"
            taken |= seat.positions
        return taken


@lru_cache(maxsize=8)
def last_seats(topology: Topology) -> LastSeats:
    """Each topology has its own."""
    return LastSeats(blocks_of(topology))


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

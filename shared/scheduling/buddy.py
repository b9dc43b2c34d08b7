"""Which GPUs each job gets: buddy blocks on the topology tree, best fit; pieces where no block is free.

A job whose number of GPUs does not change stays where it is: a move stops it, and nobody has planned for that stop.
Only jobs that the caller names are moved, and only where it pays (docs/adr/0011). So there can be enough free GPUs
but no block of them; then a job gets pieces, never a refusal. How many GPUs a job gets is decided by `allocation`.
Source: ElasticFlow, section 4.3.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from shared.messages.cluster import GpuId
from shared.scheduling.blocks import BitSet, Blocks, blocks_of
from shared.scheduling.free_blocks import FreeBlocks
from shared.scheduling.placement_curves import Stake
from shared.scheduling.seats import Movers, Seat, last_seats, log2
from shared.scheduling.topology import Level, Topology

MAX_BLOCKS_TRIED = 8  # to be cleared for one job: those with the fewest GPUs to move


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The GPUs of each job; migrated: jobs moved although their number of GPUs did not change."""

    gpus_by_job: Mapping[str, tuple[GpuId, ...]]
    migrated: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mobility:
    """movable: jobs that may be moved though their number of GPUs stays; stake(job_id): what a place is worth."""

    movable: Set[str]
    stake: Callable[[str], Stake]


def place(
    topology: Topology,
    current: Mapping[str, tuple[GpuId, ...]],
    num_gpus_by_job: Mapping[str, int],
    mobility: Mobility | None = None,
    avoided: Collection[GpuId] = (),
) -> Placement:
    """Give each job its number of GPUs, in one buddy block wherever one is free.

    num_gpus_by_job: 0 or powers of two, in all no more than there are GPUs. GPUs in `current` that are no
    longer there are as if the job had never had them. Without `mobility` nobody is moved. avoided: GPUs to which others
    are preferred that are connected as well; nobody leaves them, and nobody goes without for them.
    """
    assert sum(num_gpus_by_job.values()) <= topology.num_gpus, "more GPUs wanted than there are"
    blocks, last = blocks_of(topology), last_seats(topology)
    staying, changing = dict[str, Seat](), dict[str, int]()
    for job_id, num_gpus in num_gpus_by_job.items():
        if not num_gpus:
            continue
        seat = last.seat(job_id, current.get(job_id, ()))
        if seat.num_gpus == num_gpus:
            staying[job_id] = seat
        else:
            assert not num_gpus & (num_gpus - 1), f"{num_gpus} is not a power of two"
            changing[job_id] = num_gpus
    board = _Board(blocks, staying, last.taken_by(staying), mobility, blocks.positions(avoided))
    board.resize(changing, current)
    board.bring_closer()
    last.keep(board.seats, board.taken)
    return Placement(
        gpus_by_job={job_id: seat.gpus for job_id, seat in board.seats.items()},
        migrated=tuple(sorted(board.migrated)),
    )


def any_spread(topology: Topology, gpus_by_job: Mapping[str, tuple[GpuId, ...]]) -> bool:
    """Whether one of these jobs is connected worse than a block of its size can be: `place` may find it a better."""
    last = last_seats(topology)
    return any(len(gpus) > 1 and last.seat(job_id, gpus).spread for job_id, gpus in gpus_by_job.items())


class _Board:
    """Who sits where, while jobs are being placed. staying: the jobs that keep their number of GPUs."""

    def __init__(
        self,
        blocks: Blocks,
        staying: Mapping[str, Seat],
        taken: BitSet,
        mobility: Mobility | None,
        avoided: BitSet,
    ) -> None:
        self.seats = dict(staying)
        self.migrated = set[str]()
        self._blocks = blocks
        self._avoided = avoided
        self._free = FreeBlocks(blocks, blocks.every_position ^ taken, avoided)
        self._mobility = mobility
        self._movable = sorted(mobility.movable & staying.keys()) if mobility else []
        self._movers: Movers | None = None  # where those sit that may be moved; None: to be worked out

    @property
    def taken(self) -> BitSet:
        """All positions on which somebody sits."""
        return self._blocks.every_position ^ self._free.positions

    def resize(self, wanted: Mapping[str, int], current: Mapping[str, tuple[GpuId, ...]]) -> None:
        """Seat the jobs whose number of GPUs changes, the largest first: those that can shrink inside their own GPUs,
        those that can grow around them, then all others wherever they fit best."""
        waiting = sorted(wanted, key=lambda job_id: (-wanted[job_id], job_id))
        held = [job_id for job_id in waiting if current.get(job_id)]
        for job_id in sorted(held, key=lambda job_id: wanted[job_id] > len(current[job_id])):
            size, own = log2(wanted[job_id]), self._blocks.positions(current[job_id])
            start = self._free.best_fit(size, self._blocks.near(own, size))
            if start is not None:
                self._sit(job_id, size, start)
        for job_id in waiting:
            if job_id not in self.seats:
                self._find_seat(job_id, log2(wanted[job_id]))

    def bring_closer(self) -> None:
        """Move those that may be moved to free blocks that connect them better, where that pays."""
        for job_id in self._movable:
            seat = self.seats[job_id]
            size = log2(seat.num_gpus)
            if not seat.spread or not self._blocks.inside(self._free.positions | seat.positions, size):
                continue
            self._free.give(seat.positions)
            start = self._free.best_fit(size)
            if start is not None and self._pays(job_id, seat.level, size, start):
                self._free.take_block(size, start)
                self._move(job_id, size, start)
            else:
                self._free.take(seat.positions)

    def _pays(self, job_id: str, level: Level, size: int, start: int) -> bool:
        """Whether a move to a block is worth the stop to a job whose GPUs `level` connects."""
        stake = self._stake(job_id)
        closer = self._blocks.level_of_block(size, start)
        return stake.gained_gpu_seconds(level, closer) > stake.lost_gpu_seconds

    def _find_seat(self, job_id: str, size: int) -> None:
        start = self._free.best_fit(size)
        if start is None:
            pieces = self._free.pieces(1 << size)
            start = self._make_room(job_id, size, self._blocks.level(pieces)) if self._movable else None
            if start is None:
                self._free.take(pieces)
                gpus = self._blocks.gpus(self._blocks.members(pieces))
                self.seats[job_id] = Seat(self._blocks, gpus, 1 << size)
                return
        self._sit(job_id, size, start)

    def _sit(self, job_id: str, size: int, start: int) -> None:
        self._free.take_block(size, start)
        self.seats[job_id] = self._seat(size, start)

    def _move(self, job_id: str, size: int, start: int) -> None:
        self.seats[job_id] = self._seat(size, start)
        self.migrated.add(job_id)
        self._movers = None

    def _seat(self, size: int, start: int) -> Seat:
        return Seat(self._blocks, self._blocks.gpus_of_block(size, start), 1 << size)

    def _make_room(self, job_id: str, size: int, level: Level) -> int | None:
        """Where a block begins that others were moved out of for a job that else gets pieces connected by `level`;
        None if no such move pays: it must cost less than it brings, and bring nobody further apart."""
        self._movers = self._movers or Movers.of(self._blocks, {j: self.seats[j] for j in self._movable})
        clearable = self._blocks.inside(self._free.positions | self._movers.positions, size)
        num_taken = self._blocks.counts(self.taken, size)
        for closer, of_level in self._blocks.blocks_by_level(size):
            gained = self._stake(job_id).gained_gpu_seconds(level, closer)
            starts = self._blocks.members(clearable & of_level) if gained > 0 else []
            for start in sorted(starts, key=lambda start: num_taken[start >> size])[:MAX_BLOCKS_TRIED]:
                leaving = self._movers.within(range(start, start + (1 << size)))
                lost = sum(self._stake(other_id).lost_gpu_seconds for other_id in leaving)
                if lost < gained and self._clear(_block(size, start), leaving):
                    return start
        return None

    def _clear(self, block: BitSet, leaving: Sequence[str]) -> bool:
        """Move these jobs out of a block, each to a free block as good as its seat was; False if not all find one."""
        around = self._free.positions
        for job_id in leaving:
            around |= self.seats[job_id].positions
        free, chosen = FreeBlocks(self._blocks, around & ~block, self._avoided), dict[str, tuple[int, int]]()
        for job_id in sorted(leaving, key=lambda job_id: (-self.seats[job_id].num_gpus, job_id)):
            size = log2(self.seats[job_id].num_gpus)
            start = free.best_fit(size)
            if start is None or self._blocks.level_of_block(size, start) > self.seats[job_id].level:
                return False
            free.take_block(size, start)
            chosen[job_id] = (size, start)
        for job_id, (size, start) in chosen.items():
            self._move(job_id, size, start)
        free.give(block)
        self._free = free
        return True

    def _stake(self, job_id: str) -> Stake:
        assert self._mobility is not None
        return self._mobility.stake(job_id)


def _block(size: int, start: int) -> BitSet:
    return ((1 << (1 << size)) - 1) << start

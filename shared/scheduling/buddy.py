"""Which GPUs each job gets: buddy blocks on the topology tree, best fit, migration against fragmentation.

How many GPUs a job gets is decided by `allocation`.

Blocks: at each part of the tree, from the bottom up, blocks of equal size pair up like the carries of a binary
addition. So a cluster of any shape ends as one binary tree for each binary digit of its number of GPUs, every
block is joined as low in the topology as it can be, and any powers of two whose sum fits the cluster fit its
blocks, largest first: no set of nodes needs a special case.
Source: ElasticFlow, section 4.3.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from shared.messages.cluster import GpuId
from shared.scheduling.topology import Branch, Level, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The GPUs of each job, in order; migrated: jobs moved although their number of GPUs did not change."""

    gpus_by_job: Mapping[str, tuple[GpuId, ...]]
    migrated: tuple[str, ...]


def place(
    topology: Topology,
    current: Mapping[str, tuple[GpuId, ...]],
    num_gpus_by_job: Mapping[str, int],
) -> Placement:
    """Give each job a buddy block of its size; jobs that keep their size stay unless they must make room.

    num_gpus_by_job: 0 or powers of two, in all no more than there are GPUs. GPUs in `current` that are no
    longer there are as if the job had never had them.
    """
    wanted = {job_id: num_gpus for job_id, num_gpus in sorted(num_gpus_by_job.items()) if num_gpus}
    assert all(num_gpus & (num_gpus - 1) == 0 for num_gpus in wanted.values()), "not a power of two"
    assert sum(wanted.values()) <= topology.num_gpus, "more GPUs wanted than there are"
    exists = set(topology.gpus)
    held = {job_id: tuple(gpu for gpu in current.get(job_id, ()) if gpu in exists) for job_id in wanted}
    board = _Board(_forest(topology))
    for job_id, gpus in held.items():
        if len(gpus) == wanted[job_id]:
            board.put(job_id, gpus)
    # those that give up GPUs stay inside their own, those that get more take their buddies if these are free
    for job_id in sorted(
        wanted, key=lambda job_id: (wanted[job_id] > len(held[job_id]), -wanted[job_id], job_id)
    ):
        if job_id not in board.gpus_by_job and held[job_id]:
            block = board.best_within(held[job_id], wanted[job_id])
            if block is not None:
                board.put(job_id, block.gpus)
    waiting = [(-num_gpus, job_id) for job_id, num_gpus in wanted.items() if job_id not in board.gpus_by_job]
    heapq.heapify(waiting)
    while waiting:
        size, job_id = heapq.heappop(waiting)
        block, evicted = board.make_room(-size)
        for other_id in evicted:
            board.take(other_id)
            heapq.heappush(waiting, (-wanted[other_id], other_id))
        board.put(job_id, block.gpus)
    placed = board.gpus_by_job
    return Placement(
        gpus_by_job={job_id: placed[job_id] for job_id in wanted},
        migrated=tuple(
            job_id
            for job_id, gpus in held.items()
            if len(gpus) == wanted[job_id] and set(gpus) != set(placed[job_id])
        ),
    )


class _Block:
    """A power of two of GPUs: one GPU, or two buddies of half the size; level: what connects them."""

    __slots__ = ("gpus", "level", "parent")

    def __init__(self, gpus: tuple[GpuId, ...], level: Level) -> None:
        self.gpus = gpus
        self.level = level
        self.parent: _Block | None = None


@dataclass(frozen=True, slots=True)
class _Forest:
    """All blocks by size, each size in the order of the tree; and the block of each single GPU."""

    by_size: Mapping[int, Sequence[_Block]]
    leaves: Mapping[GpuId, _Block]


@lru_cache(maxsize=8)
def _forest(topology: Topology) -> _Forest:
    by_size: dict[int, list[_Block]] = {}

    def paired(part: Branch | GpuId) -> list[_Block]:
        """The largest blocks of a part of the tree: at most one of each size."""
        if isinstance(part, GpuId):
            leaf = _Block((part,), Level.GPU)
            by_size.setdefault(1, []).append(leaf)
            return [leaf]
        alone: dict[int, _Block] = {}
        for child in part.children:
            for block in paired(child):
                while (buddy := alone.pop(len(block.gpus), None)) is not None:
                    joined = _Block(buddy.gpus + block.gpus, part.level)
                    buddy.parent = block.parent = joined
                    by_size.setdefault(len(joined.gpus), []).append(joined)
                    block = joined
                alone[len(block.gpus)] = block
        return list(alone.values())

    paired(topology.tree)
    return _Forest(by_size, {block.gpus[0]: block for block in by_size.get(1, ())})


class _Board:
    """Who sits where, while jobs are being placed."""

    def __init__(self, forest: _Forest) -> None:
        self.gpus_by_job: dict[str, tuple[GpuId, ...]] = {}
        self._forest = forest
        self._job_of: dict[GpuId, str] = {}
        self._num_taken: dict[_Block, int] = {}

    def put(self, job_id: str, gpus: tuple[GpuId, ...]) -> None:
        self.gpus_by_job[job_id] = gpus
        for gpu in gpus:
            assert gpu not in self._job_of, f"{gpu} is taken"
            self._job_of[gpu] = job_id
            self._count(gpu, 1)

    def take(self, job_id: str) -> None:
        for gpu in self.gpus_by_job.pop(job_id):
            del self._job_of[gpu]
            self._count(gpu, -1)

    def best_within(self, held: tuple[GpuId, ...], size: int) -> _Block | None:
        """The best free block that lies within the GPUs held (to shrink), or holds them all (to grow)."""
        own = set(held)
        if size > len(held):
            nested = [block for block in self._ancestors(held[0]) if len(block.gpus) == size]
            candidates = [block for block in nested if own <= set(block.gpus)]
        else:
            nested = {
                block: None for gpu in held for block in self._ancestors(gpu) if len(block.gpus) == size
            }
            candidates = [block for block in nested if own >= set(block.gpus)]
        return self._best_fit(candidates)

    def make_room(self, size: int) -> tuple[_Block, list[str]]:
        """A block of `size`, and the jobs to be moved out of it: none if possible, otherwise the smallest."""
        blocks = self._forest.by_size[size]
        block = self._best_fit(blocks)
        if block is not None:
            return block, []

        def cost(block: _Block) -> tuple[bool, int, int]:
            evicted = self._jobs_in(block)
            num_moved = [len(self.gpus_by_job[job_id]) for job_id in evicted]
            return max(num_moved) >= size, sum(num_moved), len(evicted)

        # A block without a job of its size or larger exists as long as those sit in blocks of their own, for
        # they leave room by sum. One that does not (its nodes were cut differently before) is moved once, into one.
        cheapest = min((block for block in blocks if self._movable(block, size)), key=cost)
        return cheapest, self._jobs_in(cheapest)

    def _best_fit(self, blocks: Iterable[_Block]) -> _Block | None:
        """The fastest free block, and of these the one in the smallest free surroundings: large ones stay whole."""
        free = [block for block in blocks if not self._num_taken.get(block)]
        return min(free, key=lambda block: (block.level, self._surroundings(block)), default=None)

    def _surroundings(self, block: _Block) -> int:
        while block.parent is not None and not self._num_taken.get(block.parent):
            block = block.parent
        return len(block.gpus)

    def _movable(self, block: _Block, size: int) -> bool:
        """Whether nobody in `block` sits in a block of its own that is as large as the one wanted."""
        return all(
            len(self.gpus_by_job[job_id]) < size or not self._aligned(job_id)
            for job_id in self._jobs_in(block)
        )

    def _aligned(self, job_id: str) -> bool:
        gpus = self.gpus_by_job[job_id]
        return any(set(block.gpus) == set(gpus) for block in self._ancestors(gpus[0]))

    def _jobs_in(self, block: _Block) -> list[str]:
        return sorted({self._job_of[gpu] for gpu in block.gpus if gpu in self._job_of})

    def _ancestors(self, gpu: GpuId) -> Iterable[_Block]:
        block: _Block | None = self._forest.leaves[gpu]
        while block is not None:
            yield block
            block = block.parent

    def _count(self, gpu: GpuId, change: int) -> None:
        for block in self._ancestors(gpu):
            self._num_taken[block] = self._num_taken.get(block, 0) + change

"""Searches a packing over time: on which blocks each promised job is, who moves for whom, and who pays for it.

The result is a claim that `check_packing` checks; it is none of the scheduler's. The search is greedy: at each
instant at which schedules change, jobs that end go first, then those that begin are placed, largest first, best fit.
Where that finds none, chance decides some of the choices, with fixed seeds.
Where no block is free, smaller jobs move out of one, each at the cost of a stop from what its own schedule spares.
A job of more GPUs than promises count on within a node needs several smaller blocks, anywhere (docs/adr/0107).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nsmallest
from itertools import accumulate, chain, groupby
from math import inf

import numpy as np

from elasticflow.simulator.verification.certificate_checker import runs_from, spare_iterations
from elasticflow.simulator.verification.certificates import CertifiedPromise, Packed, PackedNodes

RESTARTS = 60  # by chance, once both orders have found none
MAX_BLOCKS_TRIED = 4  # for one job: each moves others, and takes them back if one of them finds no place
_MARGIN = 1e-6  # of a stop: payments are floats here, and whole numbers in the check
_Order = Callable[[int, float], tuple[float, float]]
# which block is emptied first, by the GPUs that leave and the moves that their jobs can pay at least
_ORDERS: tuple[_Order, ...] = (
    lambda num_gpus, moves: (num_gpus, -moves),
    lambda num_gpus, moves: (-moves, num_gpus),
)


def find_packing(
    promises: Sequence[CertifiedPromise], positions: Mapping[str, tuple[int, ...]], nodes: PackedNodes, now_s: float
) -> tuple[Packed, ...] | None:
    """The blocks of each job from each instant on; None if none is found. positions: of the GPUs that jobs have now."""
    spare = {promise.job.job_id: spare_iterations(promise, now_s) for promise in promises}
    spare_by_job = {job_id: -inf if isinstance(each, str) else float(each) for job_id, each in spare.items()}
    greedy = (_Search(nodes, spare_by_job, order) for order in _ORDERS)
    by_chance = (_Search(nodes, spare_by_job, _by_chance(seed), seed) for seed in range(1, RESTARTS + 1))
    searches = chain(greedy, by_chance)
    return next((found for each in searches if (found := each.run(promises, positions, now_s)) is not None), None)


def _by_chance(seed: int) -> _Order:
    chance = np.random.default_rng(seed)
    return lambda num_gpus, moves: (float(chance.random()), 0.0)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a node: a block, free or held."""

    node: int
    start: int
    size: int

    @property
    def bits(self) -> int:
        return ((1 << self.size) - 1) << self.start


@dataclass(slots=True)
class _Nodes:
    """taken: positions of each node, as bits. here: those of each job on each node. spare: iterations of each job."""

    taken: list[int]
    here: list[dict[str, int]]
    spare: dict[str, float]
    parts: dict[str, list[_Part]] = field(default_factory=dict[str, list[_Part]])

    def copy(self) -> "_Nodes":
        return _Nodes(self.taken[:], [dict(each) for each in self.here], dict(self.spare), dict(self.parts))

    def put(self, job_id: str, parts: list[_Part]) -> None:
        for part in parts:
            self.taken[part.node] |= part.bits
            self.here[part.node][job_id] = self.here[part.node].get(job_id, 0) | part.bits
        self.parts[job_id] = parts

    def remove(self, job_id: str) -> None:
        for part in self.parts.pop(job_id):
            self.taken[part.node] &= ~part.bits
            self.here[part.node].pop(job_id, None)

    def within(self, block: _Part) -> list[str]:
        """The jobs on any GPU of a block."""
        return [job_id for job_id, held in self.here[block.node].items() if held & block.bits]


class _Search:
    def __init__(self, nodes: PackedNodes, spare_by_job: Mapping[str, float], order: _Order, seed: int = 0) -> None:
        """seed: of chance, by which half of the free blocks are chosen; 0: all are by best fit."""
        self._places, self._order = nodes, order
        self._chance = np.random.default_rng(seed) if seed else None
        self._first = list(accumulate(nodes.num_gpus, initial=0))  # position of each node
        self._nodes = _Nodes([0 for _ in nodes.num_gpus], [{} for _ in nodes.num_gpus], dict(spare_by_job))
        self._gpus_per_replica = dict[str, int]()
        self._sizes = dict[str, int]()  # numbers of GPUs that jobs hold
        self._costs = dict[str, dict[int, float]]()  # iterations of a stop, by number of GPUs
        self._settled = set[str]()  # jobs that begin at this instant: no move of theirs costs more
        self._moved = set[str]()  # jobs that have paid for a move at this instant
        self._found = dict[tuple[str, float], Packed]()

    def run(
        self, promises: Sequence[CertifiedPromise], positions: Mapping[str, tuple[int, ...]], now_s: float
    ) -> tuple[Packed, ...] | None:
        begins, ends = list[tuple[float, int, str]](), list[tuple[float, str]]()
        for promise in promises:
            job_id = promise.job.job_id
            self._gpus_per_replica[job_id] = promise.job.gpus_per_replica
            self._costs[job_id] = {
                level.num_gpus: level.iterations_per_s * level.stop_s * (1.0 + _MARGIN) for level in promise.job.levels
            }
            for start_s, end_s, num_gpus in runs_from(promise, now_s):
                ends.append((end_s, job_id))
                if not self._stays(promise, start_s, num_gpus, positions.get(job_id, ()), now_s):
                    begins.append((start_s, -num_gpus, job_id))
        ends.sort(reverse=True)
        for at_s, together in groupby(sorted(begins), key=lambda each: each[0]):
            while ends and ends[-1][0] <= at_s:
                _, job_id = ends.pop()
                if job_id in self._nodes.parts:
                    self._nodes.remove(job_id)
            if not self._begin({job_id: -negated for _, negated, job_id in together}, at_s):
                return None
        return tuple(self._found.values())

    def _stays(
        self, promise: CertifiedPromise, start_s: float, num_gpus: int, held: tuple[int, ...], now_s: float
    ) -> bool:
        """Whether the job is on its blocks now. If it holds as many GPUs in fragments, it pays for a move."""
        job_id = promise.job.job_id
        if start_s != now_s or num_gpus != promise.job.current_num_gpus:
            return False
        parts = self._parts_at(held, num_gpus, self._unit(job_id, num_gpus))
        if parts is None:
            self._nodes.spare[job_id] -= self._costs[job_id][num_gpus]
            return False
        self._nodes.put(job_id, parts)
        self._sizes[job_id] = num_gpus
        self._pack(job_id, now_s)
        return True

    def _begin(self, num_gpus_by_job: Mapping[str, int], at_s: float) -> bool:
        """Place the jobs that begin at one instant, in this order; False if one of them finds no place."""
        self._settled, self._moved = set(num_gpus_by_job), set()
        self._sizes.update(num_gpus_by_job)
        if not all(self._place(job_id) for job_id in num_gpus_by_job):
            return False
        for job_id in sorted(self._settled | self._moved):
            self._pack(job_id, at_s)
        return all(self._nodes.spare[job_id] >= 0.0 for job_id in self._settled)

    def _unit(self, job_id: str, num_gpus: int) -> int:
        return self._places.unit(num_gpus, self._gpus_per_replica[job_id])

    def _parts_at(self, positions: tuple[int, ...], num_gpus: int, size: int) -> list[_Part] | None:
        """The blocks of `size` GPUs at these positions; None if they are none."""
        starts = sorted(positions)[::size]
        if [start + at for start in starts for at in range(size)] != sorted(positions) or len(positions) != num_gpus:
            return None
        nodes = [bisect_right(self._first, start) - 1 for start in starts]
        parts = [_Part(node, start - self._first[node], size) for node, start in zip(nodes, starts, strict=True)]
        is_block = all(
            part.start % size == 0 and part.start + size <= self._places.num_gpus[part.node] for part in parts
        )
        return parts if is_block else None

    def _pack(self, job_id: str, from_s: float) -> None:
        parts = self._nodes.parts[job_id]
        starts = tuple(self._first[part.node] + part.start for part in parts)
        self._found[job_id, from_s] = Packed(job_id, from_s, parts[0].size, starts)

    def _place(self, job_id: str) -> bool:
        """Place a job on free blocks, or on those that smaller jobs leave."""
        num_gpus = self._sizes[job_id]
        size = self._unit(job_id, num_gpus)
        count = num_gpus // size
        free = [_Part(node, start, size) for _, node, start in nsmallest(count, self._free(size, count))]
        missing = count - len(free)
        if not missing:
            self._nodes.put(job_id, free)
            return True
        candidates = [part for _, part in sorted(self._clearable(size, num_gpus), key=lambda each: each[0])]
        for first in range(min(max(len(candidates) - missing + 1, 0), MAX_BLOCKS_TRIED)):
            before = self._nodes.copy(), set(self._moved)
            emptied = candidates[first : first + missing]
            leaving = list(dict.fromkeys(other for block in emptied for other in self._nodes.within(block)))
            for other in leaving:
                self._pay(other)
                self._nodes.remove(other)
            self._nodes.put(job_id, [*free, *emptied])
            leaving.sort(key=lambda other: (-self._sizes[other], other))
            if all(self._place(other) for other in leaving):
                return True
            self._nodes, self._moved = before
        return False

    def _free(self, size: int, most: int) -> Iterator[tuple[float, int, int]]:
        """Free blocks: how well each fits, its node, and where it begins. most: of a node, if the best are chosen."""
        for node, taken in enumerate(self._nodes.taken):
            blocks = _free_blocks(taken, size, self._places.num_gpus[node])
            for around, start in blocks if self._chance is not None else blocks[:most]:
                yield self._fit(around), node, start

    def _fit(self, around: int) -> float:
        """How well a block fits: the free part around it, the smaller the better; now and then by chance."""
        if self._chance is None or self._chance.random() < 0.5:
            return around
        return float(self._chance.random())

    def _clearable(self, size: int, num_gpus: int) -> Iterator[tuple[tuple[float, ...], _Part]]:
        """Blocks whose jobs are smaller and can pay for their move, in the order of this search."""
        for node, taken in enumerate(self._nodes.taken):
            for start in range(0, self._places.num_gpus[node] - size + 1, size):
                block = _Part(node, start, size)
                others = self._nodes.within(block)
                if not others or any(self._sizes[other] >= num_gpus for other in others):
                    continue
                moves = min(map(self._moves_left, others))
                if moves >= 1.0:
                    yield (*self._order((taken & block.bits).bit_count(), moves), node, start), block

    def _moves_left(self, job_id: str) -> float:
        """How many moves the job can pay."""
        cost = self._costs[job_id][self._sizes[job_id]]
        is_paid = job_id in self._settled or job_id in self._moved
        return inf if is_paid or not cost else self._nodes.spare[job_id] / cost

    def _pay(self, job_id: str) -> None:
        if job_id not in self._settled and job_id not in self._moved:
            self._nodes.spare[job_id] -= self._costs[job_id][self._sizes[job_id]]
            self._moved.add(job_id)


@lru_cache(maxsize=1 << 16)
def _free_blocks(taken: int, size: int, num_gpus: int) -> tuple[tuple[int, int], ...]:
    """The free blocks of `size` GPUs of a node: the size of the free part around each, and its start."""
    found = list[tuple[int, int]]()
    for start in range(0, num_gpus - size + 1, size):
        around, begin = size, start
        if taken >> start & ((1 << size) - 1):
            continue
        while (wider := begin // (2 * around) * 2 * around) + 2 * around <= num_gpus:
            if taken >> wider & ((1 << 2 * around) - 1):
                break
            around, begin = 2 * around, wider
        found.append((around, start))
    return tuple(sorted(found))

"""Placement: which GPUs each job gets. Buddy blocks on the topology tree, best fit; fragments where no block is free.

A promised job has a claim to a whole block: where none is free, the jobs in the cheapest one move out, and smaller ones
for them in turn. Largest first, powers of two always fit (`buddy_blocks`), unless jobs that may not move lie in every
block (docs/adr/0107). Other jobs move only if that pays, and may get fragments. A job with several GPUs for each
replica gets whole replicas, each in one block of a node, or keeps those that it has (docs/adr/0055). `allocation`
decides the number of GPUs. Source: ElasticFlow, section 4.3.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from elasticflow.shared.messages.gpus import GpuId, are_whole_gangs, largest_size_up_to
from elasticflow.shared.scheduling.jobs.scaling_curve import PlacementCurves
from elasticflow.shared.scheduling.placement.buddy_blocks import (
    BitSet,
    Blocks,
    FreeBlocks,
    GpuPositions,
    LastPositions,
    MigratableJobs,
    log2,
)
from elasticflow.shared.state.topology import Level, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationBenefit:
    """The value of a placement to a job. stay_s: how long it stays there; stop_s: the stop that a migration costs."""

    curves: PlacementCurves
    num_gpus: int
    stay_s: float
    stop_s: float

    def gained_gpu_seconds(self, level: Level, closer: Level) -> float:
        """GPU-seconds that a closer placement saves while the job stays."""
        return self.num_gpus * self.stay_s * self.curves.time_saved(self.num_gpus, level, closer)

    @property
    def lost_gpu_seconds(self) -> float:
        """GPU-seconds that a migration costs the job."""
        return self.num_gpus * self.stop_s


# --- placement -----------------------------------------------------------------------------------------

MAX_BLOCKS_TRIED = 8  # candidates to empty for one job: those with the fewest GPUs to migrate
MAX_ATTEMPTS = 3  # for one claim: each moves jobs, and takes it back if one of them finds no place


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The GPUs of each job. migrated: jobs that moved although their number of GPUs did not change.

    Jobs with several GPUs for each replica may have fewer GPUs than they were to get, or none.
    meets_claims: each job with a claim has a whole block, and all its replicas.
    """

    gpus_by_job: Mapping[str, tuple[GpuId, ...]]
    migrated: tuple[str, ...] = ()
    meets_claims: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRules:
    """movable: jobs that may migrate where it pays. migration_benefit(job_id): the value of a placement to a job.

    claims: jobs with a claim to a block. displacement_cost(job_id): GPU-seconds that a migration costs which another
    job's claim forces on a job; inf if it must not migrate.
    given_up: by job whose number of GPUs changes, those that it gets only if too few others are free.
    measured_level(job_id): what connects the GPUs on which a promise counts, if the speed of the job there is to be
    measured; else None. It gets the worst free block of its size, or free GPUs as far apart (docs/adr/0122).
    keep_to_blocks: jobs that would have to restart to leave such GPUs: they are measured in blocks alone.
    gangs: the GPUs of a replica, by job with several. Without a claim, such a job makes none move that has one.
    fewest_gpus: on which such jobs run, where one replica is too few.
    """

    movable: Set[str]
    migration_benefit: Callable[[str], MigrationBenefit]
    claims: Set[str] = frozenset()
    displacement_cost: Callable[[str], float] = lambda job_id: inf
    given_up: Mapping[str, Collection[GpuId]] = field(default_factory=dict[str, Collection[GpuId]])
    measured_level: Callable[[str], Level | None] = lambda job_id: None
    keep_to_blocks: Set[str] = frozenset()
    gangs: Mapping[str, int] = field(default_factory=dict[str, int])
    fewest_gpus: Mapping[str, int] = field(default_factory=dict[str, int])


def place(
    topology: Topology,
    current: Mapping[str, tuple[GpuId, ...]],
    num_gpus_by_job: Mapping[str, int],
    migration_rules: MigrationRules | None = None,
    avoided: Collection[GpuId] = (),
    last: LastPositions | None = None,
) -> Placement:
    """Give each job its number of GPUs, in one buddy block wherever one is free; whole replicas to those with gangs.

    num_gpus_by_job: 0 or powers of two, in total at most the GPUs of the topology.
    current: GPUs that no longer exist are ignored.
    migration_rules: None: no job migrates.
    avoided: GPUs that are used only where others are not connected as well; no job leaves them or goes without for
    them.
    """
    assert sum(num_gpus_by_job.values()) <= topology.num_gpus, "more GPUs wanted than there are"
    last = LastPositions(topology) if last is None else last
    blocks = last.blocks
    staying, changing = dict[str, GpuPositions](), dict[str, int]()
    for job_id, num_gpus in num_gpus_by_job.items():
        if not num_gpus:
            continue
        held = last.positions_of(job_id, current.get(job_id, ()))
        if held.num_gpus == num_gpus:
            staying[job_id] = held
        else:
            assert not num_gpus & (num_gpus - 1), f"{num_gpus} is not a power of two"
            changing[job_id] = num_gpus
    builder = PlacementBuilder(blocks, staying, last.taken_by(staying), migration_rules, blocks.positions(avoided))
    builder.resize(changing, current)
    builder.keep_claims()
    builder.bring_closer()
    last.keep(builder.positions_by_job, builder.taken)
    return Placement(
        gpus_by_job={job_id: held.gpus for job_id, held in builder.positions_by_job.items()},
        migrated=tuple(sorted(builder.migrated)),
        meets_claims=builder.meets_claims,
    )


def any_unmet_claim(last: LastPositions, gpus_by_job: Mapping[str, tuple[GpuId, ...]]) -> bool:
    """Whether one of these promised jobs is connected worse than any buddy block of its size."""
    return any(
        len(gpus) > 1 and not last.positions_of(job_id, gpus).meets_claim for job_id, gpus in gpus_by_job.items()
    )


def any_spread(last: LastPositions, gpus_by_job: Mapping[str, tuple[GpuId, ...]]) -> bool:
    """Whether one of these jobs is connected worse than a block of its size can be, so that `place` may find a better
    one.
    """
    return any(len(gpus) > 1 and last.positions_of(job_id, gpus).spread for job_id, gpus in gpus_by_job.items())


class PlacementBuilder:
    """The placement under construction. staying: the jobs whose number of GPUs does not change."""

    def __init__(
        self,
        blocks: Blocks,
        staying: Mapping[str, GpuPositions],
        taken: BitSet,
        migration_rules: MigrationRules | None,
        avoided: BitSet,
    ) -> None:
        self.positions_by_job: dict[str, GpuPositions] = dict(staying)
        self.migrated: set[str] = set()
        self._blocks = blocks
        self._avoided = avoided
        self._free = FreeBlocks(blocks, blocks.every_position ^ taken, avoided)
        self._migration_rules = migration_rules
        self._movable: list[str] = sorted(migration_rules.movable & staying.keys()) if migration_rules else []
        self._movers: MigratableJobs | None = None  # of the movable jobs; None: not computed yet
        self._staying = staying.keys()
        given_up: Mapping[str, Collection[GpuId]] = migration_rules.given_up if migration_rules is not None else {}
        self._given_up = {job_id: blocks.positions(gpus) for job_id, gpus in given_up.items()}
        self._withheld = 0  # free positions that the job does not get which is placed now
        gangs: Mapping[str, int] = migration_rules.gangs if migration_rules is not None else {}
        self._gangs = {job_id: log2(num_gpus) for job_id, num_gpus in gangs.items()}
        self._wanted_of_gangs = {job_id: staying[job_id].num_gpus for job_id in self._gangs if job_id in staying}

    @property
    def taken(self) -> BitSet:
        """All taken positions."""
        return self._blocks.every_position ^ self._free.positions

    @property
    def meets_claims(self) -> bool:
        """Whether each job with a claim is connected no worse than the worst block of its size, and is complete."""
        claims = self._migration_rules.claims if self._migration_rules is not None else frozenset[str]()
        held = self.positions_by_job
        lacks_replicas = any(
            job_id not in held or held[job_id].num_gpus < self._wanted_of_gangs[job_id]
            for job_id in claims & self._wanted_of_gangs.keys()
        )
        return not lacks_replicas and all(held[job_id].meets_claim for job_id in claims & held.keys())

    def resize(self, wanted: Mapping[str, int], current: Mapping[str, tuple[GpuId, ...]]) -> None:
        """Place the jobs whose number of GPUs changes, largest first.

        First jobs that can shrink inside their own GPUs, then jobs that can grow around them, then all others by best
        fit.
        """
        waiting = sorted(wanted, key=lambda job_id: (-wanted[job_id], job_id))
        growing = self._held_gangs(wanted, current) if self._gangs else frozenset[str]()
        held = [job_id for job_id in waiting if current.get(job_id) and job_id not in growing]
        for job_id in sorted(held, key=lambda job_id: wanted[job_id] > len(current[job_id])):
            size, own = log2(wanted[job_id]), self._blocks.positions(current[job_id])
            with self._free_without(job_id, wanted[job_id]):
                start = self._best_fit(job_id, size, self._blocks.near(own, size))
                if start is not None and not self._is_better_than_needed(job_id, size, start):
                    self._assign(job_id, size, start)
                elif job_id in self._gangs:
                    self._keep_replicas(job_id, own, wanted[job_id])
        for job_id in waiting:
            if job_id in growing:
                self._grow(job_id, log2(wanted[job_id]))
            elif job_id not in self.positions_by_job:
                self._place_anew(job_id, wanted[job_id])

    def _held_gangs(self, wanted: Mapping[str, int], current: Mapping[str, tuple[GpuId, ...]]) -> Set[str]:
        """The jobs that are to get more replicas. They hold those that they have until more are found for them.

        Of three replicas, say, they hold two: no job holds another number of GPUs than a power of two, nor fewer than
        it runs on.
        """
        found = set[str]()
        fewest_gpus = self._migration_rules.fewest_gpus if self._migration_rules is not None else dict[str, int]()
        for job_id in sorted(self._gangs.keys() & wanted.keys()):
            self._wanted_of_gangs[job_id] = wanted[job_id]
            there = tuple(gpu for gpu in current.get(job_id, ()) if gpu in self._blocks.position_by_gpu)
            gpus = there[: largest_size_up_to(len(there))] if there else ()
            own = self._blocks.positions(gpus)
            is_free = own == own & self._free.positions
            is_whole = are_whole_gangs([gpu.node_id for gpu in there], 1 << self._gangs[job_id])
            is_enough = fewest_gpus.get(job_id, 0) <= len(gpus)
            if own and is_free and is_whole and is_enough and len(there) < wanted[job_id]:
                self._free.take(own)
                self.positions_by_job[job_id] = GpuPositions(self._blocks, gpus, len(gpus))
                found.add(job_id)
        return found

    def _grow(self, job_id: str, size: int) -> None:
        """Give a job more replicas, around those that it has if possible; it keeps these if there are no more."""
        held = self.positions_by_job.pop(job_id, None)  # a job before it may have displaced it
        own = 0 if held is None else held.positions
        self._free.give(own)
        with self._free_without(job_id, 1 << size):
            start = self._best_fit(job_id, size, self._blocks.near(own, size))
            is_placed = start is not None and not self._is_better_than_needed(job_id, size, start)
            if start is not None and is_placed:
                self._assign(job_id, size, start)
        if not is_placed and not self._place_anew_in_gangs(job_id, size) and held is not None:
            self._free.take(own)
            self.positions_by_job[job_id] = held

    def _keep_replicas(self, job_id: str, own: BitSet, num_gpus: int) -> None:
        """Let a job that shrinks keep so many of its GPUs, in whole replicas, if it has them."""
        own = self._blocks.in_gangs(own & self._free.positions, self._gangs[job_id])
        if own.bit_count() >= num_gpus > 1 << self._gangs[job_id]:
            self._take(job_id, FreeBlocks(self._blocks, own, self._avoided).fragments(num_gpus, self._gangs[job_id]))

    def keep_claims(self) -> None:
        """Migrate jobs that are connected worse than their claim, because a node was lost or a block was not free."""
        if self._migration_rules is None:
            return
        for job_id in sorted(self._migration_rules.claims & self._staying):
            held = self.positions_by_job[job_id]  # a job before it may have displaced it
            if held.meets_claim or self._displacement_cost(job_id) == inf:
                continue
            del self.positions_by_job[job_id]
            self._free.give(held.positions)
            if self._place_claim(job_id, log2(held.num_gpus)):
                self.migrated.add(job_id)
            else:
                self._free.take(held.positions)
                self.positions_by_job[job_id] = held

    def _place_anew(self, job_id: str, num_gpus: int) -> bool:
        """Whether the place meets the claim of the job, if it has one."""
        if job_id in self._staying:
            self.migrated.add(job_id)
        if job_id in self._gangs:
            return self._place_anew_in_gangs(job_id, log2(num_gpus)) or not self._has_claim(job_id)
        with self._free_without(job_id, num_gpus):
            if self._has_claim(job_id) and self._place_claim(job_id, log2(num_gpus)):
                return True
            self._find_block(job_id, log2(num_gpus))
        return self.positions_by_job[job_id].meets_claim or not self._has_claim(job_id)

    def _place_anew_in_gangs(self, job_id: str, size: int) -> bool:
        """Whether there are enough replicas; rather on GPUs that the job has given up than on none."""
        with self._free_without(job_id, 1 << size):
            is_placed = self._place_gangs(job_id, size)
        return is_placed or (job_id in self._given_up and self._place_gangs(job_id, size))

    @contextmanager
    def _free_without(self, job_id: str, num_gpus: int) -> Generator[None]:
        """The positions that the job gives up do not count as free meanwhile, if enough others are."""
        withheld = self._given_up.get(job_id, 0) & self._free.positions
        if not withheld or (self._free.positions ^ withheld).bit_count() < num_gpus:
            yield
            return
        self._free.take(withheld)
        self._withheld |= withheld
        yield
        self._withheld ^= withheld
        self._free.give(withheld)

    def bring_closer(self) -> None:
        """Migrate movable jobs to free blocks that connect them better, where that pays."""
        for job_id in self._movable:
            held = self.positions_by_job[job_id]
            size = log2(held.num_gpus)
            if not held.spread or not self._blocks.inside(self._free.positions | held.positions, size):
                continue
            self._free.give(held.positions)
            start = self._free.best_fit(size, self._among(job_id, size))
            if start is not None and self._pays(job_id, held.level, size, start):
                self._free.take_block(size, start)
                self._move(job_id, size, start)
            else:
                self._free.take(held.positions)

    def _pays(self, job_id: str, level: Level, size: int, start: int) -> bool:
        """Whether a migration to a block is worth the stop to a job whose GPUs `level` connects."""
        migration_benefit = self._migration_benefit(job_id)
        closer = self._blocks.level_of_block(size, start)
        return migration_benefit.gained_gpu_seconds(level, closer) > migration_benefit.lost_gpu_seconds

    def _best_fit(self, job_id: str, size: int, among: BitSet = -1) -> int | None:
        return self._free.best_fit(
            size, among & self._among(job_id, size), worst_level=self._measured_level(job_id) is not None
        )

    def _among(self, job_id: str, size: int) -> BitSet:
        """The blocks of 2^size GPUs that the job may get: to which it has a claim, if it has one, and of whole
        replicas, if these have several GPUs."""
        claimed = self._blocks.of_claims(size) if self._has_claim(job_id) else -1
        return claimed & self._blocks.of_gangs(size, self._gangs[job_id]) if job_id in self._gangs else claimed

    def _measured_level(self, job_id: str) -> Level | None:
        return None if self._migration_rules is None else self._migration_rules.measured_level(job_id)

    def _is_better_than_needed(self, job_id: str, size: int, start: int) -> bool:
        """Whether the speed of the job is to be measured, and free GPUs are connected worse than this block."""
        if self._measured_level(job_id) is None:
            return False
        worst = self._best_fit(job_id, size)
        level = self._blocks.level_of_block(size, start)
        is_better = worst is not None and level < self._blocks.level_of_block(size, worst)
        return is_better or self._apart_to_measure(job_id, size, start) is not None

    def _apart_to_measure(self, job_id: str, size: int, start: int | None) -> BitSet | None:
        """Free GPUs that are connected as badly as a promise counts on, for a job whose speed is to be measured there.

        None if the block is, or if there are none. Jobs with a claim keep to blocks, and some others.
        """
        level = self._measured_level(job_id)
        if level is None or not size or self._has_claim(job_id) or self._keeps_to_blocks(job_id):
            return None
        if start is not None and self._blocks.level_of_block(size, start) >= level:
            return None
        return self._free.apart(1 << size, level)

    def _keeps_to_blocks(self, job_id: str) -> bool:
        return self._migration_rules is not None and job_id in self._migration_rules.keep_to_blocks

    def _find_block(self, job_id: str, size: int) -> None:
        start = self._best_fit(job_id, size)
        if (apart := self._apart_to_measure(job_id, size, start)) is not None:
            self._take(job_id, apart)
            return
        if start is None:
            fragments = self._free.fragments(1 << size)
            start = self._block_after_migrations(job_id, size, self._blocks.level(fragments)) if self._movable else None
            if start is None:
                self._take(job_id, fragments)
                return
        self._assign(job_id, size, start)

    def _take(self, job_id: str, positions: BitSet) -> None:
        """Give a job these free positions."""
        self._free.take(positions)
        gpus = self._blocks.gpus(self._blocks.members(positions))
        self.positions_by_job[job_id] = GpuPositions(self._blocks, gpus, len(gpus))

    def _assign(self, job_id: str, size: int, start: int) -> None:
        self._free.take_block(size, start)
        self.positions_by_job[job_id] = self._positions_of_block(size, start)

    def _move(self, job_id: str, size: int, start: int) -> None:
        self.positions_by_job[job_id] = self._positions_of_block(size, start)
        self.migrated.add(job_id)
        self._movers = None

    def _positions_of_block(self, size: int, start: int) -> GpuPositions:
        return GpuPositions(self._blocks, self._blocks.gpus_of_block(size, start), 1 << size)

    def _block_after_migrations(self, job_id: str, size: int, level: Level) -> int | None:
        """The start of a block that migrations emptied for a job that would get fragments connected by `level`.

        None if no such migration pays: it must cost less than it gains, and place no migrated job further apart.
        """
        self._movers = self._movers or MigratableJobs.of(
            self._blocks, {j: self.positions_by_job[j] for j in self._movable}
        )
        clearable = self._blocks.inside(self._free.positions | self._movers.positions, size)
        num_taken = self._blocks.counts(self.taken, size)
        for closer, of_level in self._blocks.blocks_by_level(size):
            gained = self._migration_benefit(job_id).gained_gpu_seconds(level, closer)
            starts = self._blocks.members(clearable & of_level) if gained > 0 else []
            for start in sorted(starts, key=lambda start: num_taken[start >> size])[:MAX_BLOCKS_TRIED]:
                leaving = self._movers.within(range(start, start + (1 << size)))
                lost = sum(self._migration_benefit(other_id).lost_gpu_seconds for other_id in leaving)
                if lost < gained and self._migrate_out_of(_block(size, start), leaving):
                    return start
        return None

    def _migrate_out_of(self, block: BitSet, leaving: Sequence[str]) -> bool:
        """Migrate these jobs out of a block, each to an equally good free block; False if one finds none."""
        around = self._free.positions
        for job_id in leaving:
            around |= self.positions_by_job[job_id].positions
        free, chosen = FreeBlocks(self._blocks, around & ~block, self._avoided), dict[str, tuple[int, int]]()
        for job_id in sorted(leaving, key=lambda job_id: (-self.positions_by_job[job_id].num_gpus, job_id)):
            size = log2(self.positions_by_job[job_id].num_gpus)
            start = free.best_fit(size, self._among(job_id, size))
            if start is None or self._blocks.level_of_block(size, start) > self.positions_by_job[job_id].level:
                return False
            free.take_block(size, start)
            chosen[job_id] = (size, start)
        for job_id, (size, start) in chosen.items():
            self._move(job_id, size, start)
        free.give(block)
        self._free = free
        return True

    def _has_claim(self, job_id: str) -> bool:
        return self._migration_rules is not None and job_id in self._migration_rules.claims

    def _displacement_cost(self, job_id: str) -> float:
        """0 for a job that is placed anew in any case."""
        assert self._migration_rules is not None
        if job_id not in self._staying or job_id in self.migrated:
            return 0.0
        return self._migration_rules.displacement_cost(job_id)

    def _place_claim(self, job_id: str, size: int) -> bool:
        """Place a job with a claim to 2^size GPUs, after the jobs that lie there have moved.

        Nothing changes if one of these would lose its own claim: jobs that must not migrate are in its way.
        """
        start = self._best_fit(job_id, size)
        if start is not None:
            self._assign(job_id, size, start)
            return True
        return self._place_on_units(job_id, size, self._blocks.unit(size))

    def _place_gangs(self, job_id: str, size: int) -> bool:
        """Place a job in whole replicas: in one block, if it is free or the job has a claim to it; else in several, at
        last in those that jobs leave which may have fragments instead. Nothing changes if there are too few."""
        gang = self._gangs[job_id]
        start = self._best_fit(job_id, size)
        if start is not None:
            self._assign(job_id, size, start)
            return True
        if self._has_claim(job_id) and self._place_on_units(job_id, size, max(self._blocks.unit(size), gang)):
            return True
        if self._blocks.in_gangs(self._free.positions, gang).bit_count() >= 1 << size:
            self._take(job_id, self._free.fragments(1 << size, gang))
            return True
        return self._place_on_units(job_id, size, gang, is_hard=True)

    def _place_on_units(self, job_id: str, size: int, unit: int, *, is_hard: bool = False) -> bool:
        """Place a job on 2^size GPUs in blocks of 2^unit, after the jobs that lie there have moved.

        is_hard: these may have fragments instead of the blocks to which they have a claim. For a job without a claim,
        none of them goes without GPUs.
        """
        among = self._among(job_id, unit)
        free = self._blocks.members(self._blocks.inside(self._free.positions, unit) & among)[: 1 << (size - unit)]
        num_missing = (1 << (size - unit)) - len(free)
        if not num_missing:
            self._take(job_id, sum(_block(unit, start) for start in free))
            return True
        kept, has_claim = self._kept_by_others(job_id, unit, is_hard=is_hard), self._has_claim(job_id)
        cheapest = self._clearable_blocks(unit, num_missing + MAX_BLOCKS_TRIED, kept, among)
        for first in range(min(len(cheapest) - num_missing + 1, MAX_ATTEMPTS)):
            before = (dict(self.positions_by_job), self._free.positions, set(self.migrated), list(self._movable))
            emptied = cheapest[first : first + num_missing]
            displaced = self._displaced_from(sum(_block(unit, start) for start in emptied))
            self._take(job_id, sum(_block(unit, start) for start in (*free, *emptied)))
            if all(
                self._place_anew(other_id, num_gpus) or (is_hard and other_id not in self._gangs)
                for num_gpus, other_id in displaced
            ) and (has_claim or all(other_id in self.positions_by_job for _, other_id in displaced)):
                return True
            self.positions_by_job, positions, self.migrated, self._movable = before
            self._free, self._movers = FreeBlocks(self._blocks, positions, self._avoided), None
        return False

    def _kept_by_others(self, job_id: str, size: int, *, is_hard: bool) -> BitSet:
        """The positions that no job leaves for this one: withheld ones, and those of larger and equal jobs with a claim
        to their blocks.

        is_hard: those of other jobs with as many GPUs for each replica; a job with a claim takes those without one,
        and a job without a claim none of a job that has one. Whatever it is, promised replicas are left for larger
        ones only.
        """
        kept, has_claim = self._withheld, self._has_claim(job_id)
        for other_id, held in self.positions_by_job.items():
            claims, gang = self._has_claim(other_id), self._gangs.get(other_id, 0)
            if is_hard and not has_claim:
                keeps = claims or gang >= self._gangs[job_id]
            elif is_hard or gang:
                keeps = claims and gang >= self._gangs.get(job_id, 0)
            else:
                keeps = claims and held.num_gpus >= 1 << size and self._is_whole(held)
            if keeps:
                kept |= held.positions
        return kept

    def _clearable_blocks(self, size: int, count: int, kept: BitSet, among: BitSet) -> list[int]:
        """The starts of blocks whose jobs can leave, cheapest first among those with the fewest GPUs to leave.

        kept: the positions that stay as they are. among: the blocks that may be taken.
        """
        holders = dict[int, str]()
        for job_id, held in self.positions_by_job.items():
            if not held.positions & kept:
                holders.update(dict.fromkeys(held.members, job_id))
        taken = self._blocks.counts(self.taken, size)
        candidates = self._blocks.members(self._blocks.inside(self._blocks.every_position & ~kept, size) & among)
        found = list[tuple[float, int]]()
        for start in sorted(candidates, key=lambda start: taken[start >> size]):
            here = (holders[each] for each in range(start, start + (1 << size)) if each in holders)
            leaving = dict.fromkeys(here)  # in this order: another sum may choose another block in a replay
            cost = 0.0 if leaving else inf
            for job_id in leaving:
                if (cost := cost + self._displacement_cost(job_id)) == inf:
                    break
            if cost < inf:
                found.append((cost, start))
            if len(found) == count:
                break
        return [start for _, start in sorted(found)]

    def _displaced_from(self, positions: BitSet) -> list[tuple[int, str]]:
        """Free all GPUs of the jobs on these positions; return their numbers of GPUs and the jobs, largest first."""
        leaving = [job_id for job_id, held in self.positions_by_job.items() if held.positions & positions]
        sizes = [(self.positions_by_job[job_id].num_gpus, job_id) for job_id in leaving]
        for job_id in leaving:
            self._free.give(self.positions_by_job.pop(job_id).positions)
        self._movable = [job_id for job_id in self._movable if job_id not in leaving]
        self._movers = None
        return sorted(sizes, key=lambda each: (-each[0], each[1]))

    def _is_whole(self, held: GpuPositions) -> bool:
        """Whether a job holds a block, or as many units of one as it needs."""
        unit = self._blocks.unit(log2(held.num_gpus))
        return self._blocks.inside(held.positions, unit).bit_count() << unit == held.num_gpus

    def _migration_benefit(self, job_id: str) -> MigrationBenefit:
        assert self._migration_rules is not None
        return self._migration_rules.migration_benefit(job_id)


def _block(size: int, start: int) -> BitSet:
    return ((1 << (1 << size)) - 1) << start

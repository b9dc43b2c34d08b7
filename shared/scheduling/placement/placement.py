"""Placement: which GPUs each job gets. Buddy blocks on the topology tree, best fit; fragments where no block is free.

A job whose number of GPUs does not change keeps its GPUs: a migration stops it, and its promise does not budget
that stop. Only jobs that the caller names migrate, and only if it pays (docs/adr/0011). So enough GPUs can be free
without a free block; the job then gets fragments and is never rejected. `allocation` decides the number of GPUs.
Source: ElasticFlow, section 4.3.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.placement.free_blocks import (
    BitSet,
    Blocks,
    FreeBlocks,
    GpuPositions,
    LastPositions,
    MigratableJobs,
    log2,
)
from elasticflow.shared.scheduling.placement.topology import CLUSTER, LEVEL_BY_NAME, Level, Topology
from elasticflow.shared.state.measured_curve import MeasuredCurve

# --- Throughput of a job by what connects its GPUs, and what a closer placement is worth ---------------
# A table that was measured at a known level has a profile key with that level, "resnet50/b256@node". The table under
# the plain key was measured at an unknown level and is used where no other exists. Source: ElasticFlow, section 3.2
# and figure 2(b).

UNMEASURED_SAVING = 0.1
"""Assumed fraction of its time that a closer placement saves where no table exists. Cautious: figure 2(b) shows
more than
half for ResNet50 on one node instead of eight. No promise counts on it.
"""


@dataclass(frozen=True, slots=True)
class PlacementCurves:
    """The scaling curves of one job by level, and the one measured at an unknown level."""

    anywhere: ScalingCurve | None
    by_level: Mapping[Level, ScalingCurve]

    def throughput(self, num_gpus: int, level: Level) -> float:
        """Iterations/s on GPUs that `level` connects, never too high; 0 if the job cannot run there.

        Taken from this level, else from the next slower level, else from the curve of unknown level.
        """
        for measured_level in sorted(self.by_level):
            if measured_level >= level and (rate := self.by_level[measured_level].throughput(num_gpus)):
                return rate
        return self.anywhere.throughput(num_gpus) if self.anywhere else 0.0

    def guaranteed(self, level: Level = CLUSTER) -> ScalingCurve | None:
        """The curve that a promise may count on if `level` or a faster one connects the GPUs; None if it never runs."""
        levels = [level, *(measured_level for measured_level in self.by_level if measured_level < level)]
        curves = [*self.by_level.values(), *([self.anywhere] if self.anywhere else [])]
        slowest = {
            num_gpus: min(self.throughput(num_gpus, at_level) for at_level in levels)
            for num_gpus in sorted({num_gpus for curve in curves for num_gpus in curve.num_gpus_L})
        }
        runs = {num_gpus: rate for num_gpus, rate in slowest.items() if rate > 0}
        return ScalingCurve(tuple(runs), tuple(runs.values())) if runs else None

    def time_saved(self, num_gpus: int, level: Level, closer: Level) -> float:
        """The fraction of its time that the job saves on GPUs connected by `closer` instead of `level`; 0 if none."""
        if closer >= level:
            return 0.0
        if not any(curve.throughput(num_gpus) for curve in self.by_level.values()):
            return UNMEASURED_SAVING
        fast = self.throughput(num_gpus, closer)
        return max(1.0 - self.throughput(num_gpus, level) / fast, 0.0) if fast else 0.0


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


def placement_curves(measured: Mapping[str, MeasuredCurve], profile_key: str, factor: float = 1.0) -> PlacementCurves:
    """The curves of a profile by level. factor: the part of each throughput to count on."""
    by_level = {
        level: curve
        for name, level in LEVEL_BY_NAME.items()
        if (curve := _curve(measured.get(f"{profile_key}@{name}"), factor)) is not None
    }
    return PlacementCurves(_curve(measured.get(profile_key), factor), by_level)


def _curve(measured: MeasuredCurve | None, factor: float) -> ScalingCurve | None:
    return None if measured is None else _scaling_curve(tuple(measured.iterations_per_s.items()), factor)


def _scaling_curve(rates: tuple[tuple[int, float], ...], factor: float) -> ScalingCurve | None:
    points = sorted((n, rate * factor) for n, rate in rates if n > 0 and not n & (n - 1) and rate > 0)
    return ScalingCurve(tuple(n for n, _ in points), tuple(rate for _, rate in points)) if points else None


# --- placement -----------------------------------------------------------------------------------------

MAX_BLOCKS_TRIED = 8  # candidates to empty for one job: those with the fewest GPUs to migrate


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The GPUs of each job. migrated: jobs that moved although their number of GPUs did not change."""

    gpus_by_job: Mapping[str, tuple[GpuId, ...]]
    migrated: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRules:
    """movable: jobs that may migrate. migration_benefit(job_id): the value of a placement to a job."""

    movable: Set[str]
    migration_benefit: Callable[[str], MigrationBenefit]


def place(
    topology: Topology,
    current: Mapping[str, tuple[GpuId, ...]],
    num_gpus_by_job: Mapping[str, int],
    migration_rules: MigrationRules | None = None,
    avoided: Collection[GpuId] = (),
    given_up: Mapping[str, Collection[GpuId]] | None = None,
    last: LastPositions | None = None,
) -> Placement:
    """Give each job its number of GPUs, in one buddy block wherever one is free.

    num_gpus_by_job: 0 or powers of two, in total at most the GPUs of the topology.
    current: GPUs that no longer exist are ignored.
    migration_rules: None: no job migrates.
    avoided: GPUs that are used only where others are not connected as well; no job leaves them or goes without for
    them.
    given_up: by job whose GPUs change, those that it gets only if too few others are free.
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
    builder.resize(changing, current, {job_id: blocks.positions(gpus) for job_id, gpus in (given_up or {}).items()})
    builder.bring_closer()
    last.keep(builder.positions_by_job, builder.taken)
    return Placement(
        gpus_by_job={job_id: held.gpus for job_id, held in builder.positions_by_job.items()},
        migrated=tuple(sorted(builder.migrated)),
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
        self.positions_by_job = dict(staying)
        self.migrated = set[str]()
        self._blocks = blocks
        self._avoided = avoided
        self._free = FreeBlocks(blocks, blocks.every_position ^ taken, avoided)
        self._migration_rules = migration_rules
        self._movable = sorted(migration_rules.movable & staying.keys()) if migration_rules else []
        self._movers: MigratableJobs | None = None  # of the movable jobs; None: not computed yet

    @property
    def taken(self) -> BitSet:
        """All taken positions."""
        return self._blocks.every_position ^ self._free.positions

    def resize(
        self,
        wanted: Mapping[str, int],
        current: Mapping[str, tuple[GpuId, ...]],
        given_up: Mapping[str, BitSet],
    ) -> None:
        """Place the jobs whose number of GPUs changes, largest first.

        First jobs that can shrink inside their own GPUs, then jobs that can grow around them, then all others by best
        fit. given_up: positions that a job gets only if too few others are free.
        """
        waiting = sorted(wanted, key=lambda job_id: (-wanted[job_id], job_id))
        held = [job_id for job_id in waiting if current.get(job_id)]
        for job_id in sorted(held, key=lambda job_id: wanted[job_id] > len(current[job_id])):
            size, own = log2(wanted[job_id]), self._blocks.positions(current[job_id])
            with self._free_without(given_up.get(job_id, 0), wanted[job_id]):
                start = self._free.best_fit(size, self._blocks.near(own, size))
                if start is not None:
                    self._assign(job_id, size, start)
        for job_id in waiting:
            if job_id not in self.positions_by_job:
                with self._free_without(given_up.get(job_id, 0), wanted[job_id]):
                    self._find_block(job_id, log2(wanted[job_id]))

    @contextmanager
    def _free_without(self, given_up: BitSet, num_gpus: int) -> Iterator[None]:
        """These positions do not count as free meanwhile, if enough others are."""
        withheld = given_up & self._free.positions
        if not withheld or (self._free.positions ^ withheld).bit_count() < num_gpus:
            yield
            return
        self._free.take(withheld)
        yield
        self._free.give(withheld)

    def bring_closer(self) -> None:
        """Migrate movable jobs to free blocks that connect them better, where that pays."""
        for job_id in self._movable:
            held = self.positions_by_job[job_id]
            size = log2(held.num_gpus)
            if not held.spread or not self._blocks.inside(self._free.positions | held.positions, size):
                continue
            self._free.give(held.positions)
            start = self._free.best_fit(size)
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

    def _find_block(self, job_id: str, size: int) -> None:
        start = self._free.best_fit(size)
        if start is None:
            fragments = self._free.fragments(1 << size)
            start = self._block_after_migrations(job_id, size, self._blocks.level(fragments)) if self._movable else None
            if start is None:
                self._free.take(fragments)
                gpus = self._blocks.gpus(self._blocks.members(fragments))
                self.positions_by_job[job_id] = GpuPositions(self._blocks, gpus, 1 << size)
                return
        self._assign(job_id, size, start)

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
            start = free.best_fit(size)
            if start is None or self._blocks.level_of_block(size, start) > self.positions_by_job[job_id].level:
                return False
            free.take_block(size, start)
            chosen[job_id] = (size, start)
        for job_id, (size, start) in chosen.items():
            self._move(job_id, size, start)
        free.give(block)
        self._free = free
        return True

    def _migration_benefit(self, job_id: str) -> MigrationBenefit:
        assert self._migration_rules is not None
        return self._migration_rules.migration_benefit(job_id)


def _block(size: int, start: int) -> BitSet:
    return ((1 << (1 << size)) - 1) << start

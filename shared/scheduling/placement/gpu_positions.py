"""The GPUs of jobs as positions among buddy blocks. `placement` assigns them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.scheduling.placement.buddy_blocks import BitSet, Blocks
from elasticflow.shared.scheduling.placement.topology import Level, Topology


@dataclass(frozen=True)  # not slotted: derived values are cached properties
class GpuPositions:
    """The GPUs of a job. num_gpus: how many they are, or -1 if not all of them exist."""

    blocks: Blocks
    gpus: tuple[GpuId, ...]
    num_gpus: int

    @cached_property
    def positions(self) -> BitSet:
        """Their positions."""
        return self.blocks.positions(self.gpus)

    @cached_property
    def level(self) -> Level:
        """What connects them."""
        return self.blocks.level(self.positions)

    @property
    def spread(self) -> bool:
        """Whether blocks of the same size exist, free or not, that are connected better."""
        return self.level > self.blocks.blocks_by_level(log2(self.num_gpus))[0][0]


class LastPositions:
    """The last placement on a topology. A cache and no state: most jobs keep their GPUs from one placement to the
    next.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology, self.blocks = topology, Blocks(topology)
        self.keep({}, 0)

    def keep(self, positions_by_job: Mapping[str, GpuPositions], taken: BitSet) -> None:
        """Store a placement and all positions that it takes."""
        self._positions_by_job, self._taken = positions_by_job, taken

    def positions_of(self, job_id: str, gpus: tuple[GpuId, ...]) -> GpuPositions:
        """The positions of a job on these GPUs."""
        held = self._positions_by_job.get(job_id)
        if held is not None and (held.gpus is gpus or held.gpus == gpus):
            return held
        exist = all(gpu in self.blocks.position_by_gpu for gpu in gpus)
        return GpuPositions(self.blocks, gpus, len(gpus) if exist else -1)

    def taken_by(self, positions_by_job: Mapping[str, GpuPositions]) -> BitSet:
        """All taken positions, computed from those that differ from the last placement."""
        taken = self._taken
        gone = [held for job_id, held in self._positions_by_job.items() if positions_by_job.get(job_id) is not held]
        new = [held for job_id, held in positions_by_job.items() if self._positions_by_job.get(job_id) is not held]
        if len(gone) > len(positions_by_job):
            taken, gone, new = 0, [], list(positions_by_job.values())
        for held in gone:
            taken ^= held.positions
        for held in new:
            assert not taken & held.positions, f"two jobs on one GPU of {held.gpus}"
            taken |= held.positions
        return taken


@dataclass(frozen=True, slots=True)
class MigratableJobs:
    """The positions of the jobs that may migrate."""

    positions: BitSet
    job_by_position: Mapping[int, str]

    @staticmethod
    def of(blocks: Blocks, positions_by_job: Mapping[str, GpuPositions]) -> "MigratableJobs":
        positions, job_by_position = 0, dict[int, str]()
        for job_id, held in positions_by_job.items():
            positions |= held.positions
            job_by_position.update(dict.fromkeys(map(blocks.position_by_gpu.__getitem__, held.gpus), job_id))
        return MigratableJobs(positions, job_by_position)

    def within(self, positions: Iterable[int]) -> list[str]:
        """The jobs on any of these positions."""
        here = map(self.job_by_position.get, positions)
        return list(dict.fromkeys(job_id for job_id in here if job_id is not None))


def log2(num_gpus: int) -> int:
    """The exponent of a power of two."""
    return num_gpus.bit_length() - 1

"""How a job divides its virtual nodes if some GPUs of its share are slow: those carry fewer of them, or are left out.

A GPU that takes s times as long for equal work makes the step s times as long, however many others there are. A worker
without virtual nodes would compute one again (docs/adr/0046), so a GPU that is to carry none leaves the job.
Source: Amoeba, section 5.4, where a straggler is removed; VirtualFlow, section 5.1.2, for unequal parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import job_step_times
from elasticflow.shared.scheduling.heterogeneous.step_times import CommunicationTimes
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import (
    GpusOfType,
    TooLittleMemory,
    split_virtual_nodes,
)
from elasticflow.shared.state.pool import PoolState

_HEALTHY = "healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """used: which GPUs of the share have a worker. counts: the virtual nodes of each of these; empty: even parts."""

    used: tuple[int, ...]
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedSteps:
    """The steps of a job on the GPUs of its share. slowdowns: of each; 1 if it does not count as slow.

    one_gpu: the step times by virtual nodes; None: the number of virtual nodes is unknown.
    least_gpus: on which the job may run.
    """

    slowdowns: tuple[float, ...]
    one_gpu: GpusOfType | None
    least_gpus: int = 1

    @property
    def even(self) -> Division:
        """Even parts on the whole share."""
        return Division(used=tuple(range(len(self.slowdowns))))

    def step_s(self, division: Division) -> float:
        """The step of the slowest GPU.

        Where the number V of virtual nodes is unknown, it counts as that of GPUs. That is an upper bound of what GPUs
        cost that are left out: ceil(V / m) is at most ceil(n / m) times ceil(V / n).
        """
        one_gpu = self.one_gpu or proportional(sum(division.counts) or len(self.slowdowns))
        num_used = len(division.used)
        counts = division.counts or (-(-len(one_gpu.step_s_V) // num_used),) * num_used
        computes_s = max(
            self.slowdowns[index] * one_gpu.step_s_V[max(count, 1) - 1]
            for index, count in zip(division.used, counts, strict=True)
        )
        return computes_s + one_gpu.communication.at(num_used)

    def fastest(self) -> Division:
        """The division with the shortest step. All GPUs that do not count as slow are used, with even parts."""
        return self._by_whole_gpus() if self.one_gpu is None else self._by_virtual_nodes(self.one_gpu)

    def _by_whole_gpus(self) -> Division:
        """Even parts, because no other counts are known to fit: so many of the slowest GPUs are left out."""
        slowest_first = sorted(self._slow, key=lambda index: (-self.slowdowns[index], index))
        divisions = (_without(self.even, slowest_first[:num_out]) for num_out in range(len(slowest_first) + 1))
        return min((each for each in divisions if self._is_allowed(each)), key=self.step_s)

    def _by_virtual_nodes(self, one_gpu: GpusOfType) -> Division:
        num_virtual_nodes = len(one_gpu.step_s_V)
        carried = self._carried_by_slow(one_gpu, num_virtual_nodes)
        left_out = [index for index, count in carried.items() if not count]
        if not self._is_allowed(_without(self.even, left_out)):
            carried, left_out = {index: max(count, 1) for index, count in carried.items()}, []
        used = _without(self.even, left_out).used
        rest = num_virtual_nodes - sum(carried.values())
        healthy = [index for index in used if index not in carried]
        if len(left_out) == len(carried) or rest < len(healthy):
            return Division(used=used)
        parts = dict(zip(healthy, _even_parts(rest, len(healthy)) if healthy else (), strict=True))
        return Division(used=used, counts=tuple(carried[index] if index in carried else parts[index] for index in used))

    def _carried_by_slow(self, one_gpu: GpusOfType, num_virtual_nodes: int) -> dict[int, int]:
        """The virtual nodes of each slow GPU; none where the others alone are nearly as fast.

        All workers communicate for equally long, so this decides nothing here.
        """
        alone = replace(one_gpu, communication=CommunicationTimes())
        kinds = [_slower(alone, str(index), self.slowdowns[index]) for index in self._slow]
        if num_healthy := len(self.slowdowns) - len(kinds):
            kinds.append(replace(alone, name=_HEALTHY, num_gpus=num_healthy))
        split = split_virtual_nodes(kinds, num_virtual_nodes)
        assert not isinstance(split, TooLittleMemory), split
        return {index: sum(split.counts.get(str(index), ())) for index in self._slow}

    @property
    def _slow(self) -> list[int]:
        return [index for index, slowdown in enumerate(self.slowdowns) if slowdown > 1.0]

    def _is_allowed(self, division: Division) -> bool:
        return len(division.used) >= max(self.least_gpus, 1)


def one_gpu_of(state: PoolState, submitted: JobSpec, own: str, num_virtual_nodes: int) -> GpusOfType | None:
    """A GPU of this recorded type: as a profile has measured it, else with steps proportional to its virtual nodes.

    state: with all types. num_virtual_nodes: as the job has reported; 0: unknown.
    """
    times = job_step_times(state, submitted)
    measured = times.gpus(own, 1) if times is not None and own in times.by_type else None
    if measured is not None and num_virtual_nodes in (0, len(measured.step_s_V)):
        return measured
    return proportional(num_virtual_nodes) if num_virtual_nodes else None


def proportional(num_virtual_nodes: int) -> GpusOfType:
    """One GPU, in its steps of one virtual node.

    A step has a fixed part, too: more virtual nodes take no longer than this says, and fewer no longer than before. So
    a division that is predicted to be faster is not slower, but may gain less.
    """
    return GpusOfType(name="", num_gpus=1, step_s_V=tuple(map(float, range(1, num_virtual_nodes + 1))))


def _slower(gpus: GpusOfType, name: str, slowdown: float) -> GpusOfType:
    return replace(gpus, name=name, num_gpus=1, step_s_V=tuple(slowdown * step_s for step_s in gpus.step_s_V))


def _without(division: Division, left_out: Sequence[int]) -> Division:
    return Division(used=tuple(index for index in division.used if index not in left_out))


def _even_parts(num_virtual_nodes: int, num_gpus: int) -> tuple[int, ...]:
    each, rest = divmod(num_virtual_nodes, num_gpus)
    return (each + 1,) * rest + (each,) * (num_gpus - rest)

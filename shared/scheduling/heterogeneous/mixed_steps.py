"""The steps of a job whose own GPUs are joined by idle ones of other types. Pure.

Axis: V = virtual nodes on one GPU, from 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.heterogeneous.communication_times import CommunicationTimes
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import job_step_times
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import (
    GpusOfType,
    TooLittleMemory,
    split_virtual_nodes,
)
from elasticflow.shared.state.gpu_types import have_same_arithmetic
from elasticflow.shared.state.pool import PoolState

Counts = Mapping[str, tuple[int, ...]]
"""The virtual nodes of each GPU, by recorded type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSteps:
    """step_s_V_by_type: of one GPU, by recorded type; the job's own one and those that may join it."""

    own: str
    num_virtual_nodes: int
    step_s_V_by_type: Mapping[str, tuple[float, ...]]
    communication: CommunicationTimes

    def fastest(self, num_own: int, num_others: Mapping[str, int]) -> Counts | None:
        """The split over all own GPUs and some of the others; None if no other one shortens the step.

        An own GPU may get no virtual node, where the others are so fast: the job does not leave it.
        num_others: those that may join, by type.
        """
        available = {self.own: num_own, **{name: num for name, num in num_others.items() if num > 0}}
        types = [
            GpusOfType(name=name, num_gpus=num_gpus, step_s_V=self.step_s_V_by_type[name])
            for name, num_gpus in available.items()
            if name in self.step_s_V_by_type
        ]
        split = split_virtual_nodes(types, self.num_virtual_nodes, self.communication, least_gain=0.0)
        if isinstance(split, TooLittleMemory) or not split.counts.keys() - {self.own}:
            return None
        own = split.counts.get(self.own, ())
        return {**split.counts, self.own: own + (0,) * (num_own - len(own))}

    def step_s(self, counts: Counts) -> float:
        """Of the slowest GPU, and the communication. A GPU without virtual nodes computes one of another GPU again."""
        computation_s = max(self.step_s_V_by_type[name][max(*each, 1) - 1] for name, each in counts.items() if each)
        return computation_s + self.communication.at(sum(map(len, counts.values())))


def mixed_steps(state: PoolState, submitted: JobSpec, own: str) -> MixedSteps | None:
    """Of a job on its own recorded type; None if its step times are unknown or no other type may join it.

    In the bitwise mode only types with the same arithmetic may, unless the user allows others (docs/adr/0049).
    """
    times = job_step_times(state, submitted)
    if times is None:
        return None
    mixes_all = times.reproducible == "fast" or submitted.mixed_gpu_types
    allowed = [name for name in times.by_type if mixes_all or have_same_arithmetic(state, own, name)]
    if own not in allowed or len(allowed) == 1:
        return None
    return MixedSteps(
        own=own,
        num_virtual_nodes=times.num_virtual_nodes,
        step_s_V_by_type={name: times.step_s_V(name) for name in allowed},
        communication=times.communication,
    )

"""The model of training time: what a change of GPUs costs, and progress at a constant rate.

The virtual cluster, the trace-driven simulation and the counterfactual replay all use it. Its parameters are given as a
resize cost, read from a file (`overhead`), or fitted to a recorded ledger (`recorded_times`). Pure: no clock.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from elasticflow.shared.messages.gpus import GpuId, largest_size_up_to
from elasticflow.shared.messages.measurements import SingleGpuStepTimes, counts_to_measure
from elasticflow.shared.scheduling.jobs.scaling_curve import FREE, ResizeCost, ScalingCurve

# A job with less than this left is done: after months, floats of seconds resolve little more. It is forgiven once
# in a job's life, at its end, not at each plan.
DONE_WITHIN_S = 1e-6
_STEP_TOLERANCE = 1e-6  # of a step, so that the last step has ended at the instant computed for it


def true_rate(iterations_per_s: Mapping[int, float], num_gpus: int, speed: float = 1.0) -> float:
    """Iterations per second on `num_gpus` GPUs, those of the next smaller power of two; 0 where none is known.

    iterations_per_s: by number of GPUs, as the curve says. speed: the true speed over the curve's.
    """
    return speed * iterations_per_s.get(largest_size_up_to(num_gpus), 0.0)


def step_s(iterations_per_s: float) -> float:
    """Seconds of a step: of the first one on new GPUs, and at most until the next step boundary."""
    return 1 / iterations_per_s


@dataclass(frozen=True, slots=True)
class RatedProgress:
    """A job that trains at one rate. iteration: reached at `starts_s`, fractions included."""

    starts_s: float
    iteration: float
    iterations_per_s: float

    def done(self, now_s: float) -> float:
        """Iterations since the start, fractions included; 0 before it."""
        return self.iterations_per_s * max(now_s - self.starts_s, 0.0)

    def whole_steps(self, now_s: float) -> int:
        """Steps that have ended since the start."""
        return int(self.done(now_s) + _STEP_TOLERANCE)

    def iteration_at(self, now_s: float) -> float:
        """Not capped: the caller knows when the job ends."""
        return self.iteration + self.done(now_s)

    def reaches_s(self, iteration: float) -> float:
        """The instant of this iteration, before `starts_s` if it lies behind; infinity without progress."""
        if self.iterations_per_s <= 0:
            return math.inf
        return self.starts_s + (iteration - self.iteration) / self.iterations_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTime:
    """A change of GPUs whose workers do not stop first (docs/adr/0018), by the new number of GPUs.

    prepare: until all workers are ready; those of the previous generation train meanwhile.
    stop: from the step boundary at which they switch to the first step on the new GPUs.
    """

    prepare: ResizeCost = FREE
    stop: ResizeCost = FREE


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTime:
    """How long each kind of change of a job's GPUs takes.

    first_start, restart: from the placement to the first step of a job that does not train meanwhile, by its new number
    of GPUs; a job without progress starts for the first time.
    grow, shrink: with workers that join, and without.
    suspend: until the workers of a job that stops have left their GPUs, by the number of these.
    """

    first_start: ResizeCost = FREE
    restart: ResizeCost = FREE
    grow: SwitchTime = SwitchTime()
    shrink: SwitchTime = SwitchTime()
    suspend: ResizeCost = FREE

    @staticmethod
    def of_cost(cost: ResizeCost, stop_s: float = 0.0) -> "TrainingTime":
        """All starts and preparations take as long; stop_s: of each switch. GPUs are left at once."""
        switch = SwitchTime(prepare=cost, stop=ResizeCost.flat(stop_s))
        return TrainingTime(first_start=cost, restart=cost, grow=switch, shrink=switch)

    def start_s(self, num_gpus: int, *, is_first: bool) -> float:
        """Seconds until the first step of a job that does not train meanwhile."""
        return (self.first_start if is_first else self.restart).seconds(num_gpus)

    def switch(self, *, joins: bool) -> SwitchTime:
        """joins: GPUs that the job did not have."""
        return self.grow if joins else self.shrink


# --- mixed types ---------------------------------------------------------------------------------------
# A job on GPUs of several types at once: how fast it trains, and the step times that let the services predict it.
#
# The rounds of `benchmarks/heterogeneous` and the trace-driven simulation share this model, so that mixes cost both
# the same. It is an assumption: throughput tables have no steps of GPUs of several types.

# An input of this model, no claim: the part of the sum of both throughputs that 2 V100 and 8 P100 of VirtualFlow reach.
# It follows from VF-F13 of benchmarks/papers/claims.toml, and a test compares them: no benchmark is imported here.
MEASURED_MIX_EFFICIENCY = 0.736
MOST_VIRTUAL_NODES = 128  # of a simulated job; a split over a few GPUs of any speeds balances them within a few percent


def mix_throughput(throughputs: Sequence[float], mix_efficiency: float | None) -> float:
    """Iterations/s on GPUs of all these types at once, from the throughput on each type alone.

    mix_efficiency: the part of the sum that a mix reaches, in (0, 1]; one type alone loses nothing.
    """
    return sum(throughputs) * (1.0 if len(throughputs) == 1 or mix_efficiency is None else mix_efficiency)


def throughput_in_mix(curve: ScalingCurve, num_gpus: int) -> float:
    """Iterations/s of any number of GPUs of one type: linear between levels, and that of the last level beyond it."""
    points = ((0, 0.0), *curve.rate_by_num_gpus.items())
    for (low, slower), (high, faster) in pairwise(points):
        if low < num_gpus <= high:
            return slower + (faster - slower) * (num_gpus - low) / (high - low)
    return curve.iterations_per_s_L[-1] if num_gpus else 0.0


def single_gpu_steps(iterations_per_s: float, global_batch_size: int, mix_efficiency: float) -> SingleGpuStepTimes:
    """The profile of one GPU on which the services predict that efficiency: a part of the batch, as a GPU has it in a
    mix, takes 1 / mix_efficiency times its part of the step, and at most the whole one.

    iterations_per_s: of one GPU with the whole batch.
    """
    num_virtual_nodes = min(global_batch_size, MOST_VIRTUAL_NODES)
    return SingleGpuStepTimes(
        num_virtual_nodes=num_virtual_nodes,
        step_s_by_virtual_nodes={
            count: min(count / num_virtual_nodes / mix_efficiency, 1.0) / iterations_per_s
            for count in counts_to_measure(num_virtual_nodes)
        },
        reproducible="fast",
    )


# --- places -------------------------------------------------------------------------------------------
# The effect of the place: how much slower a job is on more nodes than its number of GPUs needs.
#
# The published tables hold one speed for each number of GPUs: of one node up to its size, of as few nodes as possible
# above. Figure 2(b) of ElasticFlow has the slowdown of a job that is spread over eight nodes instead of one. Each
# doubling of the nodes is assumed to add the same part of it; the model of a job makes no difference.

PUBLISHED_SLOWDOWN = 2.17  # of ResNet50 on eight nodes instead of one: ElasticFlow, figure 2(b)
_DOUBLINGS = 3  # from one node to eight


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """slowdown: of a job on eight nodes instead of one, at least 1. gpus_per_node: of each node."""

    slowdown: float
    gpus_per_node: int
    num_nodes: int

    def factor(self, gpus: Iterable[GpuId]) -> float:
        """The part of the speed on as few nodes as possible that a job has on these GPUs."""
        listed = list(gpus)
        return self._factor(len(listed), len({gpu.node_id for gpu in listed}))

    def apart(self, rate_by_num_gpus: Mapping[int, float]) -> dict[int, float]:
        """The speeds on several nodes: on the worst buddy block, or as far apart as can be where blocks are within a
        node."""
        nodes_by_n = {n: self._nodes_of_block(n) for n in rate_by_num_gpus}
        return {
            n: rate * self._factor(n, nodes_by_n[n] if nodes_by_n[n] > 1 else min(n, self.num_nodes))
            for n, rate in rate_by_num_gpus.items()
        }

    def on_blocks(self, curve: ScalingCurve, within_a_node: Collection[int]) -> ScalingCurve:
        """The speeds on the worst buddy block of each size, of which some are within a node."""
        apart = self.apart(curve.rate_by_num_gpus)
        rates = (rate if n in within_a_node else apart[n] for n, rate in curve.rate_by_num_gpus.items())
        return ScalingCurve(curve.num_gpus_L, tuple(rates))

    def _nodes_of_block(self, num_gpus: int) -> int:
        """The nodes of the worst block: a block lies within a node if its size divides that of the node."""
        within_a_node = self.gpus_per_node & -self.gpus_per_node
        return min(max(num_gpus // within_a_node, 1), self.num_nodes)

    def num_nodes_needed(self, num_gpus: int) -> int:
        """The fewest nodes on which so many GPUs are."""
        return max(math.ceil(num_gpus / self.gpus_per_node), 1)

    def _factor(self, num_gpus: int, num_nodes: int) -> float:
        more = num_nodes / self.num_nodes_needed(num_gpus)
        return 1 / (1 + (self.slowdown - 1) * math.log2(more) / _DOUBLINGS) if more > 1 else 1.0

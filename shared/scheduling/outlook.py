"""A folded pool as the algorithms see it at one instant: curves to count on, work that is left, shares held.

All three planners look through these eyes, so that what admission promises is what the allocator plans.
"""

import math
from functools import lru_cache

from immutables import Map

from shared.messages.cluster import PoolConfig
from shared.messages.job import JobSpec
from shared.messages.job_state import Job
from shared.messages.node_state import NodeState
from shared.messages.pool_state import PoolState
from shared.messages.remembered import remembered
from shared.messages.speed import UNSEEN, SpeedSeen
from shared.scheduling.confidence import counted_on
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.resize_cost import ResizeCost
from shared.scheduling.scaling_curve import ScalingCurve

WORTHWHILE_SPEEDUP = 1.1  # a doubling that brings less is the last that is measured


def largest_level(state: PoolState, spec: JobSpec) -> int:
    """The largest number of GPUs that this job could ever hold here: a power of two, within batch and pool."""
    most = min(state.num_gpus, spec.global_batch_size)
    return 1 << (most.bit_length() - 1) if most else 0


def next_level(state: PoolState, spec: JobSpec) -> int:
    """The number of GPUs to measure next, be the pool large enough or not; 0 where more would not help or never can."""
    measured = state.curves.get(spec.profile_key)
    level, slower = spec.gpu_range.least, 0.0
    while level <= spec.global_batch_size and spec.gpu_range.holds(level):
        rate = measured.iterations_per_s.get(level) if measured is not None else None
        if rate is None:
            return level
        if slower and rate < WORTHWHILE_SPEEDUP * slower:
            return 0
        level, slower = 2 * level, rate
    return 0


def profile_known(state: PoolState, spec: JobSpec) -> bool:
    """Whether the job's scaling curve has been measured to its end."""
    measured = state.curves.get(spec.profile_key)
    return measured is not None and measured.complete


def known_curve(state: PoolState, spec: JobSpec, own: SpeedSeen = UNSEEN) -> ScalingCurve | None:
    """The scaling curve to count on: measured, less the margin. None if unknown, or if it runs nowhere here.

    own: how fast the job itself was found to be.
    """
    if not profile_known(state, spec):
        return None
    measured = state.curves[spec.profile_key]
    most = largest_level(state, spec)
    points = tuple(sorted((n, rate) for n, rate in measured.iterations_per_s.items() if n <= most))
    return _curve(points, counted_on(state.config, measured.speed, own))


@lru_cache(maxsize=4096)
def _curve(points: tuple[tuple[int, float], ...], factor: float) -> ScalingCurve | None:
    usable = [(n, rate * factor) for n, rate in points if rate > 0 and n & (n - 1) == 0 and n > 0]
    if not usable or factor <= 0:
        return None
    return ScalingCurve(tuple(n for n, _ in usable), tuple(rate for _, rate in usable))


def iteration_at(job: Job, curve: ScalingCurve, now_s: float, timeout_s: float) -> float:
    """How far the job is: its last report, carried on at the cautious speed for at most `timeout_s`."""
    return job.iteration + progress_rate(job, curve) * min(max(now_s - job.progressed_at_s, 0.0), timeout_s)


def progress_rate(job: Job, curve: ScalingCurve) -> float:
    """Iterations/s to count on while nothing is reported: as measured, if that is less than the curve says."""
    if not job.training:
        return 0.0
    rate = curve.throughput(len(job.gpus))
    return rate if job.iterations_per_s is None else min(rate, job.iterations_per_s)


def held_num_gpus(job: Job) -> int:
    """GPUs on which it can go on; a share that was decided but does not train yet is held already."""
    return 0 if job.broken or job.outdated else len(job.gpus)


def stalled_until_s(job: Job, cost: ResizeCost) -> float:
    """Until when its start will take, if it does not train yet."""
    held = held_num_gpus(job)
    return job.placed_at_s + cost.seconds(held) if held and not job.training else -math.inf


def newcomer(
    state: PoolState, job_id: str, spec: JobSpec, curve: ScalingCurve, deadline_s: float | None
) -> SchedulableJob:
    """A job that asks to come in."""
    return SchedulableJob(
        job_id=job_id,
        curve=curve,
        remaining_iterations=float(spec.max_iterations),
        deadline_s=planned_deadline_s(state, deadline_s),
        resize_cost=resize_cost(state),
        reserve_nodes=state.config.reserve_nodes,
        notice_s=state.config.heartbeat_timeout_s,
    )


def promisable_gpus(state: PoolState) -> tuple[int, ...]:
    """GPUs to promise: with all of the reserve kept back, then with one node less of it, at last with none.

    A reserve of r nodes leaves what is there when the r largest nodes of the pool are down; nodes that are down are
    part of it. So this does not shrink when at most r nodes go down, nor when they come back.
    """
    return _promisable_gpus(state.nodes, state.config.reserve_nodes)


@remembered
def _promisable_gpus(nodes: Map[str, NodeState], reserve_nodes: int) -> tuple[int, ...]:
    sizes = sorted((node.num_gpus for node in nodes.values() if not node.left), reverse=True)
    there = sum(node.num_gpus for node in nodes.values() if node.alive)
    return tuple(dict.fromkeys(min(sum(sizes[k:]), there) for k in range(reserve_nodes, -1, -1)))


def resize_cost(state: PoolState) -> ResizeCost:
    """Seconds without progress at a change of share: as measured by number of GPUs where that is configured, else as
    configured or as seen, if starts are slower here."""
    by_num_gpus = state.config.resize_cost_s_by_num_gpus
    return _resize_cost(state.config, 0.0 if by_num_gpus else state.start_cost_s)


@remembered
def _resize_cost(config: PoolConfig, start_cost_s: float) -> ResizeCost:
    known = sorted(config.resize_cost_s_by_num_gpus.items())
    seen = [(1, max(config.resize_cost_s, start_cost_s))]  # one number for all sizes
    return ResizeCost(*zip(*(known or seen), strict=True))


def planned_deadline_s(state: PoolState, deadline_s: float | None) -> float:
    """The end to plan for: a little before the deadline, for the last evaluation and the last word."""
    return math.inf if deadline_s is None else deadline_s - state.config.deadline_slack_s

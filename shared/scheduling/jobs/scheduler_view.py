"""The pool as all planners see it at one instant: curves to count on, remaining work, held shares, planned times.

Admission, allocator and placement use these functions, so that the allocator plans what admission promises.
A promised time is what users read: a deadline of a job, a quote or an offer. A planned time is what schedules are
made for: `deadline_slack_s` earlier, so that the last evaluation and the last report of a job fit before its deadline.
"""

import math
from collections.abc import Iterator, Mapping
from math import exp, floor, sqrt
from statistics import NormalDist
from typing import NewType

from elasticflow.shared.frozen_values import memoize_recent
from elasticflow.shared.messages.job_spec import TORCHRUN, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.promised_levels import have_distances, levels_of_promise, most_in_blocks
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.gpu_types import possible_types, spec_on
from elasticflow.shared.state.job import NO_SPEEDS, Job, SpeedStatistics
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.nodes import promisable_of
from elasticflow.shared.state.pool import NodeState, PoolState, largest_level
from elasticflow.shared.state.topology import CLUSTER, pool_topology

# --- confidence ----------------------------------------------------------------------------------------
# Confidence: the part of a scaling curve that a promise counts on, so that the job is as fast with a given
# probability.
#
# ln(measured / curve) is normal with a spread between jobs. The prior is the setting of the pool, centred on 0; ended
# jobs of the same profile shift and narrow it, and the setting counts as one job. Reports of the job itself narrow it
# further: each is off by REPORT_SPREAD, and all of them together by STEADY_SPREAD, because speeds drift.

REPORT_SPREAD = 0.1
STEADY_SPREAD = 0.01
_STEPS = 512  # of the factor, rounded down, so that few distinct curves exist


def confidence_factor(config: PoolConfig, profile: SpeedStatistics, own: SpeedStatistics) -> float:
    """The factor of the curve that a promise counts on, at most 1; without a confidence, 1 less the margin."""
    if config.confidence is None:
        return 1.0 - config.throughput_margin
    return _confidence_factor(config.confidence, config.speed_spread, profile, own)


def _confidence_factor(confidence: float, spread: float, profile: SpeedStatistics, own: SpeedStatistics) -> float:
    """exp(mean - z * deviation), z the quantile of the confidence.

    Before a job has run, from J jobs of its profile and the setting as one more at 0 with its spread:
    mean = sum / (J + 1), variance = (spread^2 + scatter of all J + 1) / (J + 1). Then the product of that normal with
    the one of its n reports, of variance REPORT_SPREAD^2 / n around their mean.
    """
    num_jobs = profile.count + 1
    mean = profile.count * profile.mean / num_jobs
    scatter = profile.scatter + profile.mean**2 * profile.count / num_jobs
    precision = num_jobs / (spread**2 + scatter)
    own_precision = own.count / REPORT_SPREAD**2
    mean = (precision * mean + own_precision * own.mean) / (precision + own_precision)
    deviation = sqrt(1.0 / (precision + own_precision) + STEADY_SPREAD**2)
    factor = exp(mean - NormalDist().inv_cdf(confidence) * deviation)
    return max(floor(min(factor, 1.0) * _STEPS), 1) / _STEPS


# --- scheduler view ------------------------------------------------------------------------------------

MAX_KNOWN_CURVES = 4096
WORTHWHILE_SPEEDUP = 1.1  # a doubling that gains less is flat
_FLAT_DOUBLINGS = 2  # in a row end the profiling run: one alone may be noise, or the border of a node


def next_level(state: PoolState, spec: JobSpec) -> int:
    """The next number of GPUs to profile, even beyond the size of the pool; 0 where more GPUs would not help or are
    not allowed.
    """
    measured = state.curves.get(spec.profile_key)
    level, fastest, num_flat = spec.gpu_range.least, 0.0, 0
    while _is_useful(level, state, spec):
        rate = measured.fastest(level) if measured is not None and level in measured.iterations_per_s else None
        if rate is None:
            return level
        num_flat = num_flat + 1 if rate < WORTHWHILE_SPEEDUP * fastest else 0
        if num_flat == _FLAT_DOUBLINGS:
            return 0
        level, fastest = 2 * level, max(rate, fastest)
    return 0


def level_beyond(state: PoolState, spec: JobSpec) -> int:
    """The first number of GPUs above those that are measured, also where they end flat; 0 if it cannot be useful."""
    measured = state.curves.get(spec.profile_key)
    level = 2 * max(measured.iterations_per_s, default=0) if measured is not None else 0
    return level if _is_useful(level, state, spec) else 0


def most_useful(state: PoolState, spec: JobSpec) -> int:
    """The largest power of two of GPUs whose replicas each compute a sample or, if their number is known, a virtual
    node."""
    measured = state.curves.get(spec.profile_key)
    virtual_nodes = None if measured is None else measured.virtual_nodes
    parts = spec.most_gpus if virtual_nodes is None else virtual_nodes.count * spec.gpus_per_replica
    most = min(max(parts, spec.gpu_range.least), spec.most_gpus)
    return 1 << (most.bit_length() - 1)


def _is_useful(level: int, state: PoolState, spec: JobSpec) -> bool:
    return level <= most_useful(state, spec) and spec.gpu_range.allows(level)


def profile_known(state: PoolState, spec: JobSpec) -> bool:
    """Whether the scaling curve of the job is completely profiled."""
    measured = state.curves.get(spec.profile_key)
    return measured is not None and measured.complete


def unmeasured_types(state: PoolState, spec: JobSpec) -> list[str]:
    """The GPU types on which a submitted job may run at an unknown speed.

    The state may have the whole curve of a type, and none yet for the GPU range of the job.
    """
    there = {each: spec_on(state, spec, each) for each in possible_types(state, spec)}
    return [each for each, on_it in there.items() if not profile_known(with_profile(state, on_it), on_it)]


class KnownCurves:
    """The scaling curves that were built of measured points, so that equal points give the same curve."""

    def __init__(self) -> None:
        self._curves: dict[tuple[tuple[tuple[int, float], ...], float], ScalingCurve | None] = {}

    def curve(self, points: tuple[tuple[int, float], ...], factor: float) -> ScalingCurve | None:
        """The part `factor` of measured iterations/s by number of GPUs."""
        key = points, factor
        if key not in self._curves:
            if len(self._curves) >= MAX_KNOWN_CURVES:
                self._curves.clear()
            self._curves[key] = _curve(points, factor)
        return self._curves[key]


def known_curve(
    state: PoolState,
    spec: JobSpec,
    own: SpeedStatistics = NO_SPEEDS,
    curves: KnownCurves | None = None,
    *,
    promised_at_s: float = math.inf,
) -> ScalingCurve | None:
    """The scaling curve to count on: measured, less the margin. None if it is unknown or the job runs nowhere here.

    own: reported speeds of the job itself. promised_at_s: when a promise was made that is to be kept.
    """
    if not profile_known(state, spec):
        return None
    measured = state.curves[spec.profile_key]
    most = largest_level(state, spec)
    rates = rates_to_promise(state, measured, promised_at_s)
    points = tuple(sorted((n, rate) for n, rate in rates.items() if n <= most))
    factor = confidence_factor(state.config, measured.speed, own)
    return _curve(points, factor) if curves is None else curves.curve(points, factor)


def rates_to_promise(state: PoolState, measured: MeasuredCurve, promised_at_s: float = math.inf) -> Mapping[int, float]:
    """Iterations/s by number of GPUs at the worst place that a promised job may get: the worst buddy block.

    Placement migrates promised jobs so that each has a whole block (docs/adr/0107). Where it may not, the slowest place
    that is known counts.
    """
    return _credible(_rates_at_worst(state, measured, promised_at_s), measured)


MOST_SUPERLINEAR = 2.0  # times as fast for each GPU as with fewer GPUs: smaller parts may fit a cache or the memory


def _credible(rates: Mapping[int, float], measured: MeasuredCurve) -> Mapping[int, float]:
    """The same speeds, but for those that a later measurement of fewer GPUs contradicts: it bounds them.

    So a profile that exaggerates misleads promises once, not again with each number of GPUs (docs/adr/0091).
    """
    if not measured.measured_at_s:  # all configured
        return rates
    at_s = {num_gpus: measured.measured_at_s.get(num_gpus, 0.0) for num_gpus in sorted(rates)}
    if list(at_s.values()) == sorted(at_s.values()):  # nearly always: larger numbers are measured later
        return rates

    def bounds(num_gpus: int) -> Iterator[float]:
        for fewer, later_s in at_s.items():
            if 0 < fewer < num_gpus and later_s > at_s[num_gpus] and fewer not in measured.bounded:
                yield MOST_SUPERLINEAR * rates[fewer] * num_gpus / fewer

    return {num_gpus: min((rate, *bounds(num_gpus))) for num_gpus, rate in rates.items()}


def _rates_at_worst(state: PoolState, measured: MeasuredCurve, promised_at_s: float) -> Mapping[int, float]:
    """The same as measured or configured, also where a later measurement contradicts it."""
    if not (measured.at_level or measured.counted_level):
        return measured.iterations_per_s
    if state.config.migration_budget > 0:
        return measured.speeds_at(levels_of_promise(state, promised_at_s), CLUSTER)
    topology = pool_topology(state)
    known = [rates for level, rates in measured.at_level.items() if level <= topology.worst_level]
    return {
        num_gpus: min((speed, *(rates[num_gpus] for rates in known if num_gpus in rates)))
        for num_gpus, speed in measured.speeds_at(topology.block_levels, CLUSTER).items()
    }


def migration_budget(state: PoolState) -> float:
    """The part of the time of a promised job that migrations may take, beside one at once.

    0 where no job is migrated for its place: all places are equal, or changes cost nothing.
    """
    has_cost = max(migration_cost(state).seconds_C) > 0
    return state.config.migration_budget if has_cost and have_distances(state) else 0.0


def _curve(points: tuple[tuple[int, float], ...], factor: float) -> ScalingCurve | None:
    usable = [(n, rate * factor) for n, rate in points if rate > 0 and n & (n - 1) == 0 and n > 0]
    if not usable or factor <= 0:
        return None
    return ScalingCurve(tuple(n for n, _ in usable), tuple(rate for _, rate in usable))


def iteration_at(job: Job, curve: ScalingCurve, now_s: float, timeout_s: float) -> float:
    """The estimated iteration: the last report, extrapolated at the cautious speed for at most `timeout_s`."""
    return job.iteration + progress_rate(job, curve) * min(max(now_s - job.progressed_at_s, 0.0), timeout_s)


def progress_rate(job: Job, curve: ScalingCurve) -> float:
    """Iterations/s to assume without a report: the reported speed, if that is less than the curve of its share."""
    if not job.training:
        return 0.0
    rate = curve.throughput(len(job.share_gpus))
    return rate if job.iterations_per_s is None else min(rate, job.iterations_per_s)


def held_num_gpus(job: Job) -> int:
    """GPUs on which the job can continue; a decided share that does not train yet counts as held.

    A promised job may have to leave GPUs of other types at any time, so that each plan budgets a stop (docs/adr/0049).
    """
    leaves = job.promised and job.num_added_gpus > 0
    return 0 if job.broken or job.has_outdated_spec or leaves else len(job.share_gpus)


def stalled_until_s(job: Job, cost: ResizeCost, migration_cost: ResizeCost) -> float:
    """When the start of the current generation is expected to end, if it does not train yet; else -inf."""
    held = held_num_gpus(job)
    if job.migrated_at_s == job.placed_at_s and job.is_switching:
        cost = migration_cost
    return job.placed_at_s + cost.seconds(held) if held and not job.training else -math.inf


def arriving_job(
    state: PoolState, job_id: str, spec: JobSpec, curve: ScalingCurve, deadline_s: float | None
) -> SchedulableJob:
    """A job that asks for admission."""
    return SchedulableJob(
        job_id=job_id,
        curve=curve,
        remaining_iterations=float(spec.own_iterations),
        deadline_s=planned_deadline_s(state, deadline_s),
        resize_cost=resize_cost_of(state, spec),
        reserve_nodes=state.config.reserve_nodes,
        notice_s=state.config.heartbeat_timeout_s,
        starts_over=spec.entry == TORCHRUN,
        migration_cost=migration_cost_of(state, spec),
        migration_budget=0.0 if spec.entry == TORCHRUN or deadline_s is None else migration_budget(state),
        gpus_per_replica=spec.gpus_per_replica,
    )


def promisable_gpus(state: PoolState) -> tuple[int, ...]:
    """Numbers of GPUs to promise now: with the whole reserve kept back, then with less and less of it."""
    most, *more = promisable_of(state.nodes, state.config.reserve_nodes, state.config.leave_s)
    numbers = [min(most.num_gpus, most_in_blocks(state))]
    numbers += [min(each.num_gpus, most_in_blocks(state, keeps_reserve=False)) for each in more]
    return tuple(dict.fromkeys(map(int, numbers)))


def resize_cost(state: PoolState) -> ResizeCost:
    """Seconds without progress at a change of share, of jobs that declare no start_timeout_s.

    As configured by number of GPUs; else the configured number, or the observed start cost if that is larger.
    """
    return _resize_cost(state.config, state.start_cost_s)


def resize_cost_of(state: PoolState, spec: JobSpec) -> ResizeCost:
    """The same for this job: at least `own_start_s`."""
    cost = resize_cost(state)
    return _with_own_start(cost, own_start_s(state, spec)) if spec.start_timeout_s else cost


def own_start_s(state: PoolState, spec: JobSpec) -> float:
    """The start that was measured of its profile, if it declares how long one may take, else 0.

    Until one was measured, a promise counts on the declared time (docs/adr/0119).
    """
    if not spec.start_timeout_s:
        return 0.0
    longest_s = state.config.timeouts_of(spec).longest_start_s
    return min(state.start_costs.get(spec.measured_key, longest_s), longest_s)


@memoize_recent  # each decision asks for it, for each job, and few events change it
def _with_own_start(cost: ResizeCost, start_s: float) -> ResizeCost:
    if start_s <= min(cost.seconds_C):
        return cost
    return ResizeCost(cost.num_gpus_C, tuple(max(seconds, start_s) for seconds in cost.seconds_C))


@memoize_recent  # each decision asks for it, for each job, and few events change it
def _resize_cost(config: PoolConfig, start_cost_s: float) -> ResizeCost:
    by_num_gpus = sorted(config.resize_cost_s_by_num_gpus.items())
    if not by_num_gpus:
        return ResizeCost.flat(max(config.resize_cost_s, start_cost_s))
    return ResizeCost(*zip(*by_num_gpus, strict=True))


MIGRATION_STOP_S = 1.0  # of running workers that switch: some tens of milliseconds and two copies of the state


def migration_cost(state: PoolState) -> ResizeCost:
    """Seconds without progress at a change of GPUs whose number stays. Running workers switch, where the pool lets
    them and none would have to see other GPUs of its node (docs/adr/0115)."""
    return _migration_cost(state, resize_cost(state))


def migration_cost_of(state: PoolState, spec: JobSpec) -> ResizeCost:
    """The same for this job: as `resize_cost_of`."""
    return _migration_cost(state, resize_cost_of(state, spec))


def _migration_cost(state: PoolState, stop: ResizeCost) -> ResizeCost:
    stops = not state.config.stop_free or separate_gpus(state.nodes)
    return stop if stops else _switch_cost(stop)


@memoize_recent  # each decision asks for it, for each job, and few events change nodes
def separate_gpus(nodes: Mapping[str, NodeState]) -> bool:
    """Whether a node shows each job its own GPUs alone (docs/adr/0115)."""
    return any(node.separates_gpus and node.alive for node in nodes.values())


@memoize_recent
def _switch_cost(cost: ResizeCost) -> ResizeCost:
    return ResizeCost(cost.num_gpus_C, tuple(min(seconds, MIGRATION_STOP_S) for seconds in cost.seconds_C))


PlannedTime = NewType("PlannedTime", float)
"""Seconds since the epoch, as schedules count them. A promised time is a plain float."""


def planned_deadline_s(state: PoolState, deadline_s: float | None) -> PlannedTime:
    """The end to plan for, given a promised deadline; inf without one."""
    return PlannedTime(math.inf if deadline_s is None else deadline_s - state.config.deadline_slack_s)


def promised_deadline_s(state: PoolState, planned_s: PlannedTime) -> float:
    """The deadline to promise for a job that is planned to end by then."""
    return planned_s + state.config.deadline_slack_s

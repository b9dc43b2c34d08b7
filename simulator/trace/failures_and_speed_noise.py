"""What disturbs a simulation: nodes that fail and rejoin, and jobs whose true speed differs from their curve.

Times between failures are exponential; each node draws from its own random stream. The speed of a job is its curve
times its own factor, at any number of GPUs; reports of progress reveal it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.events import JobProgressed
from elasticflow.shared.scheduling.availability.fill import OUTAGE_S
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.trace import simulated_events
from elasticflow.simulator.trace.cluster_state import ClusterState, Training
from elasticflow.simulator.virtual_time import Engine
from elasticflow.simulator.workload.workload import TraceJob, Workload

HOUR_S, DAY_S = 3_600.0, 86_400.0
STARVED_S = 2 * DAY_S
LONG_OUTAGES = 20.0  # in means: one exponential time in 500 million is longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """max_down: nodes down at once at most; a further failure is skipped. None: no limit.

    counts_s: with max_down, a failed node counts as down for at least this long, even after it rejoined.
    """

    seed: int
    mean_up_s: float = 14 * DAY_S
    mean_down_s: float = 2 * HOUR_S
    max_down: int | None = None
    counts_s: float = OUTAGE_S


def starved_after_s(failures: Failures | None) -> float:
    """If no job has trained for this long beside a stop, after the last arrival, waiting jobs will wait forever, and so
    will jobs that are resized again before each stop ends. A pool may be down for many mean outages."""
    return STARVED_S + (LONG_OUTAGES * failures.mean_down_s if failures is not None else 0.0)


class FailingNodes:
    """lose(node_id), rejoin(node_id): called when a node fails and when it rejoins."""

    def __init__(
        self,
        engine: Engine,
        node_ids: tuple[str, ...],
        failures: Failures,
        *,
        lose: Callable[[str], None],
        rejoin: Callable[[str], None],
    ) -> None:
        self._engine, self._failures = engine, failures
        self._lose, self._rejoin = lose, rejoin
        self._num_down = 0
        # one stream for each node: its failures do not depend on other nodes
        streams = np.random.SeedSequence(failures.seed).spawn(len(node_ids))
        for node_id, stream in zip(node_ids, streams, strict=True):
            self._fail_later(node_id, np.random.default_rng(stream))

    def _fail_later(self, node_id: str, chance: np.random.Generator) -> None:
        up_s = float(chance.exponential(self._failures.mean_up_s))
        down_s = float(chance.exponential(self._failures.mean_down_s))
        self._engine.after(up_s, lambda: self._fail(node_id, down_s, chance))

    def _fail(self, node_id: str, down_s: float, chance: np.random.Generator) -> None:
        most = self._failures.max_down
        if most is not None and self._num_down >= most:
            self._fail_later(node_id, chance)
            return
        self._num_down += 1
        self._lose(node_id)
        self._engine.after(down_s, lambda: self._repair(node_id, chance))
        self._engine.after(max(down_s, self._failures.counts_s), self._forget)

    def _repair(self, node_id: str, chance: np.random.Generator) -> None:
        self._rejoin(node_id)
        self._fail_later(node_id, chance)

    def _forget(self) -> None:
        self._num_down -= 1


FIRST_MEASURED_S = 60.0  # of training


class ThroughputReports:
    """Reports measured speed and progress that no curve says: of all jobs, or of those on several types.

    fold: records an event; soon: makes the policies decide.
    """

    def __init__(
        self,
        engine: Engine,
        cluster_state: ClusterState,
        *,
        fold: Callable[[JobProgressed], None],
        soon: Callable[[], None],
        of_all: bool,
    ) -> None:
        self._engine, self._cluster_state, self._fold, self._soon = engine, cluster_state, fold, soon
        self._of_all = of_all

    def begin(self, training: Training) -> None:
        """Report its speed after FIRST_MEASURED_S, then at doubling intervals."""
        if self._is_reported(training):
            self._measure_after(training, FIRST_MEASURED_S)

    def report(self) -> None:
        """Report the true progress of each job."""
        now_s = self._engine.now_s
        for training in self._cluster_state.trainings.values():
            if training.has_trained_by(now_s) and self._is_reported(training):
                self._fold(simulated_events.progressed(training, now_s))

    def _is_reported(self, training: Training) -> bool:
        return self._of_all or training.is_mixed

    def _measure_after(self, training: Training, wait_s: float) -> None:
        self._engine.after(wait_s, lambda: self._measure(training, wait_s))

    def _measure(self, training: Training, waited_s: float) -> None:
        if self._cluster_state.is_present(training):
            self._fold(simulated_events.progressed(training, self._engine.now_s, measured=True))
            self._measure_after(training, 2 * waited_s)
            self._soon()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedNoise:
    """The logarithm of the factor is normal with mean 0. sigma: its standard deviation."""

    seed: int
    sigma: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma <= 1:
            raise BadSettings((f"speed noise must be above 0 and at most 1, not {self.sigma:g}",))

    def speeds(self, workload: Workload) -> Mapping[str, float]:
        """The true speed over the curve's, by job."""
        chance = np.random.default_rng(self.seed)
        factors = chance.lognormal(0.0, self.sigma, len(workload.jobs))
        return {job.job_id: float(factor) for job, factor in zip(workload.jobs, factors, strict=True)}

    def revealed(self, workload: Workload) -> Workload:
        """The same jobs with their true curves, for a bound that knows the future."""
        speeds = self.speeds(workload)
        jobs = (_at_speed(job, speeds[job.job_id]) for job in workload.jobs)
        return Workload.of(workload.name, jobs, workload.skipped)


def _at_speed(job: TraceJob, speed: float) -> TraceJob:
    by_type = {gpu_type: _faster(curve, speed) for gpu_type, curve in job.measured_by_type.items()}
    return replace(job, curve=_faster(job.curve, speed), measured_by_type=by_type)


def _faster(curve: ScalingCurve, speed: float) -> ScalingCurve:
    return ScalingCurve(curve.num_gpus_L, tuple(speed * rate for rate in curve.iterations_per_s_L))


# --- node ends -----------------------------------------------------------------------------------------
# Nodes of a simulation that announce their end when they join, leave at that time, and are followed by others.
#
# Stays are exponential; each node draws from its own random stream, so that its ends do not depend on other nodes.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnds:
    """part: of the nodes have ends, those that come first. away_s: until a new node joins under the name of one that
    left; None: none does."""

    seed: int
    part: float = 0.5
    mean_stay_s: float = 14_400.0
    least_stay_s: float = 60.0
    away_s: float | None = 600.0


class EndsOfNodes:
    """Draws the ends, in whole seconds after a node joined."""

    def __init__(self, node_ids: tuple[str, ...], ends: NodeEnds) -> None:
        self._ends = ends
        with_ends = node_ids[: round(ends.part * len(node_ids))]
        streams = np.random.SeedSequence(ends.seed).spawn(len(with_ends))
        self._chance = dict(zip(with_ends, map(np.random.default_rng, streams), strict=True))

    def until_s(self, node_id: str, now_s: float) -> float | None:
        """When this node, which joins now, will end; None: never."""
        chance = self._chance.get(node_id)
        if chance is None:
            return None
        return now_s + self._ends.least_stay_s + float(round(chance.exponential(self._ends.mean_stay_s)))


# --- deviations --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviations:
    """What happens otherwise than the policies plan.

    ends: None: nodes announce none. noise: None: all speeds are those of the curves.
    """

    failures: Failures | None = None
    ends: NodeEnds | None = None
    noise: SpeedNoise | None = None

    def __post_init__(self) -> None:
        assert self.failures is None or self.ends is None, "nodes that fail have no ends here"


NO_DEVIATIONS = Deviations()

"""What became of each job, read off a ledger or off a simulation; and how far two such results are apart. Pure.

The control job holds one slot in every live run: its speed says whether the slots were isolated.

The simulator takes its calibration from one recorded run, and makes two predictions of other runs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from benchmarks.report import Measured, Row
from benchmarks.simulator_fidelity.workload import (
    CLUSTER,
    CONFIG,
    CONTROL,
    LEVELS,
    SAMPLE_S,
    Arrival,
    nominal_rates,
    workload,
)
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import JobAdmitted, JobFinished, PlacedJob, PlacementDecided, PlanDecided
from elasticflow.shared.scheduling.jobs.scaling_curve import FREE, ResizeCost
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.simulator.timing.recorded_times import RecordedTimes, recorded_times
from elasticflow.simulator.timing.training_time import TrainingTime
from elasticflow.simulator.trace.cluster_state import ClusterState, Training, TrainingModel
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.workload.workload import TraceJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """finished_s: None if the job was rejected, or did not end."""

    submitted_s: float
    finished_s: float | None = None
    deadline_s: float | None = None
    gpu_seconds: float = 0.0

    @property
    def met(self) -> bool:
        """Whether it had a deadline and ended by then."""
        return self.finished_s is not None and self.deadline_s is not None and self.finished_s <= self.deadline_s


Outcomes = Mapping[str, Outcome]  # by job


class TimedPlacement(NamedTuple):
    at_s: float
    placed: PlacedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """What a ledger says: the outcome of each job, and where it was placed when."""

    outcomes: Outcomes
    placements: Mapping[str, tuple[TimedPlacement, ...]]


def recorded_run(messages: Iterable[LedgerMessage]) -> RecordedRun:
    """Jobs of all commands. GPU-seconds count from a placement to the next one, or to the end."""
    submitted_s, finished_s, deadline_s = dict[str, float](), dict[str, float](), dict[str, float | None]()
    placements = defaultdict[str, list[TimedPlacement]](list)
    for message in messages:
        match message:
            case PlanDecided(commands=commands, events=events, now_s=now_s):
                submitted_s |= {each.job_id: now_s for each in commands if isinstance(each, SubmitJob)}
                for event in events:
                    if isinstance(event, JobAdmitted):
                        deadline_s[event.job_id] = event.deadline_s
                    elif isinstance(event, PlacementDecided):
                        for placed in event.placements:
                            placements[placed.job_id].append(TimedPlacement(event.at_s, placed))
            case JobFinished(job_id=job_id, at_s=at_s):
                finished_s[job_id] = at_s
            case _:
                pass
    return RecordedRun(
        outcomes={
            job_id: Outcome(
                submitted_s=at_s,
                finished_s=finished_s.get(job_id),
                deadline_s=deadline_s.get(job_id),
                gpu_seconds=_gpu_seconds(placements[job_id], finished_s.get(job_id)),
            )
            for job_id, at_s in submitted_s.items()
        },
        placements={job_id: tuple(found) for job_id, found in placements.items()},
    )


def _gpu_seconds(placements: list[TimedPlacement], finished_s: float | None) -> float:
    if finished_s is None:
        return 0.0
    ends_s = [*(each.at_s for each in placements[1:]), finished_s]
    return sum(
        len(each.placed.gpus) * max(end_s - each.at_s, 0.0) for each, end_s in zip(placements, ends_s, strict=True)
    )


def simulated_outcomes(result: Result) -> Outcomes:
    """The outcomes of all jobs of a simulation."""
    return {
        fate.job.job_id: Outcome(
            submitted_s=fate.job.submitted_at_s,
            finished_s=fate.finished_at_s,
            deadline_s=fate.job.deadline_s,
            gpu_seconds=fate.gpu_seconds,
        )
        for fate in result.fates
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two results of the same jobs. Errors are relative to the second one.

    errors: of the time from submission to end, by job that ended in both. other_fates: jobs that ended in one only.
    """

    errors: Mapping[str, float]
    other_fates: tuple[str, ...]
    met: tuple[int, int]
    gpu_seconds_error: float
    makespan_error: float

    @property
    def mean(self) -> float:
        return float(np.mean(self._sizes))

    @property
    def p95(self) -> float:
        return float(np.percentile(self._sizes, 95))

    @property
    def worst(self) -> float:
        return float(np.max(self._sizes))

    @property
    def _sizes(self) -> list[float]:
        return [abs(error) for error in self.errors.values()]


def compared(one: Outcomes, other: Outcomes) -> Comparison:
    """ValueError if no job ended in both."""
    ended = [{job_id for job_id, each in outcomes.items() if each.finished_s is not None} for outcomes in (one, other)]
    both = sorted(ended[0] & ended[1])
    if not both:
        raise ValueError("no job ended in both runs")
    return Comparison(
        errors={job_id: _completion_s(one[job_id]) / _completion_s(other[job_id]) - 1.0 for job_id in both},
        other_fates=tuple(sorted(ended[0] ^ ended[1])),
        met=(sum(each.met for each in one.values()), sum(each.met for each in other.values())),
        gpu_seconds_error=_sum_gpu_seconds(one) / _sum_gpu_seconds(other) - 1.0,
        makespan_error=_makespan_s(one) / _makespan_s(other) - 1.0,
    )


def _completion_s(outcome: Outcome) -> float:
    assert outcome.finished_s is not None
    return outcome.finished_s - outcome.submitted_s


def _sum_gpu_seconds(outcomes: Outcomes) -> float:
    return sum(each.gpu_seconds for each in outcomes.values())


def _makespan_s(outcomes: Outcomes) -> float:
    ends_s = (each.finished_s for each in outcomes.values() if each.finished_s is not None)
    return max(ends_s) - min(each.submitted_s for each in outcomes.values())


# --- the control job -----------------------------------------------------------------------------------


MAX_CONTROL_CHANGE = 0.03  # of the control job's speed; beyond it other processes disturbed a run


def verdict(control_change: float | None) -> Measured:
    """control_change: how much faster it trained than in the run to compare with; None if it did not train.

    A void run says nothing about what it should measure.
    """
    is_void = control_change is None or abs(control_change) > MAX_CONTROL_CHANGE
    return {"control_change": control_change, "void": is_void}


def name_and_verdict(name: str, run: Measured) -> str:
    return f"{name} (void)" if run["void"] else name


def control_row(name: str, run: Measured, against: str) -> Row:
    change = "it did not train" if run["control_change"] is None else f"{run['control_change']:+.1%}"
    what = f"speed of the control job in {name_and_verdict(name, run)}"
    return Row(what, change, f"±{MAX_CONTROL_CHANGE:.0%}", f"against {against}")


# --- calibration ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """changes: the time of each kind of change. rates: iterations/s by model and number of slots.

    assumed: models and numbers of slots that were not recorded; theirs are nominal, at the speed of those that were.
    """

    changes: TrainingTime
    rates: Mapping[str, Mapping[int, float]]
    assumed: tuple[tuple[str, int], ...]

    @staticmethod
    def of(times: RecordedTimes) -> "Calibration":
        """ValueError if the run has no start, or if the control job did not train."""
        changes = times.training_time()
        if changes is None or not times.iterations_per_s(CONTROL):
            raise ValueError("the calibration has no start of a job, or its control job did not train")
        recorded = {name: times.iterations_per_s(name) for name in SAMPLE_S}
        return Calibration(
            changes=changes,
            rates={name: _completed(name, rates) for name, rates in recorded.items()},
            assumed=tuple((name, num) for name, rates in recorded.items() for num in LEVELS if num not in rates),
        )

    def control_change(self, messages: Iterable[LedgerMessage]) -> float | None:
        """How much faster the control job trained in this run than in the calibration; None if it did not train."""
        found = recorded_times(messages).iterations_per_s(CONTROL).get(1)
        return None if found is None else found / self.rates[CONTROL][1] - 1.0

    def simulated(self, jobs: tuple[Arrival, ...]) -> Outcomes:
        """The outcomes with the simulator's own decisions, under the settings of the live pool."""
        simulation = Simulation(
            workload(jobs, self.rates),
            CLUSTER,
            TrainingModel(resize_cost=ResizeCost.flat(CONFIG.resize_cost_s), changes=self.changes),
            SimulatedPool(config=CONFIG),
        )
        return simulated_outcomes(simulation.run())

    def with_recorded_placements(
        self, jobs: tuple[Arrival, ...], run: RecordedRun, stop: ResizeCost | None = None
    ) -> Outcomes:
        """Each job on the GPUs that it had in this run, from the same instants on: the physics alone.

        stop: of each change, as without times by kind; None: the times of this calibration.
        """
        by_id = {job.job_id: job.trace_job(self.rates[job.model_name]) for job in jobs}
        return {
            job_id: outcome if outcome.finished_s is None else self._predicted(by_id[job_id], outcome, run, stop)
            for job_id, outcome in run.outcomes.items()
        }

    def _predicted(self, job: TraceJob, recorded: Outcome, run: RecordedRun, stop: ResizeCost | None) -> Outcome:
        training_model = TrainingModel(resize_cost=stop or FREE, changes=self.changes if stop is None else None)
        state = ClusterState(CLUSTER, training_model)  # of this job alone
        training: Training | None = None
        for at_s, placed in run.placements[job.job_id]:
            if training is not None and training.done_at_s <= at_s:
                break
            left = state.release(job.job_id, at_s)
            before = None if stop is not None else left
            training = state.occupy(job, placed.generation, placed.gpus, at_s, before=before) if placed.gpus else None
        assert training is not None, f"{job.job_id} ended, but was last placed on no GPUs"
        state.release(job.job_id, training.done_at_s)
        gpu_seconds = sum(occupancy.gpu_seconds for occupancy in state.occupancies)
        return replace(recorded, finished_s=training.done_at_s, gpu_seconds=gpu_seconds)


def _completed(model_name: str, recorded: Mapping[int, float]) -> Mapping[int, float]:
    nominal = nominal_rates(model_name)
    speeds = [rate / nominal[num] for num, rate in recorded.items() if num in nominal]
    speed = sum(speeds) / len(speeds) if speeds else 1.0
    return {num: recorded.get(num, speed * nominal[num]) for num in LEVELS}

"""What the simulator takes from one recorded run, the calibration; and its two predictions of other runs. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from benchmarks.simulator_fidelity.outcomes import Outcome, Outcomes, RecordedRun, simulated_outcomes
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
from elasticflow.shared.scheduling.jobs.scaling_curve import FREE, ResizeCost
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.simulator.timing.recorded_times import RecordedTimes, recorded_times
from elasticflow.simulator.timing.training_time import TrainingTime
from elasticflow.simulator.trace.cluster_state import ClusterState, Training, TrainingModel
from elasticflow.simulator.trace.simulated_pool import SimulatedPool
from elasticflow.simulator.trace.simulation import Simulation
from elasticflow.simulator.workload.workload import TraceJob


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

"""The counterfactual: a recorded history, continued from one of its messages under other policies.

Taken from the record: the commands and when they were decided, nodes, settings, failures, how many iterations each job
took, and the profiles, known from the start. Decided again: admission, allocation and placement. Training is modelled
(`modelled_training`, fitted to the record): each kind of change takes its recorded median, then a job trains at its
measured rate. The recorded policies run through the same model, so that its error is visible.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import (
    GenerationStarted,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobProgressed,
    NodeLost,
    PlacedJob,
    PlacementDecided,
    PlanDecided,
    PlanEvent,
    PoolConfigured,
    ProfilingFailed,
    WorkersStopped,
)
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.policy import LedgerMessage, Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.engine.event_queue import Engine
from elasticflow.simulator.engine.policy_driver import PolicyDriver
from elasticflow.simulator.replay.modelled_training import ModelledTraining, modelled_training
from elasticflow.simulator.replay.recorded_ledger import (
    OPERATOR,
    Entry,
    ExogenousEvent,
    JobRegistry,
    completed_profiles,
    exogenous_events,
    iterations_taken,
    job_registry,
    measured_step_times,
)
from elasticflow.simulator.timing.recorded_times import fitted_to


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledRun:
    """jobs: all, at its end. num_gpus: of each job that held GPUs, the times since which it held how many."""

    jobs: Mapping[str, Job]
    num_gpus: Mapping[str, tuple[tuple[float, int], ...]]


def run_on(
    entries: tuple[Entry, ...], from_sequence: int, policies: Mapping[str, Policy[Any]], until_s: float
) -> ModelledRun:
    """All jobs at `until_s`, had these policies decided after `from_sequence`; the record's end is its last arrival."""
    assert entries, "an empty ledger has no counterfactual"
    return _Counterfactual(entries, from_sequence, policies).run(until_s)


class _Counterfactual:
    def __init__(self, entries: tuple[Entry, ...], from_sequence: int, policies: Mapping[str, Policy[Any]]) -> None:
        before, after = entries[:from_sequence], entries[from_sequence:]
        self._recorded, self._fitted = job_registry(entries), fitted_to(entry.message for entry in entries)
        self._jobs = JobRegistry()
        self._engine = Engine(before[-1].stored_at_s if before else after[0].stored_at_s)
        self._driver = PolicyDriver(self._engine, policies.values(), self._decide)
        for entry in before:
            self._fold(entry.message)
        self._commands: list[Command] = []
        self._trainings: dict[str, ModelledTraining] = {}
        self._num_gpus: dict[str, list[tuple[float, int]]] = {}
        self._begin(entries)
        for event in exogenous_events(after):
            self._engine.at(event.at_s, partial(self._happen, event))

    @property
    def _state(self) -> PoolState:
        return self._driver.state

    def run(self, until_s: float) -> ModelledRun:
        self._driver.soon()
        self._engine.run(until_s)
        num_gpus = {job_id: tuple(steps) for job_id, steps in self._num_gpus.items()}
        return ModelledRun(jobs=self._jobs.jobs, num_gpus=num_gpus)

    # -- the first state ---------------------------------------------------------------------------------

    def _begin(self, entries: tuple[Entry, ...]) -> None:
        """Every profile that the record completes is known, and jobs that train continue."""
        for measured in measured_step_times(entries, self._engine.now_s):
            self._fold(measured)
        configured = PoolConfigured(config=self._state.config, at_s=self._engine.now_s)
        self._configure((configured, *completed_profiles(entries, self._engine.now_s)))
        for _, job in sorted(self._state.live_jobs.items()):
            if job.gpus and not job.broken and job.phase is Phase.ADMITTED:
                self._train(job)
                self._hold(job.job_id, len(job.gpus))

    def _configure(self, events: tuple[PlanEvent, ...]) -> None:
        """Fold a decision of the operator."""
        sequence, now_s = self._state.sequence, self._engine.now_s
        self._fold(PlanDecided(service=OPERATOR, based_on=sequence, now_s=now_s, events=events))

    # -- events ------------------------------------------------------------------------------------------

    def _happen(self, exogenous: ExogenousEvent) -> None:
        self._commands += exogenous.commands
        if exogenous.settings:
            self._configure(exogenous.settings)
        match exogenous.event:
            case NodeLost() as lost:
                self._report()
                for job in self._state.live_jobs.values():
                    if lost.node_id in job.nodes:
                        self._trainings.pop(job.job_id, None)
                        self._hold(job.job_id, 0)
                self._fold(lost)
            case JobFailed() | ProfilingFailed() as failed:
                if (job := self._state.live_jobs.get(failed.job_id)) is not None:
                    self._trainings.pop(failed.job_id, None)
                    failed = replace(failed, generation=job.generation)
                self._fold(failed)
                self._stop_workers(failed.job_id)
            case None:
                pass
            case joined:
                self._fold(joined)
        self._driver.soon()

    def _train(self, job: Job, before: ModelledTraining | None = None) -> None:
        """The job starts on its GPUs, or switches to them, and ends when its iterations are done."""
        now_s = self._engine.now_s
        training = modelled_training(self._state, job, now_s, self._fitted, before)
        progress, starts_s = training.progress, training.progress.starts_s
        self._trainings[job.job_id] = training
        self._engine.at(starts_s, partial(self._start, training))
        if progress.iterations_per_s > 0 and job.phase is Phase.ADMITTED:
            ends_s = progress.reaches_s(iterations_taken(self._recorded, job))
            if before is not None and ends_s < starts_s:  # it ends before the joining workers are ready
                ends_s = before.progress.reaches_s(iterations_taken(self._recorded, job))
            self._engine.at(max(ends_s, now_s), partial(self._finish, training))

    def _start(self, training: ModelledTraining) -> None:
        if self._trainings.get(training.job_id) is training:
            self._fold(
                GenerationStarted(
                    job_id=training.job_id,
                    generation=training.generation,
                    num_gpus=len(self._state.live_jobs[training.job_id].gpus),
                    iteration=int(training.progress.iteration),
                    at_s=self._engine.now_s,
                )
            )
            self._stop_workers(training.job_id)
            self._driver.soon()

    def _finish(self, training: ModelledTraining) -> None:
        if self._trainings.get(training.job_id) is training:
            del self._trainings[training.job_id]
            self._fold(
                JobFinished(
                    job_id=training.job_id,
                    generation=training.generation,
                    iteration=iterations_taken(self._recorded, self._state.live_jobs[training.job_id]),
                    condition="max_iterations",
                    at_s=self._engine.now_s,
                )
            )
            self._stop_workers(training.job_id)
            self._driver.soon()

    def _stop_workers(self, job_id: str) -> None:
        """Each node reports that the job's old workers have stopped: the fold awaits it, and it takes no time here."""
        job = self._state.job(job_id)
        for stopping in job.stopping if job is not None else ():
            self._fold(
                WorkersStopped(
                    job_id=job_id,
                    generation=stopping.generation,
                    node_id=stopping.node_id,
                    at_s=self._engine.now_s,
                )
            )

    def _report(self) -> None:
        """Report the progress of every job; the model loses no step, so all of it counts as checkpointed."""
        now_s = self._engine.now_s
        for newest in self._trainings.values():
            training = newest.at(now_s)
            progress = training.progress
            if now_s > progress.starts_s:
                iteration = int(progress.iteration_at(now_s))
                self._fold(
                    JobProgressed(
                        job_id=training.job_id,
                        generation=training.generation,
                        iteration=iteration,
                        iterations_per_s=progress.iterations_per_s,
                        checkpoint_iteration=iteration,
                        at_s=now_s,
                    )
                )

    # -- decisions ---------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Ask each policy, until none has anything more to decide."""
        self._report()
        while True:
            commands, self._commands = tuple(self._commands), []
            decided = [self._ask(policy, commands) for policy in self._driver.policies]
            if not any(decided):
                break

    def _ask(self, policy: Policy[Any], commands: tuple[Command, ...]) -> bool:
        decision = self._driver.ask(policy, commands if policy.service == "admission" else ())
        if decision is None:
            return False
        self._fold(decision)
        for event in decision.events:
            match event:
                case PlacementDecided(placements=placements):
                    for placed in placements:
                        self._place(placed)
                case JobCancelled(job_id=job_id):
                    self._trainings.pop(job_id, None)
                    self._stop_workers(job_id)
                case _:
                    pass
        return True

    def _place(self, placed: PlacedJob) -> None:
        self._hold(placed.job_id, len(placed.gpus))
        self._stop_workers(placed.job_id)
        previous, job = self._trainings.pop(placed.job_id, None), self._state.live_jobs[placed.job_id]
        if not placed.gpus:
            return
        if previous is not None and job.previous_generation is not None:  # its workers switch
            self._train(job, previous.at(self._engine.now_s))
        else:
            self._train(job)

    def _hold(self, job_id: str, num_gpus: int) -> None:
        self._num_gpus.setdefault(job_id, []).append((self._engine.now_s, num_gpus))

    def _fold(self, message: LedgerMessage) -> None:
        self._driver.fold(message)
        self._jobs.record(message, self._state)

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

from elasticflow.shared.messages.commands import Command, SubmitJob
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
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import placed_step_s
from elasticflow.shared.scheduling.jobs.scheduler_view import iteration_at, known_curve, resize_cost_of
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.policy import LedgerMessage, Policy
from elasticflow.shared.state.pool import PoolState, spec_of
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
from elasticflow.simulator.timing.training_time import RatedProgress, TrainingTime, true_rate
from elasticflow.simulator.virtual_time import Engine, PolicyDriver

# --- modelled training ---------------------------------------------------------------------------------
# How a job trains in the counterfactual: when it starts on its GPUs, and how fast it is there. Pure.
#
# A job with GPUs of other types has the step that the profiles predict for its split; its share is on its curve.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelledTraining:
    """A job on the GPUs of one generation. before: it trains there until the switch."""

    job_id: str
    generation: int
    progress: RatedProgress
    before: "ModelledTraining | None" = None

    def at(self, now_s: float) -> "ModelledTraining":
        """The generation that trains at this instant."""
        return self if self.before is None or now_s >= self.progress.starts_s else self.before


def modelled_training(
    state: PoolState, job: Job, now_s: float, fitted: TrainingTime | None, before: ModelledTraining | None
) -> ModelledTraining:
    """The job starts on its GPUs, or switches to them from those of `before`.

    Survivors of a loss continue at once, at the rate of the next smaller number of GPUs that was measured.
    fitted: to the record; None if it has no start.
    """
    stops_s, starts_s, iteration = now_s, now_s, float(job.iteration)
    if not job.training and not job.reserved_gpus:
        time, num_gpus = fitted or TrainingTime.of_cost(resize_cost_of(state, spec_of(job))), len(job.gpus)
        if before is None:
            starts_s = max(job.placed_at_s + time.start_s(num_gpus, is_first=not job.iteration), now_s)
        else:
            previous = job.previous_generation
            switch = time.switch(joins=previous is None or not set(job.gpus) <= set(previous.gpus))
            stops_s = max(job.placed_at_s + switch.prepare.seconds(num_gpus), now_s)
            starts_s = stops_s + switch.stop.seconds(num_gpus)
    elif job.training and (counted_on := known_curve(state, spec_of(job))) is not None:
        iteration = iteration_at(job, counted_on, now_s, state.config.progress_timeout_s)
    progress = RatedProgress(
        starts_s=starts_s,
        iteration=iteration if before is None else before.progress.iteration_at(stops_s),
        iterations_per_s=placed_rate(state, job),
    )
    return ModelledTraining(job_id=job.job_id, generation=job.generation, progress=progress, before=before)


def placed_rate(state: PoolState, job: Job) -> float:
    """Iterations per second that the profiles predict on its present GPUs; 0 if they know none."""
    mixed_step_s = placed_step_s(state, job)
    if mixed_step_s is not None:
        return 1.0 / mixed_step_s
    curve = state.curves.get(spec_of(job).profile_key)
    return true_rate(curve.iterations_per_s, len(job.own_gpus)) if curve is not None and job.own_gpus else 0.0


# --- counterfactual ------------------------------------------------------------------------------------


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


def _on_jobs_here(state: PoolState, command: Command) -> Command:
    """The command with the identities that the jobs whose id it takes and that it continues have here: they were
    decided on at other times, and may have saved less."""
    if not isinstance(command, SubmitJob):
        return command
    earlier, wanted = state.ended_jobs.get(command.job_id), command.spec.continues
    if command.replaces and earlier is not None:
        command = replace(command, replaces=earlier.identity)
    source = None if wanted is None else state.ended_jobs.get(wanted.job_id)
    if wanted is None or source is None:
        return command
    saved = min(wanted.iteration, source.saved_iteration)
    known = replace(wanted, identity=source.identity, earlier=source.earlier_writers, iteration=max(saved, 1))
    return replace(command, spec=replace(command.spec, continues=known if saved else None))


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
                self._report()  # what it has saved may be continued
                if (job := self._state.live_jobs.get(failed.job_id)) is not None:
                    self._trainings.pop(failed.job_id, None)
                    failed = replace(failed, generation=job.generation)
                self._fold(failed)
                self._stop_workers(failed.job_id)
            case None:
                pass
            case of_node:
                self._fold(of_node)
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
        decides = policy.service == "admission"
        own = tuple(_on_jobs_here(self._state, command) for command in commands) if decides else ()
        decision = self._driver.ask(policy, own)
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

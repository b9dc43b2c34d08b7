"""What would have happened: a recorded history, run on from one of its messages under other policies.

Taken from the record: which wishes came and when they were decided, nodes, settings, failures, how many iterations each
job took, and the measured speeds, which are known from the start. Decided again: who comes in, who gets how many GPUs,
and which. Training is a model: a resize takes as long as starts took in the record, in the median, then a job runs at
exactly its measured speed. The recorded policies run through the same model, too: what it gets wrong shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shared.messages.commands import Command
from shared.messages.events import (
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
    ProfileCompleted,
    WorkersStopped,
)
from shared.messages.gpu_range import size_up_to
from shared.messages.job_state import Job, Phase
from shared.messages.policy import LedgerMessage, Policy
from shared.messages.pool_state import PoolState, spec_of
from shared.scheduling.outlook import iteration_at, known_curve, resize_cost
from simulator.council import Council
from simulator.engine import Engine
from simulator.given import Given, Roll, given, roll, usual_start_s
from simulator.replay import OPERATOR, Entry, folded


def run_on(
    entries: tuple[Entry, ...], from_sequence: int, policies: Mapping[str, Policy[Any]], until_s: float
) -> Mapping[str, Job]:
    """All jobs at `until_s`, had these policies decided after `from_sequence`; nobody comes after the record's end."""
    assert entries, "an empty ledger has no other course"
    return _Counterfactual(entries, from_sequence, policies).run(until_s)


@dataclass(slots=True, kw_only=True, eq=False)
class _Training:
    """A job on the GPUs of one generation; iteration: at starts_s. before: it trains on until then."""

    job_id: str
    generation: int
    starts_s: float
    iteration: float
    rate: float
    before: "_Training | None" = None

    def at(self, now_s: float) -> "_Training":
        """What takes steps at this instant."""
        return self if self.before is None or now_s >= self.starts_s else self.before

    def iteration_at(self, now_s: float) -> float:
        return self.iteration + self.rate * max(now_s - self.starts_s, 0.0)


class _Counterfactual:
    def __init__(
        self,
        entries: tuple[Entry, ...],
        from_sequence: int,
        policies: Mapping[str, Policy[Any]],
    ) -> None:
        before, after = entries[:from_sequence], entries[from_sequence:]
        self._recorded, self._usual_start_s = roll(entries), usual_start_s(entries)
        self._curves = folded(entries).curves
        self._roll = Roll()
        self._engine = Engine(before[-1].stored_at_s if before else after[0].stored_at_s)
        self._council = Council(self._engine, policies.values(), self._settle)
        for entry in before:
            self._evolve(entry.message)
        self._wishes: list[Command] = []
        self._trainings: dict[str, _Training] = {}
        self._prepare()
        for something in given(after):
            self._engine.at(something.at_s, partial(self._happen, something))

    @property
    def _state(self) -> PoolState:
        return self._council.state

    def run(self, until_s: float) -> Mapping[str, Job]:
        self._council.soon()
        self._engine.run(until_s)
        return self._roll.jobs

    # -- where it begins ---------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """What will be measured is known, and whoever trains, trains on."""
        now_s = self._engine.now_s
        curves = [
            ProfileCompleted(profile_key=key, iterations_per_s=curve.iterations_per_s, at_s=now_s)
            for key, curve in sorted(self._curves.items())
            if curve.complete
        ]
        configured = PoolConfigured(config=self._state.config, at_s=now_s)
        self._set((configured, *curves))
        for _, job in sorted(self._state.live_jobs.items()):
            if job.gpus and not job.broken and job.phase is Phase.ADMITTED:
                self._train(job)

    def _set(self, events: tuple[PlanEvent, ...]) -> None:
        """A decision of the operator's."""
        sequence, now_s = self._state.sequence, self._engine.now_s
        self._evolve(PlanDecided(service=OPERATOR, based_on=sequence, now_s=now_s, events=events))

    # -- what happens ------------------------------------------------------------------------------------

    def _happen(self, something: Given) -> None:
        self._wishes += something.commands
        if something.settings:
            self._set(something.settings)
        match something.fact:
            case NodeLost() as lost:
                self._report()
                for job in self._state.live_jobs.values():
                    if lost.node_id in job.nodes:
                        self._trainings.pop(job.job_id, None)
            case JobFailed() as failed if (job := self._state.live_jobs.get(failed.job_id)) is not None:
                self._trainings.pop(failed.job_id, None)
                something = replace(something, fact=replace(failed, generation=job.generation))
            case _:
                pass
        if something.fact is not None:
            self._evolve(something.fact)
        if isinstance(something.fact, JobFailed):
            self._say_stopped(something.fact.job_id)
        self._council.soon()

    def _train(self, job: Job, before: _Training | None = None) -> None:
        """The job begins on its GPUs when the stop is over, or the hand-over, and ends when its iterations are done.
        Whoever survives a loss goes on at once, as fast as on the next smaller number of GPUs that was measured."""
        now_s, state = self._engine.now_s, self._state
        curve = state.curves.get(spec_of(job).profile_key)
        rate = curve.iterations_per_s.get(size_up_to(len(job.gpus)), 0.0) if curve is not None else 0.0
        starts_s, iteration = now_s, float(job.iteration)
        if not job.training and not job.seat:
            starts_s = max(job.placed_at_s + self._start_cost_s(len(job.gpus)), now_s)
        elif job.training and (counted_on := known_curve(state, spec_of(job))) is not None:
            iteration = iteration_at(job, counted_on, now_s, state.config.progress_timeout_s)
        if before is not None:
            iteration = before.iteration_at(starts_s)
        training = _Training(
            job_id=job.job_id,
            generation=job.generation,
            starts_s=starts_s,
            iteration=iteration,
            rate=rate,
            before=before,
        )
        self._trainings[job.job_id] = training
        self._engine.at(starts_s, partial(self._start, training))
        if rate > 0 and job.phase is Phase.ADMITTED:
            left_s = (self._iterations_of(job) - iteration) / rate
            if before is not None and left_s < 0:  # it is done before the others are ready
                left_s = (self._iterations_of(job) - iteration) / before.rate
            self._engine.at(max(starts_s + left_s, now_s), partial(self._finish, training))

    def _start_cost_s(self, num_gpus: int) -> float:
        return (
            resize_cost(self._state).seconds(num_gpus) if self._usual_start_s is None else self._usual_start_s
        )

    def _iterations_of(self, job: Job) -> float:
        """As many as it took in the record, where a metric may have ended it early; else all that it may take."""
        recorded = self._recorded.get(job.job_id)
        if recorded is not None and recorded.phase is Phase.FINISHED:
            return float(recorded.iteration)
        return float(spec_of(job).max_iterations)

    def _start(self, training: _Training) -> None:
        if self._trainings.get(training.job_id) is training:
            self._evolve(
                GenerationStarted(
                    job_id=training.job_id,
                    generation=training.generation,
                    num_gpus=len(self._state.live_jobs[training.job_id].gpus),
                    iteration=int(training.iteration),
                    at_s=self._engine.now_s,
                )
            )
            self._say_stopped(training.job_id)
            self._council.soon()

    def _finish(self, training: _Training) -> None:
        if self._trainings.get(training.job_id) is training:
            del self._trainings[training.job_id]
            self._evolve(
                JobFinished(
                    job_id=training.job_id,
                    generation=training.generation,
                    iteration=round(self._iterations_of(self._state.live_jobs[training.job_id])),
                    condition="max_iterations",
                    at_s=self._engine.now_s,
                )
            )
            self._say_stopped(training.job_id)
            self._council.soon()

    def _say_stopped(self, job_id: str) -> None:
        """The word of each node that the job's old workers are gone: the fold awaits it, and it costs no time here."""
        job = self._state.job(job_id)
        for gone in job.stopping if job is not None else ():
            self._evolve(
                WorkersStopped(
                    job_id=job_id,
                    generation=gone.generation,
                    node_id=gone.node_id,
                    at_s=self._engine.now_s,
                )
            )

    def _report(self) -> None:
        """How far everybody is; a model loses no step, so all of it is as good as in a checkpoint."""
        for newest in self._trainings.values():
            training = newest.at(self._engine.now_s)
            if self._engine.now_s > training.starts_s:
                iteration = int(training.iteration_at(self._engine.now_s))
                self._evolve(
                    JobProgressed(
                        job_id=training.job_id,
                        generation=training.generation,
                        iteration=iteration,
                        iterations_per_s=training.rate,
                        checkpoint_iteration=iteration,
                        at_s=self._engine.now_s,
                    )
                )

    # -- decide ------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Ask everybody, until nobody has more to say."""
        self._report()
        while True:
            wishes, self._wishes = tuple(self._wishes), []
            said = [self._ask(policy, wishes) for policy in self._council.policies]
            if not any(said):
                break

    def _ask(self, policy: Policy[Any], wishes: tuple[Command, ...]) -> bool:
        commands = wishes if policy.service == "admission" else ()
        decision = self._council.ask(policy, commands)
        if decision is None:
            return False
        self._evolve(decision)
        for event in decision.events:
            match event:
                case PlacementDecided(placements=placements):
                    for placed in placements:
                        self._move(placed)
                case JobCancelled(job_id=job_id):
                    self._trainings.pop(job_id, None)
                    self._say_stopped(job_id)
                case _:
                    pass
        return True

    def _move(self, placed: PlacedJob) -> None:
        self._say_stopped(placed.job_id)
        before, job = self._trainings.pop(placed.job_id, None), self._state.live_jobs[placed.job_id]
        if placed.gpus:
            if before is not None and job.predecessor is not None:  # its workers go over
                self._train(job, before.at(self._engine.now_s))
            else:
                self._train(job, None)

    def _evolve(self, message: LedgerMessage) -> None:
        self._council.fold(message)
        self._roll.note(message, self._state)

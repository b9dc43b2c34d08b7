"""The loop: what happens in the world becomes facts, the policies are asked, what they decide changes the world.

What happens at one instant is judged together, when all of it has happened; a decision takes no time. Facts are as
few as the policies need: nodes come and go, a generation starts, its workers have stopped, a job has finished.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, groupby
from typing import Any, Protocol

from shared.messages.commands import Command, SubmitJob
from shared.messages.events import (
    JobAdmitted,
    JobRejected,
    PlacedJob,
    PlacementDecided,
    PlanEvent,
    RejectionReason,
)
from shared.messages.policy import Policy
from shared.messages.pool_state import PoolState
from shared.scheduling.resize_cost import ResizeCost
from simulator.council import NEVER_S, Council
from simulator.engine import Engine
from simulator.policies import PLANNERS
from simulator.trace_driven import facts
from simulator.trace_driven.failures import FailingNodes, Failures
from simulator.trace_driven.measuring import Measuring
from simulator.trace_driven.pool import AdmissionPolicy, ClusterShape, pool_config, wish
from simulator.trace_driven.result import Result, result_of
from simulator.trace_driven.speed_noise import SpeedNoise
from simulator.trace_driven.world import NO_COSTS, NO_SPEEDS, Training, World
from simulator.workload.jobs import TraceJob, Workload

# Nothing to come, and nobody trains for so long beside a stop: whoever waits will wait for ever, and so will whoever is
# moved again before each stop is over. Where nodes fail, a pool may also be down for many times the usual.
STARVED_S = 2 * 86_400.0
LONG_OUTAGES = 20.0  # of the mean: of exponential times one in 500 million is longer


class Observer(Protocol):
    """Somebody who looks at every decision. before: what it rested on."""

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None: ...


class Simulation:
    """One workload on one cluster under one set of policies, asked in their order."""

    def __init__(
        self,
        workload: Workload,
        cluster: ClusterShape,
        policies: Mapping[str, Policy[Any]] = PLANNERS,
        *,
        resize_cost: ResizeCost,
        admission: AdmissionPolicy = "selective",
        reserve_nodes: int = 0,
        failures: Failures | None = None,
        confidence: float | None = None,
        noise: SpeedNoise | None = None,
        costs: Mapping[str, ResizeCost] = NO_COSTS,
        observers: Sequence[Observer] = (),
    ) -> None:
        assert workload.jobs, "a simulation needs a job"
        self.workload, self.cluster = workload, cluster
        self._observers = observers
        self._jobs = {job.job_id: job for job in workload.jobs}
        self._engine = Engine(workload.jobs[0].submitted_at_s)
        self._council = Council(self._engine, policies.values(), self._settle)
        self._fold, self._soon = self._council.fold, self._council.soon
        self.world = World(cluster, resize_cost, noise.speeds(workload) if noise else NO_SPEEDS, costs)
        self._measuring = noise and Measuring(self._engine, self.world, fold=self._fold, soon=self._soon)
        self._wishes: list[SubmitJob] = []
        self._num_to_come = len(workload.jobs)
        outage_s = LONG_OUTAGES * failures.mean_down_s if failures is not None else 0.0
        self._starved_s = STARVED_S + max(resize_cost.seconds_C) + outage_s
        self.num_migrations = 0
        # the ledger's fold forgets jobs that ended long ago
        self.admitted: set[str] = set()
        self.rejected: dict[str, RejectionReason] = {}
        self.decided_at_s: dict[str, float] = {}
        self.finished_at_s: dict[str, float] = {}
        for node_id in cluster.node_ids:
            self._join(node_id)
        config = pool_config(
            workload,
            resize_cost,
            admission=admission,
            reserve_nodes=reserve_nodes,
            confidence=confidence,
            speed_noise=noise.sigma if noise else 0.0,
        )
        self._fold(facts.pool_configured(config, self.state.sequence, self.now_s))
        for at_s, together in groupby(workload.jobs, key=lambda job: job.submitted_at_s):
            self._engine.at(at_s, partial(self._arrive, tuple(together)))
        if failures is not None:
            FailingNodes(self._engine, cluster.node_ids, failures, lose=self._lose, regain=self._regain)

    @property
    def state(self) -> PoolState:
        """What the ledger says."""
        return self._council.state

    @property
    def num_settled(self) -> int:
        """Jobs that were rejected or have ended."""
        return len(self.rejected) + len(self.finished_at_s)

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    def run(self, stop: Callable[[], bool] = lambda: False) -> Result:
        """Until every job has ended or can never; or until stop(), then the result is a partial one."""
        stopped = False

        def over() -> bool:
            nonlocal stopped
            if self._is_over():
                return True
            stopped = stop()
            return stopped

        self._engine.run(NEVER_S, over)
        for job_id in tuple(self.world.trainings):
            self.world.release(job_id, self.now_s)
        return result_of(self, partial=stopped)

    def _is_over(self) -> bool:
        if self._num_to_come or self._wishes:
            return False
        if not self.state.live_jobs:
            return True
        last_trained_s = max(self.world.last_trained_s(self.now_s), self.workload.jobs[-1].submitted_at_s)
        return self.now_s - last_trained_s > self._starved_s

    # -- what happens ------------------------------------------------------------------------------------

    def _arrive(self, jobs: tuple[TraceJob, ...]) -> None:
        self._num_to_come -= len(jobs)
        self._wishes.extend(wish(job) for job in jobs)
        self._soon()

    def _start(self, training: Training) -> None:
        """The stop is over, unless the job has moved on."""
        if self.world.is_present(training):
            self._fold(facts.generation_started(training, self.now_s))
            if self._measuring is not None:
                self._measuring.begin(training)

    def _finish(self, training: Training) -> None:
        if not self.world.is_present(training):
            return
        job_id = training.job.job_id
        self.finished_at_s[job_id] = self.now_s
        self._fold(facts.job_finished(training, self.now_s))
        self._report_stopped(job_id)
        self.world.finish(job_id, self.now_s)
        self._soon()

    def _join(self, node_id: str) -> None:
        known = self.state.nodes.get(node_id)
        self._fold(facts.node_joined(node_id, self.cluster.gpus_per_node, known, self.now_s))

    def _lose(self, node_id: str) -> None:
        """A node goes down; its jobs lose their GPUs, and nothing of their progress."""
        for job_id in self.world.jobs_on(node_id):
            self._fold(facts.progressed(self.world.trainings[job_id], self.now_s))
            self.world.release(job_id, self.now_s)
        self.world.lose(node_id, self.now_s)
        self._fold(facts.node_lost(self.state.nodes[node_id], self.now_s))
        self._soon()

    def _regain(self, node_id: str) -> None:
        self.world.regain(node_id, self.now_s)
        self._join(node_id)
        self._soon()

    # -- decide ------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Ask one after another, until all others are silent on what was said last."""
        silent = 0
        if self._measuring is not None:
            self._measuring.report()
        for policy in cycle(self._council.policies):
            silent = 1 if self._ask(policy) else silent + 1
            if silent == len(self._council.policies):
                break

    def _ask(self, policy: Policy[Any]) -> bool:
        """Whether it had something to say."""
        commands = tuple[Command, ...]()
        if policy.service == "admission":
            commands, self._wishes = tuple(self._wishes), []
            if not commands and not self.state.profiling_jobs:  # which wait for a node: all curves are known
                return False
        before, decision = self.state, self._council.ask(policy, commands)
        if decision is None:
            return False
        self._fold(decision)
        for event in decision.events:
            match event:
                case PlacementDecided():
                    self._carry_out(event)
                case JobAdmitted():
                    self.admitted.add(event.job_id)
                    self.decided_at_s[event.job_id] = self.now_s
                case JobRejected():
                    self.rejected[event.job_id] = event.reason
                    self.decided_at_s[event.job_id] = self.now_s
                case _:
                    pass
        for observer in self._observers:
            observer.decided(before, decision.events, self.now_s)
        return True

    # -- carry out ---------------------------------------------------------------------------------------

    def _carry_out(self, decision: PlacementDecided) -> None:
        """All leave before anybody moves in."""
        self.num_migrations += len(decision.migrated)
        for placed in decision.placements:
            self.world.release(placed.job_id, self.now_s)
            self._report_stopped(placed.job_id)
        for placed in decision.placements:
            if placed.gpus:
                self._occupy(placed)

    def _report_stopped(self, job_id: str) -> None:
        """The word of each node that the job's workers are gone. Unless it is said, an ended job is never forgotten."""
        job, iteration = self.state.job(job_id), self.world.iteration(job_id, self.now_s)
        for gone in job.stopping if job is not None else ():
            self._fold(facts.workers_stopped(job_id, gone, iteration, self.now_s))

    def _occupy(self, placed: PlacedJob) -> None:
        job = self._jobs[placed.job_id]
        training = self.world.occupy(job, placed.generation, placed.gpus, self.now_s)
        self._engine.at(training.starts_s, lambda: self._start(training))
        if training.done_at_s < NEVER_S:
            self._engine.at(training.done_at_s, lambda: self._finish(training))

"""The loop: events of the simulated cluster enter the ledger, the policies decide, their decisions change the cluster.

Policies decide once for all events of one instant; a decision takes no time. The simulation records only the events
that policies need: nodes join and are lost, a generation starts, its workers stop, a job finishes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, groupby
from typing import Any, Protocol

from elasticflow.shared.messages.commands import Command, SubmitJob
from elasticflow.shared.messages.events import PlacementDecided, PlanEvent
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState, profiling_jobs
from elasticflow.simulator.baselines.policy_catalogue import AdmissionPolicy, planners
from elasticflow.simulator.engine.event_queue import Engine
from elasticflow.simulator.engine.policy_driver import NEVER_S, PolicyDriver
from elasticflow.simulator.timing.training_time import TrainingTime
from elasticflow.simulator.trace import simulated_events
from elasticflow.simulator.trace.cluster_state import NO_COSTS, NO_SPEEDS, ClusterState
from elasticflow.simulator.trace.failures_and_speed_noise import (
    FailingNodes,
    Failures,
    SpeedNoise,
    ThroughputReports,
    starved_after_s,
)
from elasticflow.simulator.trace.idle_time import IdleTimeMeter
from elasticflow.simulator.trace.monitor_reports import MonitorReports
from elasticflow.simulator.trace.node_ends import NodeEnds
from elasticflow.simulator.trace.result import JobLog, Result
from elasticflow.simulator.trace.simulated_nodes import SimulatedNodes
from elasticflow.simulator.trace.simulated_pool import ClusterShape, pool_config, single_gpu_profiles, submission
from elasticflow.simulator.trace.simulated_workers import SimulatedWorkers
from elasticflow.simulator.workload.workload import TraceJob, Workload


class Observer(Protocol):
    """Sees every decision. before: the state that it is based on."""

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None: ...


class Simulation:
    """One workload on one cluster under one set of policies, which decide in their order.

    mix_efficiency: of GPUs of several types in one job; None: jobs have no step times, so that no policy mixes types.
    changes: times of each kind of change, so that jobs switch without a stop; None: each change stops its job for the
    whole resize_cost. config: settings of a live pool, whose monitor corrects the curves; None: policies know the true
    curves and costs.
    """

    def __init__(
        self,
        workload: Workload,
        cluster: ClusterShape,
        policies: Mapping[str, Policy[Any]] | None = None,
        *,
        resize_cost: ResizeCost,
        admission: AdmissionPolicy = "selective",
        reserve_nodes: int = 0,
        failures: Failures | None = None,
        ends: NodeEnds | None = None,
        confidence: float | None = None,
        noise: SpeedNoise | None = None,
        costs: Mapping[str, ResizeCost] = NO_COSTS,
        mix_efficiency: float | None = None,
        observers: Sequence[Observer] = (),
        idle_time_meter: IdleTimeMeter | None = None,
        changes: TrainingTime | None = None,
        config: PoolConfig | None = None,
    ) -> None:
        assert workload.jobs, "a simulation needs a job"
        assert failures is None or ends is None, "nodes that fail have no ends here"
        self.workload, self.cluster = workload, cluster
        self._observers, self._idle_time_meter = observers, idle_time_meter
        self._engine = Engine(workload.jobs[0].submitted_at_s)
        self._driver = PolicyDriver(self._engine, (policies or planners()).values(), self._settle)
        speeds = noise.speeds(workload) if noise else NO_SPEEDS
        self.cluster_state = ClusterState(cluster, resize_cost, speeds, costs, mix_efficiency, changes)
        self._reports = self._reports_of(config, noise)
        self._commands: list[SubmitJob] = []
        self._num_to_come = len(workload.jobs)
        self._starved_s = starved_after_s(failures) + max(resize_cost.seconds_C)
        self._log = JobLog(cluster.gpu_types[0])
        by_id = {job.job_id: job for job in workload.jobs}
        self._workers = SimulatedWorkers(
            self._engine, self._driver, self.cluster_state, by_id, self._reports, self._log
        )
        nodes = SimulatedNodes(self._engine, self._driver, cluster, self.cluster_state, ends)
        for profile in single_gpu_profiles(workload, cluster.gpu_types, mix_efficiency, self.now_s):
            self._driver.fold(profile)
        config = config or pool_config(
            workload,
            resize_cost,
            admission=admission,
            reserve_nodes=reserve_nodes,
            confidence=confidence,
            speed_noise=noise.sigma if noise else 0.0,
            gpu_types=cluster.gpu_types,
            stop_free=changes is not None,
        )
        self._driver.fold(simulated_events.pool_configured(config, self.state.sequence, self.now_s))
        for at_s, together in groupby(workload.jobs, key=lambda job: job.submitted_at_s):
            self._engine.at(at_s, partial(self._arrive, tuple(together)))
        if failures is not None:
            FailingNodes(self._engine, cluster.node_ids, failures, lose=nodes.lose, rejoin=nodes.rejoin)

    @property
    def state(self) -> PoolState:
        """The folded ledger."""
        return self._driver.state

    @property
    def num_settled(self) -> int:
        """Jobs that were rejected or have ended."""
        return self._log.num_settled

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    def run(self, stop: Callable[[], bool] = lambda: False) -> Result:
        """Run until every job has ended or never can; or until stop(), then the result is partial."""
        stopped = False

        def over() -> bool:
            nonlocal stopped
            if self._is_over():
                return True
            stopped = stop()
            return stopped

        self._engine.run(NEVER_S, over)
        for job_id in tuple(self.cluster_state.trainings):
            self.cluster_state.release(job_id, self.now_s)
        return self._result(partial=stopped)

    def _result(self, *, partial: bool) -> Result:
        return Result(
            workload=self.workload,
            cluster=self.cluster,
            fates=self._log.fates(self.workload, self.cluster_state.occupancies),
            outages=tuple(self.cluster_state.outages),
            num_migrations=self._log.num_migrations,
            ended_at_s=self.now_s,
            partial=partial,
            idle_time=self._idle_time_meter.idle_time(self.now_s) if self._idle_time_meter is not None else None,
        )

    def _is_over(self) -> bool:
        if self._num_to_come or self._commands:
            return False
        if not self.state.live_jobs:
            return True
        last_trained_s = max(self.cluster_state.last_trained_s(self.now_s), self.workload.jobs[-1].submitted_at_s)
        return self.now_s - last_trained_s > self._starved_s

    def _reports_of(self, config: PoolConfig | None, noise: SpeedNoise | None) -> MonitorReports | ThroughputReports:
        engine, cluster_state, fold, soon = self._engine, self.cluster_state, self._driver.fold, self._driver.soon
        if config is not None:
            return MonitorReports(engine, cluster_state, fold=fold, soon=soon, pool=lambda: self.state)
        return ThroughputReports(engine, cluster_state, fold=fold, soon=soon, of_all=noise is not None)

    def _arrive(self, jobs: tuple[TraceJob, ...]) -> None:
        self._num_to_come -= len(jobs)
        self._commands.extend(submission(job) for job in jobs)
        self._driver.soon()

    def _settle(self) -> None:
        """Ask the policies in turn, until all others have nothing to decide after the last decision."""
        silent = 0
        self._reports.report()
        for policy in cycle(self._driver.policies):
            silent = 1 if self._ask(policy) else silent + 1
            if silent == len(self._driver.policies):
                break
        if self._idle_time_meter is not None:
            self._idle_time_meter.settled(self.state, self.now_s)

    def _ask(self, policy: Policy[Any]) -> bool:
        """Whether the policy decided anything."""
        commands = tuple[Command, ...]()
        if policy.service == "admission":
            commands, self._commands = tuple(self._commands), []
            if not commands and not profiling_jobs(self.state.live_jobs):  # all curves are known: these wait for a node
                return False
        before, decision = self.state, self._driver.ask(policy, commands)
        if decision is None:
            return False
        self._driver.fold(decision)
        for event in decision.events:
            self._log.record(event, self.now_s)
            if isinstance(event, PlacementDecided):
                self._workers.carry_out(event)
        for observer in self._observers:
            observer.decided(before, decision.events, self.now_s)
        return True

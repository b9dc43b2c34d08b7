"""The loop: events of the simulated cluster enter the ledger, the policies decide, their decisions change the cluster.

Policies decide once for all events of one instant; a decision takes no time. The simulation records only the events
that policies need: nodes join and are lost, a generation starts, its workers stop, a job finishes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, groupby, product
from typing import Any, Protocol

from elasticflow.shared.messages.commands import Command, SubmitJob
from elasticflow.shared.messages.events import PlacedJob, PlacementDecided, PlanEvent, ThroughputMeasured
from elasticflow.shared.messages.job_spec import TORCHRUN, JobSpec
from elasticflow.shared.messages.pool_config import BestEffortRule, PoolConfig
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState, profiling_jobs
from elasticflow.simulator.baselines.policy_catalogue import AdmissionPolicy, planners
from elasticflow.simulator.timing.training_time import single_gpu_steps
from elasticflow.simulator.trace import simulated_events
from elasticflow.simulator.trace.cluster_state import NO_SPEEDS, ClusterState, Training, TrainingModel
from elasticflow.simulator.trace.failures_and_speed_noise import (
    NO_DEVIATIONS,
    Deviations,
    EndsOfNodes,
    FailingNodes,
    NodeEnds,
    SpeedNoise,
    ThroughputReports,
    starved_after_s,
)
from elasticflow.simulator.trace.result import IdleTimeMeter, JobLog, Result
from elasticflow.simulator.trace.simulated_events import MonitorReports
from elasticflow.simulator.virtual_time import NEVER_S, Engine, PolicyDriver
from elasticflow.simulator.workload.throughput_tables import NO_TYPE
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload

# --- simulated pool ------------------------------------------------------------------------------------
# Inputs of the simulated pool: its policies and settings, and the commands of its users.

FAR_APART = "cluster"  # the level of GPUs on several nodes
UNLIMITED_S = 1e11  # progress is known exactly, so it may be extrapolated without limit
AT_ONCE_S = 1e-3  # until a lost node is detected


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPool:
    """The policies of a pool, which decide in their order, and its settings.

    policies: None: the services' own. migrates_promised: whether jobs with a deadline migrate for blocks; False for
    baselines that know one speed for each number of GPUs. config: settings of a live pool, whose monitor corrects the
    curves; None: policies know the true curves and costs. by_front: jobs of the workload arrive only by `submit`, from
    a front that has several such pools.
    """

    policies: Mapping[str, Policy[Any]] | None = None
    admission: AdmissionPolicy = "selective"
    best_effort: BestEffortRule = "shortest-first"
    reserve_nodes: int = 0
    confidence: float | None = None
    migrates_promised: bool = True
    config: PoolConfig | None = None
    by_front: bool = False

    def settings(
        self,
        workload: Workload,
        training: TrainingModel,
        gpu_types: Sequence[str] = (NO_TYPE,),
        noise: SpeedNoise | None = None,
    ) -> PoolConfig:
        """The settings of the live pool, or the true curves and costs, without margins for error."""
        if self.config is not None:
            return self.config
        curves = dict(_curve(job, gpu_type, gpu_types[0]) for gpu_type in gpu_types for job in workload.jobs)
        if training.places is not None and self.migrates_promised:
            curves |= {f"{key}@{FAR_APART}": training.places.apart(rates) for key, rates in curves.items()}
        cost = training.resize_cost
        return PoolConfig(
            resize_cost_s=0.0,
            resize_cost_s_by_num_gpus=dict(zip(cost.num_gpus_C, cost.seconds_C, strict=True)),
            progress_timeout_s=UNLIMITED_S,
            admission=self.admission,
            best_effort=self.best_effort,
            reserve_nodes=self.reserve_nodes,
            throughput_margin=0.0,
            confidence=self.confidence,
            speed_spread=noise.sigma if noise is not None else PoolConfig().speed_spread,
            deadline_slack_s=0.0,
            heartbeat_timeout_s=AT_ONCE_S,
            stall_timeout_s=UNLIMITED_S,
            stop_free=training.changes is not None,
            migration_budget=PoolConfig().migration_budget if self.migrates_promised else 0.0,
            curves=curves,
        )


OUR_POOL = SimulatedPool()


def _curve(job: TraceJob, gpu_type: str, first: str) -> tuple[str, Mapping[int, float]]:
    """Its profile key on a type and the curve there: 0 at levels where it runs on other types only, so that none is
    unknown, which would have to be measured."""
    spec = replace(spec_of(job), gpu_type="" if gpu_type == first else gpu_type)  # specs do not name the first type
    curve, others = job.measured_on(gpu_type), job.measured_by_type.values()
    elsewhere = sorted({level for other in others for level in other.num_gpus_L})
    return spec.configured_key, dict.fromkeys(elsewhere, 0.0) | (dict(curve.rate_by_num_gpus) if curve else {})


def single_gpu_profiles(
    workload: Workload, gpu_types: Sequence[str], mix_efficiency: float | None, at_s: float
) -> Iterator[ThroughputMeasured]:
    """Step times of one GPU by profile and type, as profiling runs report them; none where no job can be mixed."""
    seen = set[str]()
    for gpu_type, job in product(gpu_types, workload.jobs):
        profile_key, rates = _curve(job, gpu_type, gpu_types[0])
        if job.gpus_per_replica > 1:
            continue
        if mix_efficiency is None or len(gpu_types) == 1 or profile_key in seen or not rates.get(1):
            continue
        seen.add(profile_key)
        yield ThroughputMeasured(
            profile_key=profile_key,
            num_gpus=1,
            iterations_per_s=rates[1],
            single_gpu=single_gpu_steps(rates[1], job.global_batch_size, mix_efficiency),
            job_id=job.job_id,
            generation=1,
            source="profile",
            at_s=at_s,
        )


def submission(job: TraceJob) -> SubmitJob:
    """The command of the job's user."""
    return SubmitJob(job_id=job.job_id, tenant=job.tenant, spec=spec_of(job))


def spec_of(job: TraceJob) -> JobSpec:
    return JobSpec(
        # a job with several GPUs for each replica is a script, which restarts at each change
        training_function="trace:Job" if job.gpus_per_replica == 1 else f"trace:{TORCHRUN}",
        model_name=job.model_name,
        global_batch_size=job.global_batch_size,
        max_iterations=job.num_iterations,
        job_class=job.job_class,
        deadline_s=job.deadline_s,
        min_gpus=job.min_gpus,
        max_gpus=job.max_gpus,
        gpus_per_replica=job.gpus_per_replica,
        mixed_gpu_types=job.mixed_gpu_types,
        priority=1.0 if job.priority is None else job.priority,
    )


# --- simulated nodes -----------------------------------------------------------------------------------
# Nodes of the simulated cluster: they join, leave at their announced end, are lost, and rejoin.


class SimulatedNodes:
    """All nodes of the cluster join at once. ends: None if they announce none."""

    def __init__(
        self,
        engine: Engine,
        driver: PolicyDriver,
        cluster: ClusterShape,
        cluster_state: ClusterState,
        ends: NodeEnds | None,
    ) -> None:
        self._engine, self._driver = engine, driver
        self._shapes, self._cluster_state = cluster.nodes, cluster_state
        self._ends = EndsOfNodes(cluster.node_ids, ends) if ends is not None else None
        self._away_s = ends.away_s if ends is not None else None
        for node_id in cluster.node_ids:
            self._join(node_id)

    def lose(self, node_id: str) -> None:
        """A node is lost; its jobs lose their GPUs and keep their progress."""
        now_s = self._engine.now_s
        for job_id in self._cluster_state.jobs_on(node_id, now_s):
            self._driver.fold(simulated_events.progressed(self._cluster_state.trainings[job_id], now_s))
            self._cluster_state.release(job_id, now_s)
        self._cluster_state.lose(node_id, now_s)
        self._driver.fold(simulated_events.node_lost(self._driver.state.nodes[node_id], now_s))
        self._driver.soon()

    def rejoin(self, node_id: str) -> None:
        self._cluster_state.rejoin(node_id, self._engine.now_s)
        self._join(node_id)
        self._driver.soon()

    def _join(self, node_id: str) -> None:
        known, node, now_s = self._driver.state.nodes.get(node_id), self._shapes[node_id], self._engine.now_s
        until_s = self._ends.until_s(node_id, now_s) if self._ends is not None else None
        self._driver.fold(simulated_events.node_joined(node_id, node.num_gpus, known, now_s, node.gpu_type, until_s))
        if until_s is not None:
            self._engine.at(until_s, lambda: self._leave(node_id))

    def _leave(self, node_id: str) -> None:
        """A node ends as announced: all of its jobs have moved."""
        now_s = self._engine.now_s
        assert not self._cluster_state.jobs_on(node_id, now_s), f"{node_id} ends with jobs on it"
        self._cluster_state.lose(node_id, now_s)
        self._driver.fold(simulated_events.node_left(self._driver.state.nodes[node_id], now_s))
        if self._away_s is not None:
            self._engine.after(self._away_s, lambda: self.rejoin(node_id))
        self._driver.soon()


# --- simulated workers ---------------------------------------------------------------------------------
# Workers of the simulated cluster: they leave GPUs and take others as placements say, start, and finish their job.


SAVED_EVERY_S = 60.0  # by scripts, which restart from there


class SimulatedWorkers:
    """jobs: all of the workload, by id. reports: of the jobs that train. log: gets their ends."""

    def __init__(
        self,
        engine: Engine,
        driver: PolicyDriver,
        cluster_state: ClusterState,
        jobs: Mapping[str, TraceJob],
        reports: MonitorReports | ThroughputReports,
        log: JobLog,
    ) -> None:
        self._engine, self._driver, self._cluster_state = engine, driver, cluster_state
        self._jobs, self._reports, self._log = jobs, reports, log

    def carry_out(self, decision: PlacementDecided) -> None:
        """All jobs leave their GPUs before any job takes new ones; jobs that only leave some go first."""
        left: dict[str, Training | None] = {}
        for placed in decision.placements:
            left[placed.job_id] = self._cluster_state.release(placed.job_id, self._engine.now_s)
            self._report_stopped(placed.job_id)

        def takes(placed: PlacedJob) -> bool:
            before = left[placed.job_id]
            return before is None or not set(placed.gpus) <= set(before.gpus)

        for placed in sorted(decision.placements, key=takes):
            if placed.gpus:
                switches = self._driver.state.live_jobs[placed.job_id].previous_generation is not None
                self._occupy(placed, left[placed.job_id] if switches else None)

    def _occupy(self, placed: PlacedJob, before: Training | None) -> None:
        job, now_s = self._jobs[placed.job_id], self._engine.now_s
        training = self._cluster_state.occupy(
            job, placed.generation, placed.gpus, now_s, placed.virtual_nodes_by_rank, before
        )
        self._engine.at(training.starts_s, lambda: self._start(training))
        if training.done_at_s < NEVER_S:
            self._engine.at(training.done_at_s, lambda: self._finish(training))

    def _start(self, training: Training) -> None:
        """The stop ends, unless the job has left these GPUs."""
        if self._cluster_state.is_present(training):
            self._driver.fold(simulated_events.generation_started(training, self._engine.now_s))
            self._reports.begin(training)
            if training.job.gpus_per_replica > 1:
                self._engine.after(SAVED_EVERY_S, lambda: self._save(training))
            if self._driver.state.config.stop_free:  # workers that left, and changes that waited for the switch
                self._report_stopped(training.job.job_id)
                self._driver.soon()

    def _save(self, training: Training) -> None:
        """A script that restarts has written a snapshot."""
        if self._cluster_state.is_present(training):
            self._driver.fold(simulated_events.progressed(training, self._engine.now_s))
            self._driver.soon()
            self._engine.after(SAVED_EVERY_S, lambda: self._save(training))

    def _finish(self, training: Training) -> None:
        if not self._cluster_state.is_present(training):
            return
        job_id, now_s = training.job.job_id, self._engine.now_s
        self._log.finished_at_s[job_id] = now_s
        self._driver.fold(simulated_events.job_finished(training, now_s))
        self._report_stopped(job_id)
        self._cluster_state.finish(job_id, now_s)
        self._driver.soon()

    def _report_stopped(self, job_id: str) -> None:
        """Each node reports that the job's workers have stopped; otherwise the fold never forgets an ended job."""
        job, now_s = self._driver.state.job(job_id), self._engine.now_s
        iteration = self._cluster_state.iteration(job_id, now_s)
        for stopping in job.stopping if job is not None else ():
            self._driver.fold(simulated_events.workers_stopped(job_id, stopping, iteration, now_s))


# --- simulation ----------------------------------------------------------------------------------------


class Observer(Protocol):
    """Sees every decision. before: the state that it is based on."""

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None: ...


class Simulation:
    """One workload on one cluster under one set of policies."""

    def __init__(
        self,
        workload: Workload,
        cluster: ClusterShape,
        training: TrainingModel,
        pool: SimulatedPool = OUR_POOL,
        deviations: Deviations = NO_DEVIATIONS,
        observers: Sequence[Observer] = (),
    ) -> None:
        assert workload.jobs, "a simulation needs a job"
        self.workload, self.cluster = workload, cluster
        self._observers = observers
        self._idle_time_meter: IdleTimeMeter | None = None
        self._engine = Engine(workload.jobs[0].submitted_at_s)
        self._driver = PolicyDriver(self._engine, (pool.policies or planners()).values(), self._settle)
        failures, noise = deviations.failures, deviations.noise
        self.cluster_state = ClusterState(cluster, training, noise.speeds(workload) if noise else NO_SPEEDS)
        self._reports = self._reports_of(monitored=pool.config is not None, noisy=noise is not None)
        self._commands: list[SubmitJob] = []
        self._by_front = pool.by_front
        self._num_to_come = len(workload.jobs)
        self._starved_s = starved_after_s(failures) + max(training.resize_cost.seconds_C)
        self._log = JobLog(cluster.gpu_types[0])
        by_id = {job.job_id: job for job in workload.jobs}
        self._workers = SimulatedWorkers(
            self._engine, self._driver, self.cluster_state, by_id, self._reports, self._log
        )
        nodes = SimulatedNodes(self._engine, self._driver, cluster, self.cluster_state, deviations.ends)
        for profile in single_gpu_profiles(workload, cluster.gpu_types, training.mix_efficiency, self.now_s):
            self._driver.fold(profile)
        config = pool.settings(workload, training, cluster.gpu_types, noise)
        self._driver.fold(simulated_events.pool_configured(config, self.state.sequence, self.now_s))
        for at_s, together in groupby(workload.jobs, key=lambda job: job.submitted_at_s):
            self._engine.at(at_s, partial(self._arrive, tuple(together)))
        if failures is not None:
            FailingNodes(self._engine, cluster.node_ids, failures, lose=nodes.lose, rejoin=nodes.rejoin)

    def measure_idle_time(self) -> None:
        """Let the result have the idle time. It takes one pass over all jobs at each instant."""
        self._idle_time_meter = IdleTimeMeter()

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

    def advance_to(self, at_s: float) -> None:
        """Run all that happens until then, this instant included."""
        self._engine.at(at_s, lambda: None)
        self._engine.run(at_s)

    def submit(self, job: TraceJob) -> bool:
        """A front submits a job of the workload now. Whether the pool admits it."""
        self._commands.append(submission(job))
        self._driver.soon()
        self._engine.run(self.now_s)
        return job.job_id in self._log.admitted

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

    def _reports_of(self, *, monitored: bool, noisy: bool) -> MonitorReports | ThroughputReports:
        engine, cluster_state, fold, soon = self._engine, self.cluster_state, self._driver.fold, self._driver.soon
        if monitored:
            return MonitorReports(engine, cluster_state, fold=fold, soon=soon, pool=lambda: self.state)
        return ThroughputReports(engine, cluster_state, fold=fold, soon=soon, of_all=noisy)

    def _arrive(self, jobs: tuple[TraceJob, ...]) -> None:
        self._num_to_come -= len(jobs)
        if self._by_front:
            return
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

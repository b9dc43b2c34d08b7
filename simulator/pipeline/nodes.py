"""A node of the simulated pool: the real executor policy, with virtual worker processes behind its action handler."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import (
    BeginShutDown,
    KillWorker,
    LocalEvent,
    SendToWorker,
    ShutDown,
    StartWorker,
    StoreArtifacts,
    UsePaddingSlots,
    WorkerEnded,
    WorkerId,
)
from elasticflow.services.executor.decisions.policy import executor_policy
from elasticflow.services.executor.decisions.state import NodeSpecification, State
from elasticflow.services.executor.heartbeat import Heartbeat
from elasticflow.services.monitor.model import FenceNode
from elasticflow.services.monitor.node_watch import NodeWatch
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.events.nodes import KnownStarts
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.messages.worker_protocol.to_worker import (
    JoinRendezvous,
    PeersLost,
    PrepareSwitch,
    StopAtBoundary,
    ToWorker,
    WriteCheckpoint,
)
from elasticflow.shared.runtime.bus.contract import Bus, Message
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.state.policy import Policy
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import (
    PoolSetting,
    ReplicaSpecification,
    SilentLog,
    SimulatedProcess,
    SteppedClock,
)
from elasticflow.simulator.pipeline.virtual_runs import Runs
from elasticflow.simulator.pipeline.virtual_workers import Processes, RunKey, TimingModel, TrueSpeeds, VirtualProcess
from elasticflow.simulator.virtual_time import VirtualTimeLoop

# --- environment ---------------------------------------------------------------------------------------
# What executors act on: the worker processes of their nodes. The ledger receives only what executors report.

KILLED = 9


class Environment:
    """What nodes share: time, a disk, and the rendezvous of their workers."""

    def __init__(self, loop: VirtualTimeLoop, timing_model: TimingModel, gpu_type_by_node: Mapping[str, str]) -> None:
        self._processes = Processes()
        self._speeds = TrueSpeeds(timing_model, gpu_type_by_node)
        self._runs = Runs(loop, timing_model, self._processes, self._speeds)
        self._loop, self._install_s = loop, timing_model.install_s

    @property
    def num_processes(self) -> int:
        return len(self._processes)

    def gpu_type_of(self, node_id: str) -> str:
        """The present type: a node may come back with other GPUs."""
        return self._speeds.type_of(node_id)

    def any_process(self, node_id: str) -> VirtualProcess | None:
        """The first of the node's workers, by id."""
        return next(iter(self._processes.on(node_id)), None)

    def damage_checkpoint(self, choose: Callable[[list[str]], str]) -> bool:
        """Make the newest checkpoint of a job unreadable; False if no job has an older one to start from."""
        files = self._runs.checkpoint_files
        with_older = sorted(job_id for job_id, each in files.items() if each.has_older)
        if with_older:
            files[choose(with_older)].damage()
        return bool(with_older)

    def preparing(self, node_id: str) -> tuple[str, ...]:
        """The jobs for which this node installs packages."""
        now_s = self._loop.now_s
        return tuple(sorted({p.id.job_id for p in self._processes.on(node_id) if p.begins_at_s > now_s}))

    # -- actions of executors ----------------------------------------------------------------------------

    def launch(self, action: StartWorker, node_id: str, report: Callable[[LocalEvent], None]) -> None:
        """A new worker process."""
        assignment, worker = action.assignment, action.worker
        if not assignment.plan.gpu_types_by_rank:
            self._speeds.launched(assignment.spec, node_id)
        run = self._runs.of(worker[:2], assignment.spec, assignment.plan, assignment.purpose, node_id)
        run.measures_step_times = assignment.measures_step_times
        run.most_virtual_nodes = assignment.most_virtual_nodes
        gpu = GpuId(node_id, assignment.gpu_index)
        process = VirtualProcess(id=worker, gpu=gpu, report=report, run=run, rank=worker.rank)
        if assignment.spec.installs_packages:
            process.begins_at_s = self._loop.now_s + self._install_s
        self._runs.begin(process)
        if assignment.plan.rendezvous_size:
            self._runs.rendezvous.of(run, assignment.plan.rendezvous_size)
        self._runs.invite(run, process, worker.rank, assignment.plan.rendezvous)

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        """A worker process receives a message; it has no effect on a process that is gone."""
        process = self._processes.known_as(worker)
        if process is None:
            return
        match message:
            case PrepareSwitch():
                self._prepare_switch(process, message)
            case JoinRendezvous():
                self._join(process, (worker.job_id, message.generation))
            case PeersLost():
                if process.run.broken:
                    self._runs.lose_peer(process, process.run)
            case WriteCheckpoint():
                run = self._runs.by_key.get(worker[:2])
                if run is not None and run.trains:
                    self._runs.checkpoint(run, request=message.request)
            case StopAtBoundary():
                self._runs.stop(process)
            case _:
                raise AssertionError(message)

    def _prepare_switch(self, process: VirtualProcess, order: PrepareSwitch) -> None:
        key, before = (process.id.job_id, order.plan.generation), process.run
        run = self._runs.of(key, before.spec, order.plan, before.purpose, process.gpu.node_id)
        self._runs.rendezvous.of(run, order.plan.rendezvous_size).staying[order.rendezvous_rank] = process
        self._runs.invite(run, process, order.rendezvous_rank, order.plan.rendezvous)

    def _join(self, process: VirtualProcess, key: RunKey) -> None:
        run = self._runs.by_key[key]
        staying = run.rendezvous.staying if run.rendezvous is not None else {}
        for rendezvous_rank, other in (run.processes | staying).items():
            if other is process:
                self._runs.join(run, process, rendezvous_rank)

    def kill(self, worker: WorkerId) -> None:
        """SIGKILL to one worker; its peers notice."""
        process = self._processes.known_as(worker)
        if process is not None:
            self.crash(process)

    # -- faults ------------------------------------------------------------------------------------------

    def kill_all(self, node_id: str, *, reported: bool, silently: bool = False) -> None:
        """The node's workers are gone. reported: to their executor, which runs on; silently: not to their peers."""
        for process in self._processes.on(node_id):
            self._runs.end(process, _killed(process) if reported else None, silently)

    def crash(self, process: VirtualProcess) -> None:
        """It is gone at once."""
        self._runs.end(process, _killed(process))


def _killed(process: VirtualProcess) -> WorkerEnded:
    return WorkerEnded(worker=process.id, signal=KILLED)


# --- nodes ---------------------------------------------------------------------------------------------

REBOOT_S = 0.2


class Machine:
    """A machine, and what starts the executors on it."""

    def __init__(self, name: str) -> None:
        self._name, self._num_starts = name, 1

    @property
    def started_by(self) -> str:
        return f"{self._name}-start-{self._num_starts}"

    def lose_power(self) -> None:
        self._num_starts += 1


@dataclass(frozen=True, slots=True)
class _Start:
    """A worker that has no process yet: its node has not said yet that it begins."""

    action: StartWorker
    unsent: list[ToWorker] = field(default_factory=list)


class VirtualNode:
    """An executor and its workers, which go down and come back together.

    machine: on which it runs, alone unless given.
    """

    def __init__(
        self,
        setting: PoolSetting,
        environment: Environment,
        node_id: str,
        num_gpus: int,
        metrics: Metrics,
        *,
        machine: Machine | None = None,
    ) -> None:
        self.machine = Machine(node_id) if machine is None else machine
        self._setting, self._loop, self._environment = setting, setting.loop, environment
        self.node_id, self._num_gpus, self._num_boots = node_id, num_gpus, 0
        self._previous_run_id, self._leased_until_s = "", 0.0
        self._starting: dict[WorkerId, _Start] = {}
        self._launched: set[tuple[str, int]] = set()  # starts whose workers have a process
        self._has_starts = asyncio.Event()
        replica = ReplicaSpecification(
            name=node_id, make_policy=self._booted, metrics=metrics, act=self._act, beside=self._heartbeat
        )
        self.executor = SimulatedProcess(setting, replica, SteppedClock(setting.loop))
        self.executor.start()

    # -- faults ------------------------------------------------------------------------------------------

    def crash(self, outage_s: float, *, silently: bool = False) -> None:
        """Executor and workers are gone at once; back after outage_s. silently: as a machine without power."""
        if self.executor.runs:
            self._previous_run_id = "" if silently else self._run_id
            if silently:
                self.machine.lose_power()
            self.executor.kill(with_its_machine=True)
            self._environment.kill_all(self.node_id, reported=False, silently=silently)
            self._starting.clear()
            self._launched.clear()
            self._loop.after(outage_s, self.executor.start)

    def partition(self, outage_s: float) -> None:
        """The node runs on and reaches no other process for outage_s. Its workers end when their lease is over."""
        self.executor.partition(outage_s)

    def crash_worker(self) -> None:
        """One worker process dies."""
        process = self._environment.any_process(self.node_id)
        if process is not None:
            self._environment.crash(process)

    # -- the executor ------------------------------------------------------------------------------------

    @property
    def _run_id(self) -> str:
        return f"boot{self._num_boots}"

    def _booted(self) -> Policy[State]:
        """The policy of the executor after one more start of the node."""
        self._num_boots += 1
        return executor_policy(
            NodeSpecification(
                node_id=self.node_id,
                run_id=self._run_id,
                num_gpus=self._num_gpus,
                device="cpu",
                gpu_type=self._environment.gpu_type_of(self.node_id),
                advertise_host=self.node_id,
                started_by=self.machine.started_by,
            )
        )

    async def _heartbeat(self, bus: MemoryBus, host: Host[Any]) -> None:
        """The real heartbeat. After a crash of the machine the executor knows of no previous one."""
        setting, loop = self._setting, self._loop
        heartbeat = Heartbeat(
            host,
            bus,
            setting.pool,
            self.executor.clock,
            SilentLog(),
            self,
            boot_s=lambda: loop.now_s,
            previous_run_id=self._previous_run_id,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(heartbeat.run(), name="heartbeat")
            tasks.create_task(self._start_workers(heartbeat), name="starts")

    async def _start_workers(self, heartbeat: Heartbeat) -> None:
        """Launch each worker once the pool knows that this node begins to."""
        while True:
            await self._has_starts.wait()
            self._has_starts.clear()
            due = tuple(self._starting.values())
            await heartbeat.stored()
            self._launched.update(start.action.worker[:2] for start in due)
            await heartbeat.stored()
            for start in due:
                if self._starting.get(start.action.worker) is start:
                    del self._starting[start.action.worker]
                    self._launch(start)

    def _launch(self, start: _Start) -> None:
        self._environment.launch(start.action, self.node_id, self._report)
        for message in start.unsent:
            self._environment.send(start.action.worker, message)

    @property
    def preparing(self) -> tuple[str, ...]:
        return self._environment.preparing(self.node_id)

    def preparations(self, starts: KnownStarts) -> KnownStarts:
        """Those of these starts of which no worker has run: also those of jobs whose packages are not there yet."""
        self._launched.intersection_update(starts)
        waiting = self.preparing
        return tuple(start for start in starts if start not in self._launched or start[0] in waiting)

    def kill_all(self) -> None:
        """The lease of the workers is over."""
        for worker in tuple(self._starting):
            self._give_up(worker)
        self._environment.kill_all(self.node_id, reported=True)

    def _give_up(self, worker: WorkerId) -> None:
        del self._starting[worker]
        self._report(WorkerEnded(worker=worker, exit_code=ExitCode.DONE))

    def extend_leases(self, until_s: float) -> None:
        """The workers end themselves then, unless their leases are extended again: their executor may be paused."""
        self._leased_until_s = until_s
        self._loop.after(until_s - self._loop.now_s, self._end_without_lease)

    def _end_without_lease(self) -> None:
        if self._loop.now_s >= self._leased_until_s:
            self.kill_all()

    def _act(self, action: Any) -> None:
        match action:
            case StartWorker():
                self._starting[action.worker] = _Start(action)
                self._has_starts.set()
            case SendToWorker() if action.worker in self._starting and not isinstance(action.message, StopAtBoundary):
                self._starting[action.worker].unsent.append(action.message)
            case SendToWorker() | KillWorker() if action.worker in self._starting:
                self._give_up(action.worker)
            case SendToWorker():
                self._environment.send(action.worker, action.message)
            case KillWorker():
                self._environment.kill(action.worker)
            case UsePaddingSlots() | StoreArtifacts() | BeginShutDown():
                pass  # simulated nodes execute no tasks and have no files
            case ShutDown():
                self._loop.after(0.0, lambda: self.crash(REBOOT_S))
            case _:
                raise AssertionError(action)

    def _report(self, local_event: LocalEvent) -> None:
        """Pass a worker's message to the executor that started it, if that executor still runs."""
        host = self.executor.host
        if host is not None:
            self._loop.call_soon(lambda: host.note(local_event) if host is self.executor.host else None)


# --- telemetry -----------------------------------------------------------------------------------------
# The monitor's tasks beside its host in the simulated pool: the real watch of the nodes, and snapshots.

SNAPSHOT_CHECK_S = 0.5  # between two checks


class MonitorTasks:
    """The tasks of one replica of the monitor, through all its restarts.

    snapshot_every: messages of the ledger.
    """

    def __init__(self, pool: str, clock: Clock, snapshot_every: int) -> None:
        self._pool, self._clock, self._snapshot_every = pool, clock, snapshot_every
        self._node_watch: NodeWatch | None = None

    def act(self, action: FenceNode) -> None:
        assert self._node_watch is not None, "the policy has learned of no heartbeat without it"
        self._node_watch.act(action)

    async def beside(self, bus: Bus, host: Host[Any]) -> None:
        self._node_watch = NodeWatch(bus, self._pool, self._clock, SilentLog(), on_unreadable=_unexpected)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._node_watch.run(host), name="node-watch")
            tasks.create_task(self._save_snapshots(bus, host), name="snapshots")

    async def _save_snapshots(self, bus: Bus, host: Host[Any]) -> None:
        saved_at = host.folded.sequence
        while True:
            await asyncio.sleep(SNAPSHOT_CHECK_S)
            snapshot = host.snapshot()
            if snapshot is not None and snapshot.state.sequence - saved_at >= self._snapshot_every:
                saved_at = snapshot.state.sequence
                try:
                    await snapshot_store.save(bus, self._pool, snapshot, self._clock.now_s())
                except Retry:
                    continue


def _unexpected(message: Message, error: codec.Undecodable) -> None:
    raise AssertionError(f"{message.subject}: {error}")

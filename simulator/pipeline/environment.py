"""What executors act on: the worker processes of their nodes. The ledger receives only what executors report."""

from collections.abc import Callable, Mapping

from elasticflow.services.executor.decisions.local_events_and_actions import (
    LocalEvent,
    StartWorker,
    WorkerEnded,
    WorkerId,
)
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.messages.worker_protocol.to_worker import (
    JoinRendezvous,
    PeersLost,
    PrepareSwitch,
    StopAtBoundary,
    ToWorker,
    WriteCheckpoint,
)
from elasticflow.simulator.engine.virtual_time_loop import VirtualTimeLoop
from elasticflow.simulator.pipeline.timing_model import TimingModel
from elasticflow.simulator.pipeline.true_speeds import TrueSpeeds
from elasticflow.simulator.pipeline.virtual_runs import Runs
from elasticflow.simulator.pipeline.virtual_workers import Process, Processes, RunKey

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

    def any_process(self, node_id: str) -> Process | None:
        """The first of the node's workers, by id."""
        return next(iter(self._processes.on(node_id)), None)

    def preparing(self, node_id: str) -> tuple[str, ...]:
        """The jobs for which this node installs packages."""
        now_s = self._loop.now_s
        return tuple(sorted({p.id.job_id for p in self._processes.on(node_id) if p.begins_at_s > now_s}))

    # -- actions of executors ----------------------------------------------------------------------------

    def launch(self, action: StartWorker, node_id: str, report: Callable[[LocalEvent], None]) -> None:
        """A new worker process."""
        assignment, worker = action.assignment, action.worker
        if not assignment.gpu_types_by_rank:
            self._speeds.launched(assignment.spec, node_id)
        run = self._runs.of(worker[:2], assignment.spec, assignment, assignment.purpose, node_id)
        run.measures_step_times = assignment.measures_step_times
        gpu = GpuId(node_id, assignment.gpu_index)
        process = Process(id=worker, gpu=gpu, report=report, run=run, rank=worker.rank)
        if assignment.spec.requirements:
            process.begins_at_s = self._loop.now_s + self._install_s
        self._runs.begin(process)
        if assignment.rendezvous_size:
            self._runs.rendezvous.of(run, assignment.rendezvous_size)
        self._runs.invite(run, process, worker.rank, assignment.rendezvous)

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

    def _prepare_switch(self, process: Process, order: PrepareSwitch) -> None:
        key, before = (process.id.job_id, order.generation), process.run
        run = self._runs.of(key, before.spec, order, before.purpose, process.gpu.node_id)
        self._runs.rendezvous.of(run, order.rendezvous_size).staying[order.rendezvous_rank] = process
        self._runs.invite(run, process, order.rendezvous_rank, order.rendezvous)

    def _join(self, process: Process, key: RunKey) -> None:
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

    def crash(self, process: Process) -> None:
        """It is gone at once."""
        self._runs.end(process, _killed(process))


def _killed(process: Process) -> WorkerEnded:
    return WorkerEnded(worker=process.id, signal=KILLED)

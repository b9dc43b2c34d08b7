"""The world that the ledger only hears of: worker processes, hidden speeds, checkpoints on a shared disk.

It asserts what no schedule may ever cause: two generations of a job that train at once, two workers on a GPU.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.executor.notes import Ended, Note, Said, StartWorker, WorkerId
from shared.messages.cluster import GpuId
from shared.messages.worker_channel import (
    Checkpointed,
    ExitCode,
    Finished,
    FromWorker,
    Profiled,
    Progressed,
    RendezvousListening,
    Started,
)
from simulator.engine import Engine
from simulator.workers import Process, Run, RunKey

PORT = 29_500
KILLED = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """How long things take, and how fast jobs really are: iterations/s by profile and number of GPUs."""

    true_curves: Mapping[str, Mapping[int, float]]
    dataset_size: int = 1 << 20  # samples
    listen_s: float = 0.1  # from rank 0's process to its open port
    start_s: float = 1.0  # from the last worker that joins to the first step
    stop_s: float = 0.1  # for the checkpoint at the boundary
    profile_s: float = 0.6
    checkpoint_every_s: float = 5.0
    report_every_s: float = 0.5
    give_up_s: float = 10.0  # a worker whose peers do not come ends after that
    peer_lost_s: float = 0.05


class World:
    """What nodes share: time, a disk, and what their workers say to each other."""

    def __init__(self, engine: Engine, physics: Physics) -> None:
        self._engine, self._physics = engine, physics
        self.runs: dict[RunKey, Run] = {}
        self._checkpoints: dict[str, int] = {}  # by job
        self._holders: dict[GpuId, WorkerId] = {}

    # -- what an executor does to its processes ----------------------------------------------------------

    def launch(self, wish: StartWorker, node_id: str, say: Callable[[Note], None]) -> None:
        """A new worker process."""
        gpu = GpuId(node_id, wish.gpu_index)
        assert gpu not in self._holders, f"{wish.worker} and {self._holders[gpu]} both on {gpu}"
        self._holders[gpu] = wish.worker
        key = wish.worker[:2]
        run = self.runs.get(key) or self._new_run(key, wish)
        process = Process(id=wish.worker, gpu=gpu, say=say)
        run.processes[wish.worker.rank] = process
        self._engine.after(self._physics.give_up_s, lambda: self._give_up(run, process))
        if wish.worker.rank == 0:
            self._engine.after(self._physics.listen_s, lambda: self._listen(run, process))
        elif wish.rendezvous:
            self._join(run, process)

    def introduce(self, key: RunKey, node_id: str) -> None:
        """The node's workers of this run are told where rank 0 listens."""
        for process in self._on(key, node_id):
            if process.id.rank:
                self._join(self.runs[key], process)

    def stop(self, key: RunKey) -> None:
        """All workers of the run agree on a boundary, write a checkpoint, exit; whoever trains not yet just exits."""
        run = self.runs[key]
        if run.stopping or run.broken:
            return
        run.stopping = True
        step_s = 1 / run.iterations_per_s if run.trains else 0.0
        self._engine.after(step_s + self._physics.stop_s, lambda: self._stopped(run))

    def kill(self, key: RunKey, node_id: str, *, told: bool = True) -> None:
        """SIGKILL to the node's workers of this run; their peers notice."""
        for process in self._on(key, node_id):
            self._end(process, Ended(worker=process.id, signal=KILLED) if told else None)

    def kill_all(self, node_id: str, *, told: bool) -> None:
        """The node's workers are gone; told: their executor lives to see it."""
        for run in list(self.runs.values()):
            self.kill(run.key, node_id, told=told)

    def any_process(self, node_id: str) -> Process | None:
        """The first of the node's workers, by id."""
        here = [process for run in self.runs.values() for process in self._on(run.key, node_id)]
        return min(here, key=lambda process: process.id, default=None)

    def crash(self, process: Process) -> None:
        self._end(process, Ended(worker=process.id, signal=KILLED))

    @property
    def num_processes(self) -> int:
        return len(self._holders)

    def _on(self, key: RunKey, node_id: str) -> list[Process]:
        run = self.runs.get(key)
        return [p for _, p in sorted(run.processes.items()) if p.gpu.node_id == node_id] if run else []

    # -- how a run goes ----------------------------------------------------------------------------------

    def _new_run(self, key: RunKey, wish: StartWorker) -> Run:
        curve = self._physics.true_curves[wish.spec.profile_key]
        run = Run(
            key=key,
            spec=wish.spec,
            world_size=wish.world_size,
            purpose=wish.purpose,
            iterations_per_s=curve[wish.world_size],
        )
        self.runs[key] = run
        return run

    def _listen(self, run: Run, process: Process) -> None:
        if process not in run.processes.values():
            return
        if run.world_size > 1:
            process.say(Said(worker=process.id, message=RendezvousListening(port=PORT)))
        self._join(run, process)

    def _join(self, run: Run, process: Process) -> None:
        if process.has_joined or process not in run.processes.values():
            return
        process.has_joined = True
        if sum(p.has_joined for p in run.processes.values()) == run.world_size and not run.broken:
            self._engine.after(self._physics.start_s, lambda: self._start(run))

    def _give_up(self, run: Run, process: Process) -> None:
        if run.started_at_s is None and process in run.processes.values():
            self._end(process, Ended(worker=process.id, exit_code=ExitCode.PEER_LOST))

    def _start(self, run: Run) -> None:
        if run.broken or run.stopping:
            return
        rivals = [other.key for other in self.runs.values() if other.trains and other.key[0] == run.key[0]]
        assert not rivals, f"{run.key} begins to train while {rivals} trains"
        run.from_iteration = self._checkpoints.get(run.key[0], 0) if run.purpose == "train" else 0
        run.started_at_s = self._engine.now_s
        self._all_say(run, Started(iteration=run.from_iteration))
        if run.purpose == "profile":
            self._engine.after(self._physics.profile_s, lambda: self._profiled(run))
            return
        left = max(run.spec.max_iterations - run.from_iteration, 1)
        self._engine.after(left / run.iterations_per_s, lambda: self._finished(run))
        self._engine.after(self._physics.report_every_s, lambda: self._report(run))
        self._engine.after(self._physics.checkpoint_every_s, lambda: self._checkpoint_again(run))

    def _report(self, run: Run) -> None:
        if run.trains:
            iteration = run.iteration(self._engine.now_s)
            self._all_say(run, Progressed(iteration=iteration, iterations_per_s=run.iterations_per_s))
            self._engine.after(self._physics.report_every_s, lambda: self._report(run))

    def _checkpoint_again(self, run: Run) -> None:
        if run.trains:
            self._checkpoint(run)
            self._engine.after(self._physics.checkpoint_every_s, lambda: self._checkpoint_again(run))

    def _checkpoint(self, run: Run) -> None:
        iteration = run.iteration(self._engine.now_s)
        self._checkpoints[run.key[0]] = iteration
        self._rank0_says(run, Checkpointed(iteration=iteration))

    # -- how it ends -------------------------------------------------------------------------------------

    def _stopped(self, run: Run) -> None:
        if run.trains and run.purpose == "train":
            self._checkpoint(run)
        self._all_done(run)

    def _profiled(self, run: Run) -> None:
        if run.trains:
            profiled = Profiled(
                iterations_per_s=run.iterations_per_s, dataset_size=self._physics.dataset_size
            )
            self._rank0_says(run, profiled)
            self._all_done(run)

    def _finished(self, run: Run) -> None:
        if run.trains:
            self._checkpoint(run)
            self._rank0_says(run, Finished(iteration=run.spec.max_iterations, condition="max_iterations"))
            self._all_done(run)

    def _all_done(self, run: Run) -> None:
        run.broken = True
        for process in list(run.processes.values()):
            self._end(process, Ended(worker=process.id, exit_code=ExitCode.DONE))

    def _end(self, process: Process, last: Ended | None) -> None:
        """A process is gone; peers that still live end soon after. last: what its executor sees of it."""
        run = self.runs[process.id[:2]]
        if run.processes.get(process.id.rank) is not process:
            return
        run.broken = True
        del run.processes[process.id.rank]
        del self._holders[process.gpu]
        if last is not None:
            process.say(last)
        for peer in list(run.processes.values()):
            lost = Ended(worker=peer.id, exit_code=ExitCode.PEER_LOST)
            self._engine.after(self._physics.peer_lost_s, lambda peer=peer, lost=lost: self._end(peer, lost))

    def _rank0_says(self, run: Run, message: FromWorker) -> None:
        rank0 = run.processes[0]
        rank0.say(Said(worker=rank0.id, message=message))

    def _all_say(self, run: Run, message: FromWorker) -> None:
        for process in list(run.processes.values()):
            process.say(Said(worker=process.id, message=message))

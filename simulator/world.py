"""The world that the ledger only hears of, as executors see it: what they do to the worker processes of their nodes."""

from collections.abc import Callable

from services.executor.notes import AskForCheckpoint, ChangeMembers, Ended, Note, StartWorker, WorkerId
from shared.messages.cluster import GpuId
from simulator.engine import Engine
from simulator.physics import Physics, Runs
from simulator.workers import Process, Processes, RunKey

KILLED = 9


class World:
    """What nodes share: time, a disk, and what their workers say to each other."""

    def __init__(self, engine: Engine, physics: Physics) -> None:
        self._processes = Processes()
        self._runs = Runs(engine, physics, self._processes)

    @property
    def num_processes(self) -> int:
        return len(self._processes)

    def any_process(self, node_id: str) -> Process | None:
        """The first of the node's workers, by id."""
        return next(iter(self._processes.on(node_id)), None)

    # -- asked for ---------------------------------------------------------------------------------------

    def launch(self, wish: StartWorker, node_id: str, say: Callable[[Note], None]) -> None:
        """A new worker process."""
        key, rank = wish.worker[:2], wish.worker.rank
        run = self._runs.of(key, wish.spec, wish.world_size, wish.purpose)
        gpu = GpuId(node_id, wish.gpu_index)
        process = Process(id=wish.worker, gpu=gpu, say=say, run=run, rank=rank)
        self._runs.begin(process)
        if wish.meeting_size:
            self._runs.meetings.of(run, wish.meeting_size)
        self._runs.invite(run, process, rank, wish.rendezvous)

    def change(self, wish: ChangeMembers) -> None:
        """A worker is told to go over to another run, or to leave with it; it trains on."""
        process = self._processes.known_as(wish.worker)
        assert process is not None, f"{wish.worker} is told to change, and is gone"
        key, before = (wish.worker.job_id, wish.generation), process.run
        run = self._runs.of(key, before.spec, wish.world_size, before.purpose)
        self._runs.meetings.of(run, wish.meeting_size).incumbents[wish.place] = process
        self._runs.invite(run, process, wish.place, wish.rendezvous)

    def introduce(self, key: RunKey, node_id: str) -> None:
        """The node's workers that are in this run or go over to it are told where place 0 listens."""
        run = self._runs.by_key.get(key)
        if run is None:
            return
        incumbents = run.meeting.incumbents if run.meeting is not None else {}
        for place, process in sorted((run.processes | incumbents).items()):
            if place and process.gpu.node_id == node_id:
                self._runs.join(run, process, place)

    def save(self, action: AskForCheckpoint) -> None:
        """The worker writes a checkpoint at the next boundary, if it trains."""
        run = self._runs.by_key.get(action.worker[:2])
        if run is not None and run.trains:
            self._runs.checkpoint(run, request=action.request)

    def stop(self, key: RunKey, node_id: str) -> None:
        """The node's workers of this run are told to stop."""
        for process in self._of(key, node_id):
            self._runs.stop(process)

    def tell_lost(self, worker: WorkerId) -> None:
        """It need not wait for its peers any more."""
        process = self._processes.known_as(worker)
        if process is not None and process.run.broken:
            self._runs.lose_peer(process, process.run)

    # -- by force ----------------------------------------------------------------------------------------

    def kill(self, key: RunKey, node_id: str) -> None:
        """SIGKILL to the node's workers of this run; their peers notice."""
        for process in self._of(key, node_id):
            self.crash(process)

    def kill_one(self, worker: WorkerId) -> None:
        """SIGKILL to one worker."""
        process = self._processes.known_as(worker)
        if process is not None:
            self.crash(process)

    def kill_all(self, node_id: str, *, told: bool, silently: bool = False) -> None:
        """The node's workers are gone; told: their executor lives to see it; silently: their peers do not."""
        for process in self._processes.on(node_id):
            self._runs.end(process, _killed(process) if told else None, silently)

    def crash(self, process: Process) -> None:
        """It is gone at once."""
        self._runs.end(process, _killed(process))

    def _of(self, key: RunKey, node_id: str) -> list[Process]:
        """Those that their executor knows by this run."""
        return [process for process in self._processes.on(node_id) if process.id[:2] == key]


def _killed(process: Process) -> Ended:
    return Ended(worker=process.id, signal=KILLED)

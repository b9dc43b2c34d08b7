"""The world that the ledger only hears of: worker processes, hidden speeds, checkpoints on a shared disk.

It asserts what no schedule may ever cause: two generations of a job that train at once, two workers on a GPU.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.executor.notes import (
    AskForCheckpoint,
    ChangeMembers,
    Ended,
    Note,
    Purpose,
    Said,
    StartWorker,
    WorkerId,
)
from shared.messages.cluster import GpuId
from shared.messages.gpu_range import size_up_to
from shared.messages.job import JobSpec
from shared.messages.worker_channel import (
    Checkpointed,
    ExitCode,
    Finished,
    FromWorker,
    Interrupted,
    Profiled,
    Progressed,
    RendezvousListening,
    Started,
)
from simulator.engine import Engine
from simulator.meetings import Meetings, joined_by
from simulator.workers import Process, Run, RunKey

PORT = 29_500
KILLED = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """How long things take, and how fast jobs really are: iterations/s by profile and number of GPUs, in between those
    of the next smaller one."""

    true_curves: Mapping[str, Mapping[int, float]]
    dataset_size: int = 1 << 20  # samples
    listen_s: float = 0.1  # from rank 0's process to its open port
    start_s: float = 1.0  # from the last worker that joins to the first step
    stop_s: float = 0.1  # for the checkpoint at the boundary
    switch_s: float = 0.02  # from the boundary at which workers go over to another run to its first step
    profile_s: float = 0.6
    checkpoint_every_s: float = 5.0
    report_every_s: float = 0.5
    give_up_s: float = 10.0  # a worker whose peers do not come ends after that
    peer_lost_s: float = 0.05
    leave_s: float = 0.05  # from the switch to the end of those who leave


class World:
    """What nodes share: time, a disk, and what their workers say to each other."""

    def __init__(self, engine: Engine, physics: Physics) -> None:
        self._engine, self._physics = engine, physics
        self.runs: dict[RunKey, Run] = {}
        self._checkpoints: dict[str, int] = {}  # by job
        self._holders: dict[GpuId, Process] = {}
        self._meetings = Meetings(
            engine,
            prepare_s=physics.start_s,
            switch_s=physics.switch_s,
            begin=self._begin,
            leave=self._leave,
            lives=self._lives,
        )

    # -- what an executor does to its processes ----------------------------------------------------------

    def launch(self, wish: StartWorker, node_id: str, say: Callable[[Note], None]) -> None:
        """A new worker process."""
        gpu = GpuId(node_id, wish.gpu_index)
        assert gpu not in self._holders, f"{wish.worker} and {self._holders[gpu].id} both on {gpu}"
        key, rank = wish.worker[:2], wish.worker.rank
        run = self.runs.get(key) or self._new_run(key, wish.spec, wish.world_size, wish.purpose)
        process = Process(id=wish.worker, gpu=gpu, say=say, run=run, rank=rank)
        self._holders[gpu] = run.processes[rank] = process
        self._engine.after(self._physics.give_up_s, lambda: self._give_up(run, process))
        if wish.meeting_size:
            self._meetings.of(run, wish.meeting_size)
        if rank == 0:
            self._engine.after(self._physics.listen_s, lambda: self._listen(run, process, rank))
        elif wish.rendezvous:
            self._join(run, process, rank)

    def change(self, wish: ChangeMembers) -> None:
        """A worker is told to go over to another run, or to leave with it; it trains on."""
        process = next(p for p in self._holders.values() if p.id == wish.worker)
        key = (wish.worker.job_id, wish.generation)
        before = process.run
        run = self.runs.get(key) or self._new_run(key, before.spec, wish.world_size, before.purpose)
        self._meetings.of(run, wish.meeting_size).incumbents[wish.place] = process
        if wish.place == 0:
            self._engine.after(self._physics.listen_s, lambda: self._listen(run, process, 0))
        elif wish.rendezvous:
            self._join(run, process, wish.place)

    def introduce(self, key: RunKey, node_id: str) -> None:
        """The node's workers that are in this run or go over to it are told where place 0 listens."""
        run = self.runs.get(key)
        if run is None:
            return
        incumbents = run.meeting.incumbents if run.meeting is not None else {}
        for place, process in sorted((run.processes | incumbents).items()):
            if place and process.gpu.node_id == node_id:
                self._join(run, process, place)

    def save(self, action: AskForCheckpoint) -> None:
        """The worker writes a checkpoint at the next boundary, if it trains."""
        run = self.runs.get(action.worker[:2])
        if run is not None and run.trains:
            self._checkpoint(run, request=action.request)

    def stop(self, key: RunKey, node_id: str) -> None:
        """The node's workers of this run agree with all others on a boundary, write a checkpoint, exit; whoever trains
        not yet just exits."""
        for process in self._on(key, node_id):
            if process.run.processes.get(process.rank) is not process:
                continue  # it is leaving
            if process.run.trained and process.run.broken:
                self._stop_alone(process)
            elif process.run.meeting is not None and process.run.started_at_s is None:
                self._end(process, Ended(worker=process.id, exit_code=ExitCode.DONE))
            else:
                self._stop(process.run)

    def _stop_alone(self, process: Process) -> None:
        """Once it knows that a peer is gone, it keeps what was done."""
        process.stopping = True
        if process.interrupted:
            self._engine.after(self._physics.stop_s, lambda: self._kept(process))

    def _kept(self, process: Process) -> None:
        if self._lives(process):
            iteration = process.run.iteration(self._engine.now_s)
            self._checkpoints[process.run.key[0]] = iteration
            process.say(Said(worker=process.id, message=Checkpointed(iteration=iteration)))
            self._end(process, Ended(worker=process.id, exit_code=ExitCode.DONE))

    def _stop(self, run: Run) -> None:
        if run.stopping or run.broken:
            return
        run.stopping = True
        step_s = 1 / run.iterations_per_s if run.trains else 0.0
        self._engine.after(step_s + self._physics.stop_s, lambda: self._stopped(run))

    def kill(self, key: RunKey, node_id: str, *, told: bool = True) -> None:
        """SIGKILL to the node's workers of this run; their peers notice."""
        for process in self._on(key, node_id):
            self._end(process, Ended(worker=process.id, signal=KILLED) if told else None)

    def kill_all(self, node_id: str, *, told: bool, silently: bool = False) -> None:
        """The node's workers are gone; told: their executor lives to see it; silently: their peers do not."""
        for process in self._here(node_id):
            self._end(process, Ended(worker=process.id, signal=KILLED) if told else None, silently)

    def tell_lost(self, worker: WorkerId) -> None:
        """It need not wait for its peers any more."""
        process = next((p for p in self._holders.values() if p.id == worker), None)
        if process is not None and process.run.broken:
            self._lose_peer(process, process.run)

    def any_process(self, node_id: str) -> Process | None:
        """The first of the node's workers, by id."""
        return next(iter(self._here(node_id)), None)

    def kill_one(self, worker: WorkerId) -> None:
        """SIGKILL to one worker."""
        for process in list(self._holders.values()):
            if process.id == worker:
                self.crash(process)

    def crash(self, process: Process) -> None:
        self._end(process, Ended(worker=process.id, signal=KILLED))

    @property
    def num_processes(self) -> int:
        return len(self._holders)

    def _here(self, node_id: str) -> list[Process]:
        """In the order of their ids."""
        here = (process for process in self._holders.values() if process.gpu.node_id == node_id)
        return sorted(here, key=lambda process: process.id)

    def _on(self, key: RunKey, node_id: str) -> list[Process]:
        """Those that their executor knows by this run."""
        return [process for process in self._here(node_id) if process.id[:2] == key]

    # -- how a run goes ----------------------------------------------------------------------------------

    def _new_run(self, key: RunKey, spec: JobSpec, world_size: int, purpose: Purpose) -> Run:
        run = Run(
            key=key,
            spec=spec,
            world_size=world_size,
            purpose=purpose,
            iterations_per_s=self._physics.true_curves[spec.measured_key][size_up_to(world_size)],
        )
        self.runs[key] = run
        return run

    def _lives(self, process: Process) -> bool:
        return self._holders.get(process.gpu) is process

    def _listen(self, run: Run, process: Process, place: int) -> None:
        if not self._lives(process):
            return
        if (run.world_size if run.meeting is None else run.meeting.size) > 1:
            listening = RendezvousListening(generation=run.key[1], port=PORT)
            process.say(Said(worker=process.id, message=listening))
        self._join(run, process, place)

    def _join(self, run: Run, process: Process, place: int) -> None:
        if run.meeting is not None:
            self._meetings.join(run, run.meeting, process, place)
            return
        if process.has_joined or not self._lives(process):
            return
        process.has_joined = True
        if sum(p.has_joined for p in run.processes.values()) == run.world_size and not run.broken:
            self._engine.after(self._physics.start_s, lambda: self._start(run))

    def _give_up(self, run: Run, process: Process) -> None:
        if run.started_at_s is None and process.run is run and self._lives(process):
            self._end(process, Ended(worker=process.id, exit_code=ExitCode.PEER_LOST))

    def _start(self, run: Run) -> None:
        if run.broken or run.stopping:
            return
        self._begin(run, self._checkpoints.get(run.key[0], 0) if run.purpose == "train" else 0)
        self._all_say(run, Started(iteration=run.from_iteration))

    def _begin(self, run: Run, iteration: int) -> None:
        """It takes steps from here on."""
        rivals = [other.key for other in self.runs.values() if other.trains and other.key[0] == run.key[0]]
        assert not rivals, f"{run.key} begins to train while {rivals} trains"
        run.from_iteration = iteration
        run.started_at_s = self._engine.now_s
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

    def _checkpoint(self, run: Run, request: int = 0) -> None:
        iteration = run.iteration(self._engine.now_s)
        self._checkpoints[run.key[0]] = iteration
        self._rank0_says(run, Checkpointed(iteration=iteration, request=request))

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
        run.breaks(self._engine.now_s)
        for process in list(run.processes.values()):
            self._end(process, Ended(worker=process.id, exit_code=ExitCode.DONE))

    def _end(self, process: Process, last: Ended | None, silently: bool = False) -> None:
        """A process is gone; peers that still live notice soon after. last: what its executor sees of it."""
        if not self._lives(process):
            return
        del self._holders[process.gpu]
        if last is not None:
            process.say(last)
        run = process.run
        if run.processes.get(process.rank) is not process:
            return  # it was about to leave, and nobody misses it
        del run.processes[process.rank]
        for bereft in (run, *joined_by(run, self.runs.values())):
            bereft.breaks(self._engine.now_s)
            for peer in () if silently else list(bereft.processes.values()):
                self._engine.after(
                    self._physics.peer_lost_s,
                    lambda peer=peer, bereft=bereft: self._lose_peer(peer, bereft),
                )

    def _leave(self, process: Process) -> None:
        """It has gone over with all others, who go on without it."""

        def ends() -> None:
            if self._lives(process):
                del self._holders[process.gpu]
                process.say(Ended(worker=process.id, exit_code=ExitCode.DONE))

        self._engine.after(self._physics.leave_s, ends)

    def _lose_peer(self, process: Process, run: Run) -> None:
        """Who has trained holds the state, and waits for what it is told; unless it was told already."""
        if not self._lives(process) or process.run is not run or process.interrupted:
            return
        if not run.trained:
            self._end(process, Ended(worker=process.id, exit_code=ExitCode.PEER_LOST))
            return
        process.interrupted = True
        interrupted = Interrupted(iteration=run.iteration(self._engine.now_s))
        process.say(Said(worker=process.id, message=interrupted))
        if process.stopping:
            self._stop_alone(process)

    def _rank0_says(self, run: Run, message: FromWorker) -> None:
        rank0 = run.processes[0]
        rank0.say(Said(worker=rank0.id, message=message))

    def _all_say(self, run: Run, message: FromWorker) -> None:
        for process in list(run.processes.values()):
            process.say(Said(worker=process.id, message=message))

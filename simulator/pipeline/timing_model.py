"""How long things take, and how runs go: from the first worker of a generation to the end of the last.

It asserts what no schedule may ever cause: two generations of a job that train at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from elasticflow.services.executor.decisions.local_events_and_actions import WorkerEnded, WorkerReported
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    ExitCode,
    Finished,
    FromWorker,
    Interrupted,
    Profiled,
    Progressed,
    RendezvousListening,
    Started,
)
from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.simulator.engine.virtual_time_loop import VirtualTimeLoop
from elasticflow.simulator.pipeline.rendezvous_model import RendezvousModel, joined_by
from elasticflow.simulator.pipeline.virtual_workers import Process, Processes, Run, RunKey
from elasticflow.simulator.timing.training_time import TrainingTime, true_rate

PORT = 29_500
START = TrainingTime.of_cost(ResizeCost.flat(1.0), switch_s=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingModel:
    """How long things take, and how fast jobs really are: iterations/s by profile and number of GPUs, in between those
    of the next smaller one.

    slow_profiles_s: seconds of each pre-run of a profile that takes longer than others; inf: it hangs.
    """

    true_curves: Mapping[str, Mapping[int, float]]
    dataset_size: int = 1 << 20  # samples
    listen_s: float = 0.1  # from rank 0's process to its open port
    training: TrainingTime = START  # restart: from the last worker that joins to the first step
    stop_s: float = 0.1  # for the checkpoint at the boundary
    profile_s: float = 0.6
    slow_profiles_s: Mapping[str, float] = field(default_factory=dict[str, float])
    checkpoint_every_s: float = 5.0
    report_every_s: float = 0.5
    give_up_s: float = 10.0  # a worker whose peers do not come ends after that
    peer_lost_s: float = 0.05
    leave_s: float = 0.05  # from the switch to the end of those who leave


class Runs:
    """All of them, by job and generation, and what they write to the disk that their nodes share."""

    def __init__(self, loop: VirtualTimeLoop, timing_model: TimingModel, processes: Processes) -> None:
        self._loop, self._physics, self._processes = loop, timing_model, processes
        self.by_key: dict[RunKey, Run] = {}
        self._checkpoints: dict[str, int] = {}  # by job
        self.meetings = RendezvousModel(
            loop,
            prepare_s=timing_model.training.prepare.seconds,
            switch_s=timing_model.training.switch_s,
            begin=self._train,
            leave=self._leave,
            lives=processes.lives,
        )

    # -- how it begins -----------------------------------------------------------------------------------

    def of(self, key: RunKey, spec: JobSpec, world_size: int, purpose: Literal["train", "profile"]) -> Run:
        """The run of this key, new with the first that asks for it."""
        run = self.by_key.get(key)
        if run is None:
            rate = true_rate(self._physics.true_curves[spec.measured_key], world_size)
            run = Run(key=key, spec=spec, world_size=world_size, purpose=purpose, iterations_per_s=rate)
            self.by_key[key] = run
        return run

    def begin(self, process: Process) -> None:
        """A process of a run lives from now on; without its peers it gives up."""
        self._processes.begin(process)
        run = process.run
        run.processes[process.rank] = process
        self._loop.after(self._physics.give_up_s, lambda: self._give_up(run, process))

    def invite(self, run: Run, process: Process, rendezvous_rank: int, rendezvous: str) -> None:
        """Place 0 listens; another joins it if it was told where, and else waits to be introduced."""
        if rendezvous_rank == 0:
            self._loop.after(self._physics.listen_s, lambda: self._listen(run, process, rendezvous_rank))
        elif rendezvous:
            self.join(run, process, rendezvous_rank)

    def _listen(self, run: Run, process: Process, rendezvous_rank: int) -> None:
        if not self._processes.lives(process):
            return
        if (run.world_size if run.meeting is None else run.meeting.size) > 1:
            listening = RendezvousListening(generation=run.key[1], port=PORT)
            process.say(WorkerReported(worker=process.id, message=listening))
        self.join(run, process, rendezvous_rank)

    def join(self, run: Run, process: Process, rendezvous_rank: int) -> None:
        if run.meeting is not None:
            self.meetings.join(run, run.meeting, process, rendezvous_rank)
            return
        if process.has_joined or not self._processes.lives(process):
            return
        process.has_joined = True
        if sum(p.has_joined for p in run.processes.values()) == run.world_size and not run.broken:
            self._loop.after(self._physics.training.restart.seconds(run.world_size), lambda: self._start(run))

    def _give_up(self, run: Run, process: Process) -> None:
        if run.started_at_s is None and process.run is run and self._processes.lives(process):
            self.end(process, WorkerEnded(worker=process.id, exit_code=ExitCode.PEER_LOST))

    def _start(self, run: Run) -> None:
        if run.broken or run.stopping:
            return
        self._train(run, self._checkpoints.get(run.key[0], 0) if run.purpose == "train" else 0)
        self._all_say(run, Started(iteration=run.from_iteration))

    def _train(self, run: Run, iteration: int) -> None:
        """It takes steps from here on."""
        rivals = [other.key for other in self.by_key.values() if other.trains and other.key[0] == run.key[0]]
        assert not rivals, f"{run.key} begins to train while {rivals} trains"
        run.from_iteration = iteration
        run.started_at_s = self._loop.now_s
        if run.purpose == "profile":
            takes_s = self._physics.slow_profiles_s.get(run.spec.measured_key, self._physics.profile_s)
            if takes_s < math.inf:
                self._loop.after(takes_s, lambda: self._profiled(run))
            return
        left = max(run.spec.max_iterations - run.from_iteration, 1)
        self._loop.after(left / run.iterations_per_s, lambda: self._finished(run))
        self._loop.after(self._physics.report_every_s, lambda: self._report(run))
        self._loop.after(self._physics.checkpoint_every_s, lambda: self._checkpoint_again(run))

    def _report(self, run: Run) -> None:
        if run.trains:
            iteration = run.iteration(self._loop.now_s)
            self._all_say(run, Progressed(iteration=iteration, iterations_per_s=run.iterations_per_s))
            self._loop.after(self._physics.report_every_s, lambda: self._report(run))

    def _checkpoint_again(self, run: Run) -> None:
        if run.trains:
            self.checkpoint(run)
            self._loop.after(self._physics.checkpoint_every_s, lambda: self._checkpoint_again(run))

    def checkpoint(self, run: Run, request: int = 0) -> None:
        iteration = run.iteration(self._loop.now_s)
        self._checkpoints[run.key[0]] = iteration
        self._rank0_says(run, CheckpointWritten(iteration=iteration, request=request))

    # -- how it ends -------------------------------------------------------------------------------------

    def stop(self, process: Process) -> None:
        """All of its run agree on a boundary, write a checkpoint and exit; whoever does not train yet just exits."""
        run = process.run
        if run.processes.get(process.rank) is not process:
            return  # it is leaving
        if run.trained and run.broken:
            process.stopping = True
            self._stop_alone(process)
        elif run.meeting is not None and run.started_at_s is None:
            self.end(process, WorkerEnded(worker=process.id, exit_code=ExitCode.DONE))
        elif not run.stopping and not run.broken:
            run.stopping = True
            step_s = run.step_s if run.trains else 0.0
            self._loop.after(step_s + self._physics.stop_s, lambda: self._stopped(run))

    def _stop_alone(self, process: Process) -> None:
        """Once it knows that a peer is gone, it keeps what was done."""
        if process.stopping and process.interrupted:
            self._loop.after(self._physics.stop_s, lambda: self._kept(process))

    def _kept(self, process: Process) -> None:
        if self._processes.lives(process):
            iteration = process.run.iteration(self._loop.now_s)
            self._checkpoints[process.run.key[0]] = iteration
            process.say(WorkerReported(worker=process.id, message=CheckpointWritten(iteration=iteration)))
            self.end(process, WorkerEnded(worker=process.id, exit_code=ExitCode.DONE))

    def _stopped(self, run: Run) -> None:
        if run.trains and run.purpose == "train":
            self.checkpoint(run)
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
            self.checkpoint(run)
            self._rank0_says(run, Finished(iteration=run.spec.max_iterations, condition="max_iterations"))
            self._all_done(run)

    def _all_done(self, run: Run) -> None:
        run.breaks(self._loop.now_s)
        for process in list(run.processes.values()):
            self.end(process, WorkerEnded(worker=process.id, exit_code=ExitCode.DONE))

    def end(self, process: Process, last: WorkerEnded | None, silently: bool = False) -> None:
        """A process is gone; peers that still live notice soon after. last: what its executor sees of it."""
        if not self._processes.lives(process):
            return
        self._processes.end(process)
        if last is not None:
            process.say(last)
        run = process.run
        if run.processes.get(process.rank) is not process:
            return  # it was about to leave, and nobody misses it
        del run.processes[process.rank]
        for bereft in (run, *joined_by(run, self.by_key.values())):
            bereft.breaks(self._loop.now_s)
            for peer in () if silently else list(bereft.processes.values()):
                self._loop.after(
                    self._physics.peer_lost_s,
                    lambda peer=peer, bereft=bereft: self.lose_peer(peer, bereft),
                )

    def _leave(self, process: Process) -> None:
        """It has gone over with all others, who go on without it."""

        def ends() -> None:
            if self._processes.lives(process):
                self._processes.end(process)
                process.say(WorkerEnded(worker=process.id, exit_code=ExitCode.DONE))

        self._loop.after(self._physics.leave_s, ends)

    def lose_peer(self, process: Process, run: Run) -> None:
        """Who has trained holds the state, and waits for what it is told; unless it was told already."""
        if not self._processes.lives(process) or process.run is not run or process.interrupted:
            return
        if not run.trained:
            self.end(process, WorkerEnded(worker=process.id, exit_code=ExitCode.PEER_LOST))
            return
        process.interrupted = True
        interrupted = Interrupted(iteration=run.iteration(self._loop.now_s))
        process.say(WorkerReported(worker=process.id, message=interrupted))
        self._stop_alone(process)

    def _rank0_says(self, run: Run, message: FromWorker) -> None:
        rank0 = run.processes[0]
        rank0.say(WorkerReported(worker=rank0.id, message=message))

    def _all_say(self, run: Run, message: FromWorker) -> None:
        for process in list(run.processes.values()):
            process.say(WorkerReported(worker=process.id, message=message))

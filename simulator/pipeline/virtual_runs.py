"""How runs go: from the first worker of a generation to the end of the last.

It asserts what no schedule may ever cause: two generations of a job that train at once.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Literal

from elasticflow.services.executor.decisions.local_events_and_actions import WorkerEnded, WorkerId, WorkerReported
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.measurements import ResizeTimeline, VirtualNodeCount
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    ExitCode,
    Finished,
    FromWorker,
    Interrupted,
    Lagged,
    Profiled,
    Progressed,
    RendezvousListening,
    Started,
    Switched,
)
from elasticflow.shared.messages.worker_protocol.to_worker import GenerationPlan
from elasticflow.simulator.pipeline.virtual_workers import (
    Processes,
    Rendezvous,
    Run,
    RunKey,
    Slowness,
    TimingModel,
    TrueSpeeds,
    VirtualProcess,
)
from elasticflow.simulator.virtual_time import VirtualTimeLoop

# --- rendezvous model ----------------------------------------------------------------------------------
# How simulated workers switch to another run, with joining and without leaving workers. Part of `virtual_runs`.

STATE_BYTES = 1 << 20


class RendezvousModel:
    """begin(run, iteration): the run takes steps from now on; leave(process): the worker is not part of the new run."""

    def __init__(
        self,
        loop: VirtualTimeLoop,
        *,
        prepare_s: Callable[[int], float],
        switch_s: float,
        begin: Callable[[Run, int], None],
        leave: Callable[[VirtualProcess], None],
        lives: Callable[[VirtualProcess], bool],
    ) -> None:
        self._loop, self._prepare_s, self._switch_s = loop, prepare_s, switch_s
        self._begin, self._leave, self._lives = begin, leave, lives

    def of(self, run: Run, size: int) -> Rendezvous:
        """The rendezvous of all workers that switch to this run."""
        if run.rendezvous is None:
            run.rendezvous = Rendezvous(size=size, began_s=self._loop.now_s)
        assert run.rendezvous.size == size, f"{run.key}: a rendezvous of {run.rendezvous.size}, or of {size}"
        return run.rendezvous

    def join(self, run: Run, rendezvous: Rendezvous, process: VirtualProcess, rendezvous_rank: int) -> None:
        """The worker has the address; a joining worker prepares first."""
        prepare_s = self._prepare_s(run.world_size) if process.run is run else 0.0
        self._loop.after(prepare_s, lambda: self._arrive(run, rendezvous, process, rendezvous_rank))

    def _arrive(self, run: Run, rendezvous: Rendezvous, process: VirtualProcess, rendezvous_rank: int) -> None:
        """Count an arrival. All workers switch at the next step boundary after the last one."""
        if not self._lives(process) or rendezvous_rank in rendezvous.present or run.broken:
            return
        rendezvous.present[rendezvous_rank] = process
        if len(rendezvous.present) == rendezvous.size:
            boundary_s = max(each.run.step_s for each in rendezvous.staying.values())
            self._loop.after(boundary_s + self._switch_s, lambda: self._switch(run, rendezvous))

    def _switch(self, run: Run, rendezvous: Rendezvous) -> None:
        """All workers switch at once. If one is gone or stops, none switches: training workers go on as before."""
        staying, now_s = tuple(rendezvous.staying.values()), self._loop.now_s
        is_cancelled = any(each.run.stopping or each.stopping or not self._lives(each) for each in staying)
        if run.broken or is_cancelled:
            return
        iteration = max(each.run.iteration(now_s) for each in staying)
        for each in staying:  # their previous run ends
            each.run.breaks(now_s)
            each.run.processes.clear()
            each.interrupted = False
        for rendezvous_rank, process in sorted(rendezvous.present.items()):
            process.run, process.rank = run, rendezvous_rank
            if rendezvous_rank < run.world_size:
                run.processes[rendezvous_rank] = process
            else:
                self._leave(process)
        self._begin(run, iteration)
        first_step_s = run.step_s
        resize = ResizeTimeline(
            prepare_s=self._loop.now_s - rendezvous.began_s,
            stop_s=self._switch_s,
            first_step_s=first_step_s,
            bytes_moved=STATE_BYTES,
        )
        self._loop.after(first_step_s, lambda: self._report_switch(run, resize))

    def _report_switch(self, run: Run, resize: ResizeTimeline) -> None:
        """Joining workers report their start after the first step, staying workers their new rank."""
        if run.broken:
            return
        for rank, process in sorted(run.processes.items()):
            member = WorkerId(*run.key, rank)
            if process.id == member:
                process.report(
                    WorkerReported(worker=member, message=Started(iteration=run.from_iteration, resize=resize))
                )
                continue
            switched = Switched(generation=member.generation, rank=rank, iteration=run.from_iteration, resize=resize)
            process.report(WorkerReported(worker=process.id, message=switched))
            process.id = member


def joined_by(run: Run, runs: Iterable[Run]) -> list[Run]:
    """The runs to which its workers were switching."""
    return [
        other
        for other in runs
        if other.rendezvous is not None
        and other.started_at_s is None
        and any(process.run is run for process in other.rendezvous.staying.values())
    ]


# --- virtual runs --------------------------------------------------------------------------------------

PORT = 29_500
NUM_KEPT = 2  # checkpoints of a job, as its real store keeps


class CheckpointFiles:
    """The newest checkpoints of a job, on the disk that its nodes share. The newest one can be damaged."""

    def __init__(self) -> None:
        self._iterations: list[int] = []
        self._damaged: list[int] = []

    def write(self, iteration: int) -> None:
        self._iterations = [*self._iterations, iteration][-NUM_KEPT:]

    @property
    def has_older(self) -> bool:
        return len(self._iterations) == NUM_KEPT

    def damage(self) -> None:
        """No start can read the newest one any more."""
        self._damaged.append(self._iterations.pop())

    def restore(self) -> tuple[int, str]:
        """The iteration at which a run starts, and which newer checkpoints it cannot use ("": none)."""
        iteration = self._iterations[-1] if self._iterations else 0
        lost = ", ".join(f"iteration {newer}: damaged" for newer in self._damaged if newer > iteration)
        self._damaged.clear()
        return iteration, lost


class Runs:
    """All runs, by job and generation, and their checkpoints on the disk that their nodes share."""

    def __init__(
        self, loop: VirtualTimeLoop, timing_model: TimingModel, processes: Processes, speeds: TrueSpeeds
    ) -> None:
        self._loop, self._timing, self._processes, self._speeds = loop, timing_model, processes, speeds
        self.by_key: dict[RunKey, Run] = {}
        self._virtual_nodes = dict[str, int]()  # of each job that trains, for its life
        self.checkpoint_files: defaultdict[str, CheckpointFiles] = defaultdict(CheckpointFiles)  # by job
        self.rendezvous = RendezvousModel(
            loop,
            prepare_s=timing_model.training.grow.prepare.seconds,
            switch_s=timing_model.training.grow.stop.seconds(1),
            begin=self._train,
            leave=self._leave,
            lives=processes.lives,
        )

    # -- start ------------------------------------------------------------------------------------------

    def of(
        self,
        key: RunKey,
        spec: JobSpec,
        plan: GenerationPlan,
        purpose: Literal["train", "profile"],
        node_id: str,
    ) -> Run:
        """The run of this key; the first call, for a worker on node_id, creates it."""
        run = self.by_key.get(key)
        if run is None:
            world_size = plan.world_size
            gpu_types = plan.gpu_types_by_rank or (self._speeds.type_of(node_id),) * world_size
            rate = self._speeds.iterations_per_s(spec, gpu_types, plan.virtual_nodes_by_rank)
            run = Run(
                key=key,
                spec=spec,
                world_size=world_size,
                purpose=purpose,
                iterations_per_s=rate,
                gpu_types=gpu_types,
                virtual_nodes=plan.virtual_nodes_by_rank,
            )
            self.by_key[key] = run
            known = self._virtual_nodes.setdefault(key[0], plan.num_virtual_nodes) if purpose == "train" else None
            assert known in (None, plan.num_virtual_nodes), (
                f"{key}: {plan.num_virtual_nodes} virtual nodes, not {known}"
            )
        return run

    def begin(self, process: VirtualProcess) -> None:
        """A process of a run starts; without its peers it gives up."""
        self._processes.begin(process)
        run = process.run
        run.processes[process.rank] = process
        wait_s = self._timing.give_up_s + (self._timing.install_s if run.spec.installs_packages else 0.0)
        self._loop.after(wait_s, lambda: self._give_up(run, process))

    def invite(self, run: Run, process: VirtualProcess, rendezvous_rank: int, address: str) -> None:
        """Rank 0 listens; another worker joins once it has the address."""
        if rendezvous_rank == 0:
            begins_in_s = max(process.begins_at_s - self._loop.now_s, 0.0)
            self._loop.after(begins_in_s + self._timing.listen_s, lambda: self._listen(run, process, rendezvous_rank))
        elif address:
            self.join(run, process, rendezvous_rank)

    def _listen(self, run: Run, process: VirtualProcess, rendezvous_rank: int) -> None:
        if not self._processes.lives(process):
            return
        if (run.world_size if run.rendezvous is None else run.rendezvous.size) > 1:
            listening = RendezvousListening(generation=run.key[1], port=PORT)
            process.report(WorkerReported(worker=process.id, message=listening))
        self.join(run, process, rendezvous_rank)

    def join(self, run: Run, process: VirtualProcess, rendezvous_rank: int) -> None:
        if (begins_in_s := process.begins_at_s - self._loop.now_s) > 0.0:
            self._loop.after(begins_in_s, lambda: self.join(run, process, rendezvous_rank))
            return
        if run.rendezvous is not None:
            self.rendezvous.join(run, run.rendezvous, process, rendezvous_rank)
            return
        if process.has_joined or not self._processes.lives(process):
            return
        process.has_joined = True
        if sum(p.has_joined for p in run.processes.values()) == run.world_size and not run.broken:
            self._loop.after(self._timing.training.restart.seconds(run.world_size), lambda: self._start(run))

    def _give_up(self, run: Run, process: VirtualProcess) -> None:
        if run.started_at_s is None and process.run is run and self._processes.lives(process):
            self.end(process, WorkerEnded(worker=process.id, exit_code=ExitCode.PEER_LOST))

    def _start(self, run: Run) -> None:
        if run.broken or run.stopping:
            return
        iteration, lost = self.checkpoint_files[run.key[0]].restore() if run.purpose == "train" else (0, "")
        self._train(run, iteration)
        self._report_all(run, Started(iteration=iteration, lost_checkpoints=lost))

    def _train(self, run: Run, iteration: int) -> None:
        """The run takes steps from now on."""
        others = [other.key for other in self.by_key.values() if other.trains and other.key[0] == run.key[0]]
        assert not others, f"{run.key} begins to train while {others} trains"
        run.from_iteration = iteration
        run.started_at_s = self._loop.now_s
        if run.purpose == "profile":
            takes_s = self._timing.slow_profiles_s.get(run.spec.configured_key, self._timing.profile_s)
            if takes_s < math.inf:
                self._loop.after(takes_s, lambda: self._profiled(run))
            return
        self._slow_down(run)
        left = max(run.spec.max_iterations - run.from_iteration, 1)
        self._loop.after(left / run.iterations_per_s, lambda: self._finished(run))
        self._loop.after(self._timing.report_every_s, lambda: self._report_progress(run))
        self._loop.after(self._timing.checkpoint_every_s, lambda: self._checkpoint_again(run))

    def _slow_down(self, run: Run) -> None:
        """The slow GPUs of a training run set its speed; rank 0 reports each as long as it is slow."""
        slowness = [self._timing.slow_gpus.get(run.processes[rank].gpu) for rank in range(run.world_size)]
        slowdowns = tuple(each.slowdown if each and self._loop.now_s < each.until_s else 1.0 for each in slowness)
        if max(slowdowns) > 1.0:
            run.iterations_per_s = self._speeds.iterations_per_s(run.spec, run.gpu_types, run.virtual_nodes, slowdowns)
        for rank, each in enumerate(slowness):
            if each is not None and slowdowns[rank] > 1.0 and run.world_size > 1:
                self._loop.after(
                    self._timing.straggler_after_s,
                    lambda rank=rank, each=each: self._report_straggler(run, rank, each),
                )

    def _report_straggler(self, run: Run, rank: int, slowness: Slowness) -> None:
        if run.trains and self._loop.now_s < slowness.until_s:
            count = self._timing.num_virtual_nodes
            self._report_rank0(run, Lagged(rank=rank, slowdown=slowness.slowdown, num_virtual_nodes=count))
            after_s = self._timing.straggler_after_s
            self._loop.after(after_s, lambda: self._report_straggler(run, rank, slowness))

    def _report_progress(self, run: Run) -> None:
        if run.trains:
            iteration = run.iteration(self._loop.now_s)
            self._report_all(run, Progressed(iteration=iteration, iterations_per_s=run.iterations_per_s))
            self._loop.after(self._timing.report_every_s, lambda: self._report_progress(run))

    def _checkpoint_again(self, run: Run) -> None:
        if run.trains:
            self.checkpoint(run)
            self._loop.after(self._timing.checkpoint_every_s, lambda: self._checkpoint_again(run))

    def checkpoint(self, run: Run, request: int = 0) -> None:
        iteration = run.iteration(self._loop.now_s)
        self.checkpoint_files[run.key[0]].write(iteration)
        self._report_rank0(run, CheckpointWritten(iteration=iteration, request=request))

    # -- end ---------------------------------------------------------------------------------------------

    def stop(self, process: VirtualProcess) -> None:
        """All workers of its run agree on a boundary, write a checkpoint and exit; before training they only exit."""
        run = process.run
        if run.processes.get(process.rank) is not process:
            return  # it is a leaving worker
        if run.trained and run.broken:
            process.stopping = True
            self._stop_alone(process)
        elif run.rendezvous is not None and run.started_at_s is None:
            self.end(process, WorkerEnded(worker=process.id, exit_code=ExitCode.DONE))
        elif not run.stopping and not run.broken:
            run.stopping = True
            step_s = run.step_s if run.trains else 0.0
            self._loop.after(step_s + self._timing.stop_s, lambda: self._stopped(run))

    def _stop_alone(self, process: VirtualProcess) -> None:
        """Once it knows of the loss of a peer, it writes a checkpoint by itself."""
        if process.stopping and process.interrupted:
            self._loop.after(self._timing.stop_s, lambda: self._stopped_alone(process))

    def _stopped_alone(self, process: VirtualProcess) -> None:
        if self._processes.lives(process):
            iteration = process.run.iteration(self._loop.now_s)
            self.checkpoint_files[process.run.key[0]].write(iteration)
            process.report(WorkerReported(worker=process.id, message=CheckpointWritten(iteration=iteration)))
            self.end(process, WorkerEnded(worker=process.id, exit_code=ExitCode.DONE))

    def _stopped(self, run: Run) -> None:
        if run.trains and run.purpose == "train":
            self.checkpoint(run)
        self._all_done(run)

    def _profiled(self, run: Run) -> None:
        if run.trains:
            gpu_type = self._speeds.type_of(run.processes[0].gpu.node_id)
            profiled = Profiled(
                iterations_per_s=run.iterations_per_s,
                dataset_size=self._timing.dataset_size,
                single_gpu=self._speeds.single_gpu(run.spec, gpu_type)
                if run.measures_step_times and run.world_size == 1
                else None,
                virtual_nodes=self._measured_virtual_nodes(run),
            )
            self._report_rank0(run, profiled)
            self._all_done(run)

    def _measured_virtual_nodes(self, run: Run) -> VirtualNodeCount | None:
        count = min(self._timing.bitwise_virtual_nodes, run.most_virtual_nodes)
        return VirtualNodeCount(count=count, source="measured") if count else None

    def _finished(self, run: Run) -> None:
        if run.trains:
            self.checkpoint(run)
            self._report_rank0(run, Finished(iteration=run.spec.max_iterations, condition="max_iterations"))
            self._all_done(run)

    def _all_done(self, run: Run) -> None:
        run.breaks(self._loop.now_s)
        for process in list(run.processes.values()):
            self.end(process, WorkerEnded(worker=process.id, exit_code=ExitCode.DONE))

    def end(self, process: VirtualProcess, last: WorkerEnded | None, silently: bool = False) -> None:
        """A process is gone; its peers notice soon after. last: what its executor observes."""
        if not self._processes.lives(process):
            return
        self._processes.end(process)
        if last is not None:
            process.report(last)
        run = process.run
        if run.processes.get(process.rank) is not process:
            return  # a leaving worker: the run goes on without it
        del run.processes[process.rank]
        for affected in (run, *joined_by(run, self.by_key.values())):
            affected.breaks(self._loop.now_s)
            for peer in () if silently else list(affected.processes.values()):
                self._loop.after(
                    self._timing.peer_lost_s,
                    lambda peer=peer, affected=affected: self.lose_peer(peer, affected),
                )

    def _leave(self, process: VirtualProcess) -> None:
        """A leaving worker ends soon after the switch."""

        def ends() -> None:
            if self._processes.lives(process):
                self._processes.end(process)
                process.report(WorkerEnded(worker=process.id, exit_code=ExitCode.DONE))

        self._loop.after(self._timing.leave_s, ends)

    def lose_peer(self, process: VirtualProcess, run: Run) -> None:
        """A worker that has trained holds the state and waits for a message, unless one has arrived; others end."""
        if not self._processes.lives(process) or process.run is not run or process.interrupted:
            return
        if not run.trained:
            self.end(process, WorkerEnded(worker=process.id, exit_code=ExitCode.PEER_LOST))
            return
        process.interrupted = True
        interrupted = Interrupted(iteration=run.iteration(self._loop.now_s))
        process.report(WorkerReported(worker=process.id, message=interrupted))
        self._stop_alone(process)

    def _report_rank0(self, run: Run, message: FromWorker) -> None:
        rank0 = run.processes[0]
        rank0.report(WorkerReported(worker=rank0.id, message=message))

    def _report_all(self, run: Run, message: FromWorker) -> None:
        for process in list(run.processes.values()):
            process.report(WorkerReported(worker=process.id, message=message))

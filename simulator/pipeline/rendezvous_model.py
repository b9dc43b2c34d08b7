"""How simulated workers switch to another run, with joining and without leaving workers. Part of `virtual_runs`."""

from collections.abc import Callable, Iterable

from elasticflow.services.executor.decisions.local_events_and_actions import WorkerId, WorkerReported
from elasticflow.shared.messages.resize_timeline import ResizeTimeline
from elasticflow.shared.messages.worker_protocol.from_worker import Started, Switched
from elasticflow.simulator.engine.virtual_time_loop import VirtualTimeLoop
from elasticflow.simulator.pipeline.virtual_workers import Process, Rendezvous, Run

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
        leave: Callable[[Process], None],
        lives: Callable[[Process], bool],
    ) -> None:
        self._loop, self._prepare_s, self._switch_s = loop, prepare_s, switch_s
        self._begin, self._leave, self._lives = begin, leave, lives

    def of(self, run: Run, size: int) -> Rendezvous:
        """The rendezvous of all workers that switch to this run."""
        if run.rendezvous is None:
            run.rendezvous = Rendezvous(size=size, began_s=self._loop.now_s)
        assert run.rendezvous.size == size, f"{run.key}: a rendezvous of {run.rendezvous.size}, or of {size}"
        return run.rendezvous

    def join(self, run: Run, rendezvous: Rendezvous, process: Process, rendezvous_rank: int) -> None:
        """The worker has the address; a joining worker prepares first."""
        prepare_s = self._prepare_s(run.world_size) if process.run is run else 0.0
        self._loop.after(prepare_s, lambda: self._arrive(run, rendezvous, process, rendezvous_rank))

    def _arrive(self, run: Run, rendezvous: Rendezvous, process: Process, rendezvous_rank: int) -> None:
        """After the last arrival, all workers switch at the next step boundary."""
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
        """After the first step, joining workers report their start, staying workers their new rank."""
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

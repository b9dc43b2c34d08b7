"""How virtual workers take in newcomers, or part from others, and go over to another run. Part of `timing_model`."""

from collections.abc import Callable, Iterable

from elasticflow.services.executor.decisions.local_events_and_actions import WorkerId, WorkerReported
from elasticflow.shared.messages.resize_timeline import ResizeTimeline
from elasticflow.shared.messages.worker_protocol.from_worker import Started, Switched
from elasticflow.simulator.engine.virtual_time_loop import VirtualTimeLoop
from elasticflow.simulator.pipeline.virtual_workers import Meeting, Process, Run

STATE_BYTES = 1 << 20


class RendezvousModel:
    """begin(run, iteration): it takes steps from here on; leave(process): it is no longer needed."""

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

    def of(self, run: Run, size: int) -> Meeting:
        """The meeting of all who go over to this run."""
        if run.meeting is None:
            run.meeting = Meeting(size=size, began_s=self._loop.now_s)
        assert run.meeting.size == size, f"{run.key}: a meeting of {run.meeting.size}, or of {size}"
        return run.meeting

    def join(self, run: Run, meeting: Meeting, process: Process, rendezvous_rank: int) -> None:
        """It knows where to go; a newcomer has things to prepare first."""
        prepare_s = self._prepare_s(run.world_size) if process.run is run else 0.0
        self._loop.after(prepare_s, lambda: self._arrive(run, meeting, process, rendezvous_rank))

    def _arrive(self, run: Run, meeting: Meeting, process: Process, rendezvous_rank: int) -> None:
        """The last one makes all switch at the next boundary."""
        if not self._lives(process) or rendezvous_rank in meeting.present or run.broken:
            return
        meeting.present[rendezvous_rank] = process
        if len(meeting.present) == meeting.size:
            boundary_s = max(incumbent.run.step_s for incumbent in meeting.incumbents.values())
            self._loop.after(boundary_s + self._switch_s, lambda: self._switch(run, meeting))

    def _switch(self, run: Run, meeting: Meeting) -> None:
        """Unless somebody is gone, or all are to stop: then those that train go on. Who survived a crash has waited."""
        incumbents, now_s = tuple(meeting.incumbents.values()), self._loop.now_s
        stays = any(each.run.stopping or each.stopping or not self._lives(each) for each in incumbents)
        if run.broken or stays:
            return
        iteration = max(each.run.iteration(now_s) for each in incumbents)
        for each in incumbents:  # nobody trains there any more
            each.run.breaks(now_s)
            each.run.processes.clear()
            each.interrupted = False
        for rendezvous_rank, process in sorted(meeting.present.items()):
            process.run, process.rank = run, rendezvous_rank
            if rendezvous_rank < run.world_size:
                run.processes[rendezvous_rank] = process
            else:
                self._leave(process)
        self._begin(run, iteration)
        first_step_s = run.step_s
        resize = ResizeTimeline(
            prepare_s=self._loop.now_s - meeting.began_s,
            stop_s=self._switch_s,
            first_step_s=first_step_s,
            bytes_moved=STATE_BYTES,
        )
        self._loop.after(first_step_s, lambda: self._tell(run, resize))

    def _tell(self, run: Run, resize: ResizeTimeline) -> None:
        """The first step is done: newcomers say that they started, incumbents who they are now."""
        if run.broken:
            return
        for rank, process in sorted(run.processes.items()):
            member = WorkerId(*run.key, rank)
            if process.id == member:
                process.say(
                    WorkerReported(
                        worker=member, message=Started(iteration=run.from_iteration, resize=resize)
                    )
                )
                continue
            switched = Switched(
                generation=member.generation, rank=rank, iteration=run.from_iteration, resize=resize
            )
            process.say(WorkerReported(worker=process.id, message=switched))
            process.id = member


def joined_by(run: Run, runs: Iterable[Run]) -> list[Run]:
    """Where its workers were going."""
    return [
        other
        for other in runs
        if other.meeting is not None
        and other.started_at_s is None
        and any(process.run is run for process in other.meeting.incumbents.values())
    ]

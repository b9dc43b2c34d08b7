"""How virtual workers take in newcomers, or part from others, and go over to another run. Part of `physics`."""

from collections.abc import Callable, Iterable

from services.executor.notes import Said, WorkerId
from shared.messages.from_worker import Started, Switched
from shared.messages.resize_timeline import ResizeTimeline
from simulator.engine import Engine
from simulator.workers import Meeting, Process, Run

STATE_BYTES = 1 << 20


class Meetings:
    """begin(run, iteration): it takes steps from here on; leave(process): it is no longer needed."""

    def __init__(
        self,
        engine: Engine,
        *,
        prepare_s: float,
        switch_s: float,
        begin: Callable[[Run, int], None],
        leave: Callable[[Process], None],
        lives: Callable[[Process], bool],
    ) -> None:
        self._engine, self._prepare_s, self._switch_s = engine, prepare_s, switch_s
        self._begin, self._leave, self._lives = begin, leave, lives

    def of(self, run: Run, size: int) -> Meeting:
        """The meeting of all who go over to this run."""
        if run.meeting is None:
            run.meeting = Meeting(size=size, began_s=self._engine.now_s)
        assert run.meeting.size == size, f"{run.key}: a meeting of {run.meeting.size}, or of {size}"
        return run.meeting

    def join(self, run: Run, meeting: Meeting, process: Process, place: int) -> None:
        """It knows where to go; a newcomer has things to prepare first."""
        prepare_s = self._prepare_s if process.run is run else 0.0
        self._engine.after(prepare_s, lambda: self._arrive(run, meeting, process, place))

    def _arrive(self, run: Run, meeting: Meeting, process: Process, place: int) -> None:
        """The last one makes all switch at the next boundary."""
        if not self._lives(process) or place in meeting.present or run.broken:
            return
        meeting.present[place] = process
        if len(meeting.present) == meeting.size:
            boundary_s = max(1 / incumbent.run.iterations_per_s for incumbent in meeting.incumbents.values())
            self._engine.after(boundary_s + self._switch_s, lambda: self._switch(run, meeting))

    def _switch(self, run: Run, meeting: Meeting) -> None:
        """Unless somebody is gone, or all are to stop: then those that train go on. Who survived a crash has waited."""
        incumbents, now_s = tuple(meeting.incumbents.values()), self._engine.now_s
        stays = any(each.run.stopping or each.stopping or not self._lives(each) for each in incumbents)
        if run.broken or stays:
            return
        iteration = max(each.run.iteration(now_s) for each in incumbents)
        for each in incumbents:  # nobody trains there any more
            each.run.breaks(now_s)
            each.run.processes.clear()
            each.interrupted = False
        for place, process in sorted(meeting.present.items()):
            process.run, process.rank = run, place
            if place < run.world_size:
                run.processes[place] = process
            else:
                self._leave(process)
        self._begin(run, iteration)
        first_step_s = 1 / run.iterations_per_s
        resize = ResizeTimeline(
            prepare_s=self._engine.now_s - meeting.began_s,
            stop_s=self._switch_s,
            first_step_s=first_step_s,
            bytes_moved=STATE_BYTES,
        )
        self._engine.after(first_step_s, lambda: self._tell(run, resize))

    def _tell(self, run: Run, resize: ResizeTimeline) -> None:
        """The first step is done: newcomers say that they started, incumbents who they are now."""
        if run.broken:
            return
        for rank, process in sorted(run.processes.items()):
            member = WorkerId(*run.key, rank)
            if process.id == member:
                process.say(Said(worker=member, message=Started(iteration=run.from_iteration, resize=resize)))
                continue
            switched = Switched(
                generation=member.generation, rank=rank, iteration=run.from_iteration, resize=resize
            )
            process.say(Said(worker=process.id, message=switched))
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

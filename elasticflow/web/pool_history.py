"""A ledger as the page draws it: the state, and for each job its GPUs and reports over time. Pure."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from elasticflow.history.job_history import EventsInWords, HistoryEntry, append_entry
from elasticflow.history.names_concerned import names_changed
from elasticflow.history.usage_report import UsageFold
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import Event, JobProgressed, PlanDecided
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.state.expected_finish import margin_s
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState
from elasticflow.web.checkpoints import Checkpoints
from elasticflow.web.reports import Report, Reports
from elasticflow.web.unread_messages import UnreadMessages

MAX_FEED = 100_000
_ONLY_OF_A_JOB = (events.WorkersStopped.__name__, events.CheckpointRequested.__name__)  # consequences, not decisions
_NODE_EVENTS = (
    *(events.NodeJoined, events.NodeLost, events.WorkerLagged, events.PlacementDecided),
    *(events.LoadOpened, events.LoadFinished, events.LoadCancelled),  # their tasks may use idle GPUs
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From at_s on, the job holds num_gpus GPUs."""

    sequence: int
    at_s: float
    num_gpus: int


@dataclass(slots=True, kw_only=True)
class JobTrack:
    """What is kept of a job or padding load beside the state."""

    changed_sequence: int = 0
    steps: list[Step] = field(default_factory=list[Step])
    reports: Reports = field(default_factory=Reports)
    history: list[HistoryEntry] = field(default_factory=list[HistoryEntry])


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """One sentence; name: of the job or load, "" for a node or the whole pool."""

    name: str
    entry: HistoryEntry


class PoolHistory:
    """Folds one ledger, message by message."""

    def __init__(self) -> None:
        self._words = EventsInWords()
        self.tracks: dict[str, JobTrack] = {}
        self.feed: list[FeedEntry] = []
        self.first_at_s = 0.0
        self.last_at_s = 0.0
        self.nodes_changed_sequence = 0
        self.unread = UnreadMessages()
        self.usage = UsageFold(since_s=0.0, until_s=math.inf)
        self.checkpoints = Checkpoints()
        self._sequences, self._times_s = array("q"), array("d")  # of the messages

    @property
    def state(self) -> PoolState:
        return self._words.state

    def fold(self, sequence: int, at_s: float, message: LedgerMessage) -> None:
        before = self.state
        said = self._words.fold(sequence, at_s, message)
        self.first_at_s = self.first_at_s or at_s
        self.last_at_s = max(self.last_at_s, at_s)
        self.unread.note(sequence, message, self.state)
        if not isinstance(message, Unreadable):
            self._follow(sequence, at_s, message, before)
        for name, entry, _ in said:
            if name:
                append_entry(self._track(name, sequence).history, entry)
            if not entry.is_report and entry.type not in _ONLY_OF_A_JOB:
                self.feed.append(FeedEntry(name=name, entry=entry))
        if len(self.feed) > MAX_FEED:
            del self.feed[: MAX_FEED // 2]
        self._sequences.append(sequence)
        self._times_s.append(self.last_at_s)
        self.checkpoints.offer(self.state)
        if self.state.num_forgotten > before.num_forgotten:
            self._forget()

    def feed_until(self, sequence: int, *, after: int = 0, count: int) -> list[FeedEntry]:
        """The newest sentences on messages after one and up to another, oldest first."""
        end = bisect_right(self.feed, sequence, key=lambda entry: entry.entry.sequence)
        start = bisect_right(self.feed, after, key=lambda entry: entry.entry.sequence)
        return self.feed[max(start, end - count) : end]

    def sequence_at(self, at_s: float) -> int:
        """Of the last message that was stored up to this instant; 0 before the first."""
        index = bisect_right(self._times_s, at_s)
        return self._sequences[index - 1] if index else 0

    def stored_at_s(self, sequence: int) -> float:
        """When this message was stored; 0.0 before the first."""
        index = bisect_right(self._sequences, sequence)
        return self._times_s[index - 1] if index else 0.0

    def changed_after(self, sequence: int) -> Iterator[str]:
        """Jobs and loads that a later message concerns."""
        return (name for name, track in self.tracks.items() if track.changed_sequence > sequence)

    def _follow(self, sequence: int, at_s: float, message: Event | PlanDecided, before: PoolState) -> None:
        parts = message.events if isinstance(message, PlanDecided) else (message,)
        names = tuple(names_changed(message, before, self.state))
        self.usage.follow(names, self.state, at_s)
        for name in names:
            track = self._track(name, sequence)
            if job := self.state.job(name):
                _add_step(track, job, sequence, at_s)
                if _held(before.job(name)) != _held(job):
                    self.nodes_changed_sequence = sequence
        for event in parts:
            if isinstance(event, JobProgressed) and (job := self.state.job(event.job_id)):
                _add_report(self._track(event.job_id, sequence), job, event, sequence)
        if any(isinstance(event, _NODE_EVENTS) for event in parts) or self.state.nodes is not before.nodes:
            self.nodes_changed_sequence = sequence

    def _track(self, name: str, sequence: int) -> JobTrack:
        track = self.tracks.setdefault(name, JobTrack())
        track.changed_sequence = sequence
        return track

    def _forget(self) -> None:
        """The state keeps only the newest ended jobs, and so does the page."""
        kept = {name for name in self.tracks if self.state.job(name) or name in self.state.loads}
        self.tracks = {name: track for name, track in self.tracks.items() if name in kept}


def _held(job: Job | None) -> tuple[GpuId, ...]:
    """The GPUs on which a node shows the job."""
    return job.gpus if job is not None and job.live else ()


def _add_step(track: JobTrack, job: Job, sequence: int, at_s: float) -> None:
    num_gpus = len(job.gpus) if job.live else 0
    if num_gpus != (track.steps[-1].num_gpus if track.steps else 0):
        track.steps.append(Step(sequence=sequence, at_s=at_s, num_gpus=num_gpus))


def _add_report(track: JobTrack, job: Job, event: JobProgressed, sequence: int) -> None:
    track.reports.append(
        Report(
            sequence=sequence,
            at_s=event.at_s,
            iteration=event.iteration,
            num_gpus=len(job.gpus),
            iterations_per_s=event.iterations_per_s,
            margin_s=margin_s(job, event.at_s),
            metrics=event.metrics,
        )
    )

"""A ledger as the page draws it: the state, and for each job its GPUs and reports over time. Pure."""

import math
import pickle
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from math import isnan, nan
from typing import TypeVar

from elasticflow.history.event_text import names_changed
from elasticflow.history.job_history import EventsInWords, HistoryEntry, append_entry
from elasticflow.history.usage_report import UsageFold
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.codec import READER_VERSION
from elasticflow.shared.messages.events import Event, JobProgressed, PlanDecided
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.finish_time import margin_s
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState

# --- States of a ledger's past from which later ones are folded, in little memory ----------------------

CHECKPOINT_EVERY = 128  # messages between two states that are kept at first
MAX_CHECKPOINTS = 64  # beyond, every second one is dropped: each may hold another version of every live job
_NAMES = tuple(field.name for field in fields(Job))
_MOST_BYTES = 250  # of a packed job; beyond, the job becomes the version that later ones differ from

PackedJob = tuple[Job, bytes]  # an earlier version that many share, and the fields that differ from it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpoint:
    """state: without the live jobs."""

    state: PoolState
    live_jobs: tuple[PackedJob, ...]


class KeptStates:
    """The checkpoints of one ledger, the oldest first; the first is its beginning."""

    def __init__(self) -> None:
        self._every = CHECKPOINT_EVERY
        self._checkpoints = [_Checkpoint(state=PoolState(), live_jobs=())]
        self._newest: dict[str, tuple[Job, PackedJob]] = {}  # of the last checkpoint: the next one shares most of it

    def offer(self, state: PoolState) -> None:
        """Keep the state, if its turn has come."""
        if state.sequence % self._every == 0:
            self._newest = {name: self._packed(job) for name, job in state.live_jobs.items()}
            live_jobs = tuple(packed for _, packed in self._newest.values())
            self._checkpoints.append(
                _Checkpoint(state=fast_replace(state, live_jobs=Map[str, Job]()), live_jobs=live_jobs)
            )
            if len(self._checkpoints) > MAX_CHECKPOINTS:
                self._every *= 2
                del self._checkpoints[1::2]

    def last_sequence(self, sequence: int) -> int:
        """The sequence of the last checkpoint up to this one."""
        return self._before(sequence).state.sequence

    def last_state(self, sequence: int) -> PoolState:
        """That of the last checkpoint up to this sequence."""
        kept = self._before(sequence)
        jobs = map(_unpacked, kept.live_jobs)
        return fast_replace(kept.state, live_jobs=Map[str, Job]((job.job_id, job) for job in jobs))

    def _before(self, sequence: int) -> _Checkpoint:
        index = bisect_right(self._checkpoints, sequence, key=lambda checkpoint: checkpoint.state.sequence)
        return self._checkpoints[max(0, index - 1)]

    def _packed(self, job: Job) -> tuple[Job, PackedJob]:
        known = self._newest.get(job.job_id)
        if known is None:
            return job, (job, b"")
        before, (base, _) = known
        if before is job:
            return known
        names = enumerate(_NAMES)
        changed = {index: value for index, name in names if (value := getattr(job, name)) is not getattr(base, name)}
        packed = pickle.dumps(changed)
        return job, ((base, packed) if len(packed) <= _MOST_BYTES else (job, b""))


def _unpacked(packed: PackedJob) -> Job:
    base, changed = packed
    if not changed:
        return base
    return fast_replace(base, **{_NAMES[index]: value for index, value in pickle.loads(changed).items()})


# --- reports -------------------------------------------------------------------------------------------
# The reports of one job over time, as numbers in arrays: a tenth of the memory of objects. Pure.

MAX_REPORTS = 2_000  # of one job; beyond, every second one is dropped
_NUMBERS = 6  # of each report, one after another


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The progress of a job at one time. margin_s: deadline less expected finish, as it was then."""

    sequence: int
    at_s: float
    iteration: int
    num_gpus: int
    iterations_per_s: float | None
    margin_s: float | None
    metrics: Mapping[str, float]


class Reports:
    """The reports, in the order of their messages. No number of a message is NaN, so that NaN stands for None."""

    def __init__(self) -> None:
        self._numbers = array("d")
        self._metrics: dict[str, array[float]] = {}  # by name, one number for each report

    def __len__(self) -> int:
        return len(self._numbers) // _NUMBERS

    def __iter__(self) -> Iterator[Report]:
        for index in range(len(self)):
            first = index * _NUMBERS
            sequence, at_s, iteration, num_gpus, iterations_per_s, margin_s = self._numbers[first : first + _NUMBERS]
            yield Report(
                sequence=int(sequence),
                at_s=at_s,
                iteration=int(iteration),
                num_gpus=int(num_gpus),
                iterations_per_s=None if isnan(iterations_per_s) else iterations_per_s,
                margin_s=None if isnan(margin_s) else margin_s,
                metrics={name: value for name, each in self._metrics.items() if not isnan(value := each[index])},
            )

    def append(self, report: Report) -> None:
        if len(self) >= MAX_REPORTS:
            kept = list(self)[1::2]
            self._numbers, self._metrics = array("d"), {}
            for each in kept:
                self.append(each)
        count = len(self)
        optional = (nan if number is None else number for number in (report.iterations_per_s, report.margin_s))
        self._numbers.extend((report.sequence, report.at_s, report.iteration, report.num_gpus, *optional))
        for name in report.metrics:
            if name not in self._metrics:
                self._metrics[name] = array("d", [nan] * count)
        for name, numbers in self._metrics.items():
            numbers.append(report.metrics.get(name, nan))


# --- unread messages -----------------------------------------------------------------------------------
# What a ledger holds that this eflow cannot read, so that the page does not look complete without it. Pure.

_MAX_PROBLEM_CHARS = 200
_OF_NEWER = ("is unknown here", "is newer than")  # in the problems that `codec` names


@dataclass(slots=True, kw_only=True)
class UnreadMessages:
    """count: of them; wanted_version: of the reader, if the pool asks for a newer one than this, else 0."""

    first_sequence: int = 0
    count: int = 0
    problem: str = ""  # of the first
    wanted_version: int = 0

    def note(self, sequence: int, message: LedgerMessage, state: PoolState) -> None:
        """state: after the message."""
        if isinstance(message, Unreadable):
            self.count += 1
            self.problem = self.problem or "; ".join(message.problems).partition("; known are")[0][:_MAX_PROBLEM_CHARS]
        elif state.config.minimum_reader_version > READER_VERSION:
            self.wanted_version = max(self.wanted_version, state.config.minimum_reader_version)
        else:
            return
        self.first_sequence = self.first_sequence or sequence

    def in_words(self) -> str:
        """The message from which the page is incomplete, why, and what helps; "" if all was read."""
        if not self.first_sequence:
            return ""
        words = [
            f"Incomplete from message {self.first_sequence} on: this eflow reads messages of version {READER_VERSION}"
        ]
        if self.wanted_version:
            words.append(f"the pool asks for version {self.wanted_version}")
        if self.count:
            noun = "message" if self.count == 1 else "messages"
            words.append(f"{self.count} {noun} cannot be read, the first because of its {self.problem}")
        advice = "Use a newer eflow to see all of it."
        if not self.wanted_version and not any(word in self.problem for word in _OF_NEWER):
            advice = "The ledger is damaged there, or a newer eflow wrote it: try that."
        return f"{'; '.join(words)}. {advice}"


# --- pool history --------------------------------------------------------------------------------------

MAX_FEED = 100_000
_ONLY_OF_A_JOB = (events.WorkersStopped.__name__, events.CheckpointRequested.__name__)  # consequences, not decisions
_NODE_EVENTS = (
    *(events.NodeJoined, events.NodeLost, events.WorkerLagged, events.PlacementDecided),
    *(events.LoadOpened, events.LoadFinished, events.LoadCancelled),  # their tasks may use idle GPUs
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The job holds num_gpus GPUs from at_s on."""

    sequence: int
    at_s: float
    num_gpus: int


Entry = TypeVar("Entry", Step, Report, HistoryEntry)


@dataclass(slots=True, kw_only=True)
class JobTrack:
    """What is kept of a job or padding load beside the state."""

    changed_sequence: int = 0
    begins: list[int] = field(default_factory=list[int])  # sequences from which on another job has the name
    steps: list[Step] = field(default_factory=list[Step])
    reports: Reports = field(default_factory=Reports)
    history: list[HistoryEntry] = field(default_factory=list[HistoryEntry])

    def known_at(self, sequence: int, entries: Iterable[Entry]) -> list[Entry]:
        """Those of the job that has the name at this message, and not after that. entries: of the track."""
        first = max((begin for begin in self.begins if begin <= sequence), default=0)
        return [entry for entry in entries if first <= entry.sequence <= sequence]


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
        self.checkpoints = KeptStates()
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
                track = self._track(name, sequence)
                track.begins += [sequence] * entry.begins_anew
                append_entry(track.history, entry)
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
        """The sequence of the last message that was stored up to this instant; 0 before the first."""
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

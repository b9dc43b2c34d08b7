"""The history of a job or load as the monitor stores it for its tenant: sentences, and the newest replies. Pure.

The monitor extends it, so it never needs the whole ledger for it; the tenant's client only reads it (docs/adr/0071).
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, cast, get_args

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from pydantic import TypeAdapter, ValidationError

from elasticflow.history.job_history import LENT_BY, HistoryEntry, append_entry, first_of_newest
from elasticflow.shared.messages import codec, events
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.event_summary import counted
from elasticflow.shared.messages.events import Event
from elasticflow.times import duration_in_words

HISTORY_VERSION = 1
MAX_ENTRIES = 200  # of one job
MAX_FIRST_ENTRIES = 20  # of these, the oldest; the others are the newest
MAX_EVENTS = 16  # the newest replies
MAX_BYTES = 512 * 1024  # before the compression
_MAX_READ_BYTES = 16 << 20

# What a client waits for, or looks up later.
_KEPT = (
    *get_args(events.AdmissionEvent),
    events.CheckpointWritten,
    events.CheckpointFailed,
    events.JobFailed,
    events.ArtifactsStored,
)


class KeptEvent(NamedTuple):
    """sequence: of the ledger. queue_sequence: in the work queue, of the command that the event decides on; 0: none."""

    sequence: int
    event: Event
    queue_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistory:
    """sequence: of the ledger, up to which it holds. num_left_out: entries between the oldest and the newest.

    events: of the kinds that clients wait for: sequence and encoded event, in order.
    """

    sequence: int = 0
    entries: tuple[HistoryEntry, ...] = ()
    num_left_out: int = 0
    events: tuple[tuple[int, bytes], ...] = ()

    def extended(
        self, sequence: int, entries: Iterable[HistoryEntry], kept: Iterable[tuple[int, bytes]]
    ) -> "StoredHistory":
        """The history with what is newer than it. Adding the same twice changes nothing.

        sequence: up to which it holds then.
        """
        all_entries = list(self.entries)
        for entry in entries:
            if entry.sequence > self.sequence:
                append_entry(all_entries, entry)
        all_events = (*self.events, *(each for each in kept if each[0] > self.sequence))
        longer = replace(
            self, sequence=max(sequence, self.sequence), entries=tuple(all_entries), events=_newest(all_events)
        )
        return longer.bounded(MAX_ENTRIES)

    def followed_by(self, newer: "StoredHistory") -> "StoredHistory":
        """The history with what is newer in the other one."""
        longer = self.extended(newer.sequence, newer.entries, newer.events)
        is_new = bool(newer.entries) and newer.entries[0].sequence > self.sequence
        return replace(longer, num_left_out=longer.num_left_out + newer.num_left_out) if is_new else longer

    def bounded(self, max_entries: int) -> "StoredHistory":
        """The history with at most `max_entries` entries. Those of earlier jobs of the name go first."""
        too_many = len(self.entries) - max_entries
        if too_many <= 0:
            return self
        of_earlier = min(first_of_newest(self.entries), too_many)
        entries, num_left_out = self.entries[of_earlier:], self.num_left_out + too_many
        first, too_many = min(MAX_FIRST_ENTRIES, max_entries // 2), too_many - of_earlier
        kept = (*entries[:first], *entries[first + too_many :]) if too_many else entries
        return replace(self, entries=kept, num_left_out=num_left_out)

    def decoded_events(self) -> list[KeptEvent]:
        """The events that this program can read."""
        found: list[KeptEvent] = []
        for sequence, data in self.events:
            try:
                envelope = codec.decode(data)
                found.append(KeptEvent(sequence, cast(Event, envelope.message), int(envelope.cause_id or 0)))
            except (Undecodable, ValueError):  # of a newer monitor
                continue
        return found

    def encode(self) -> bytes:
        """Encode at most MAX_BYTES before the compression: entries in the middle, then older events, are left out."""
        history = self
        while len(packed := _packed(history)) > MAX_BYTES:
            if len(history.entries) > 1:
                history = history.bounded(len(history.entries) // 2)
            else:
                history = replace(history, events=history.events[1:])
        return zlib.compress(packed)

    @staticmethod
    def decode(data: bytes) -> "StoredHistory":
        """Raises Undecodable."""
        try:
            plain = msgpack.unpackb(zlib.decompressobj().decompress(data, _MAX_READ_BYTES))  # pyright: ignore
            version = cast(Any, plain).pop("version", None)
            if version != HISTORY_VERSION:
                reads = f"this program reads version {HISTORY_VERSION}: upgrade the older"
                raise Undecodable(f"a history of version {version}, and {reads}")
            return _adapter().validate_python(plain)
        except (ValueError, TypeError, AttributeError, zlib.error, msgpack.UnpackException, ValidationError) as error:
            if isinstance(error, Undecodable):
                raise
            raise Undecodable(f"damaged history: {type(error).__name__}") from error


def is_kept(event: Event) -> bool:
    """Whether clients wait for such an event, or look it up."""
    return isinstance(event, _KEPT) or (isinstance(event, events.ThroughputMeasured) and event.source == "profile")


def kept_bytes(event: Event, queue_sequence: int = 0) -> bytes:
    """queue_sequence: as in `KeptEvent`."""
    return codec.encode(event, id="", cause_id=str(queue_sequence or ""), recorded_at_s=0.0)


def _newest(kept: tuple[tuple[int, bytes], ...]) -> tuple[tuple[int, bytes], ...]:
    """The last few, and always the last that names stored files."""
    newest = kept[-MAX_EVENTS:]
    files = [each for each in kept[:-MAX_EVENTS] if events.ArtifactsStored.__name__.encode() in each[1]]
    return (*files[-1:], *newest)


def _packed(history: StoredHistory) -> bytes:
    plain = _adapter().dump_python(history) | {"version": HISTORY_VERSION}
    return cast(bytes, msgpack.packb(plain))  # pyright: ignore[reportUnknownMemberType]


@cache
def _adapter() -> TypeAdapter[StoredHistory]:
    return TypeAdapter(StoredHistory)


# --- folded history ------------------------------------------------------------------------------------
# A history as a person reads it first: the generations of a profiling run are one line. Pure.

_ENOUGH = 4  # entries: fewer are shown as they are
_STEPS = {
    kind.__name__
    for kind in (
        events.AllocationDecided,
        events.PlacementDecided,
        events.GenerationStarted,
        events.WorkersStopped,
        events.ThroughputMeasured,
    )
}
_DECISIONS = {
    kind.__name__
    for kind in (
        *(events.JobAdmitted, events.JobRejected, events.JobProfiled),
        *(events.JobCancelled, events.JobFailed, events.JobFinished),
    )
}


def folded(history: Iterable[HistoryEntry]) -> Iterator[HistoryEntry]:
    """What is neither a step of a profiling run nor another report is kept: crashes, warnings, decisions.

    Only a decision ends the run. Its last workers may end after the decision: no other generation starts before.
    """
    is_profiling, is_ending, run = False, False, list[HistoryEntry]()
    for entry in history:
        if is_profiling and entry.type not in _DECISIONS:
            run.append(entry)
            continue
        if is_profiling:
            yield from _in_a_line(run, has_ended=True)
            is_ending, run = len(_steps(run)) >= _ENOUGH, []
        elif is_ending and entry.type == events.WorkersStopped.__name__:
            continue
        is_profiling = entry.type == events.ProfileRequested.__name__
        is_ending = is_ending and not is_profiling and entry.type != events.GenerationStarted.__name__
        yield entry
    yield from _in_a_line(run, has_ended=False)


def _steps(run: list[HistoryEntry]) -> list[HistoryEntry]:
    return [entry for entry in run if _is_step(entry)]


def _is_step(entry: HistoryEntry) -> bool:
    """Whether the line on the run replaces it: whose GPUs were lent is said for itself."""
    return entry.type in _STEPS and LENT_BY not in entry.text


def _in_a_line(run: list[HistoryEntry], *, has_ended: bool) -> Iterator[HistoryEntry]:
    """The run with one line in place of its last step, and without the other steps."""
    steps = _steps(run)
    if len(steps) < _ENOUGH:
        yield from run
        return
    num_runs = sum(step.type == events.PlacementDecided.__name__ for step in steps)
    took = duration_in_words(steps[-1].at_s - steps[0].at_s)
    spent = f"{took} and {counted(num_runs, 'generation')}"
    said = f"its profiling run took {spent}" if has_ended else f"its profiling run goes on, after {spent}"
    for entry in run:
        if entry is steps[-1]:
            yield replace(entry, text=f"{said} (--all shows each step)", lines=())
        elif not _is_step(entry):
            yield entry

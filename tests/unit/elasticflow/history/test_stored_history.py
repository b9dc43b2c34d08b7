"""A stored history grows by what is new, stays small, and is read by programs of other versions."""

import zlib
from dataclasses import replace
from typing import Any, cast

import msgpack
import pytest

from elasticflow.history import stored_history
from elasticflow.history.job_history import HistoryEntry
from elasticflow.history.stored_history import (
    MAX_BYTES,
    MAX_ENTRIES,
    MAX_EVENTS,
    MAX_FIRST_ENTRIES,
    KeptEvent,
    StoredHistory,
    is_kept,
    kept_bytes,
)
from elasticflow.shared.messages import events
from elasticflow.shared.messages.codec import Undecodable
from testbed.histories import NOW_S


def packed(value: object) -> bytes:
    return cast(bytes, msgpack.packb(value))


def entry(sequence: int, kind: str = "JobAmended", **changes: Any) -> HistoryEntry:
    return HistoryEntry(sequence=sequence, at_s=NOW_S, type=kind, text=f"text {sequence}", **changes)


def cancelled(reason: str) -> events.JobCancelled:
    return events.JobCancelled(job_id="j1", reason=reason, at_s=NOW_S)


def kept(first: int, last: int) -> list[tuple[int, bytes]]:
    return [(sequence, kept_bytes(cancelled(str(sequence)))) for sequence in range(first, last + 1)]


def test_what_is_added_twice_is_there_once() -> None:
    once = StoredHistory().extended(3, [entry(1), entry(3)], kept(1, 2))
    assert once.extended(3, [entry(1), entry(3)], kept(1, 2)) == once
    assert once.extended(5, [entry(3), entry(4)], kept(2, 3)).entries == (entry(1), entry(3), entry(4))
    assert once.extended(2, [], ()).sequence == 3


def test_of_several_reports_in_a_row_the_last_is_kept() -> None:
    history = StoredHistory().extended(1, [entry(1, "JobProgressed")], ())
    assert history.extended(2, [entry(2, "JobProgressed")], ()).entries == (entry(2, "JobProgressed"),)


def test_a_long_history_keeps_its_beginning_and_its_end() -> None:
    history = StoredHistory()
    for sequence in range(1, 2 * MAX_ENTRIES + 1):
        history = history.extended(sequence, [entry(sequence)], kept(sequence, sequence))
    sequences = [each.sequence for each in history.entries]
    assert sequences[:MAX_FIRST_ENTRIES] == list(range(1, MAX_FIRST_ENTRIES + 1))
    assert sequences[MAX_FIRST_ENTRIES:] == list(range(MAX_ENTRIES + MAX_FIRST_ENTRIES + 1, 2 * MAX_ENTRIES + 1))
    assert history.num_left_out == MAX_ENTRIES
    assert [sequence for sequence, _ in history.events] == list(range(2 * MAX_ENTRIES - MAX_EVENTS + 1, 401))


def test_the_event_that_names_stored_files_is_kept() -> None:
    stored = events.ArtifactsStored(job_id="j1", due=1, node_id="n1", at_s=NOW_S)
    history = StoredHistory().extended(1, [], [(1, kept_bytes(stored))]).extended(99, [], kept(2, 99))
    read = StoredHistory.decode(history.encode())
    assert read.decoded_events()[0] == KeptEvent(1, stored, 0)
    assert read.decoded_events()[-1] == KeptEvent(99, cancelled("99"), 0)


def test_an_event_is_kept_with_the_command_that_it_decides_on() -> None:
    history = StoredHistory().extended(5, [], [(5, kept_bytes(cancelled("5"), 12))])
    assert StoredHistory.decode(history.encode()).decoded_events() == [KeptEvent(5, cancelled("5"), 12)]


def test_large_lines_make_it_shorter() -> None:
    lines = tuple("x" * 1_000 + str(number) for number in range(20))
    history = StoredHistory().extended(99, [entry(sequence, lines=lines) for sequence in range(1, 100)], kept(1, 2))
    read = StoredHistory.decode(history.encode())
    assert len(zlib.decompress(history.encode())) <= MAX_BYTES
    assert read.entries[0].sequence == 1
    assert read.entries[-1].sequence == 99
    assert read.num_left_out == 99 - len(read.entries)
    assert len(read.events) == 2


def test_progress_is_no_reply() -> None:
    progressed = events.JobProgressed(job_id="j1", generation=1, iteration=1, iterations_per_s=None, at_s=NOW_S)
    assert not is_kept(progressed)
    assert is_kept(cancelled(""))


def test_it_comes_back_as_it_was() -> None:
    history = StoredHistory().extended(3, [entry(1, lines=("a", "b"))], kept(2, 2))
    assert StoredHistory.decode(history.encode()) == history


def test_fields_and_events_of_a_newer_monitor_are_ignored() -> None:
    history = StoredHistory(entries=(entry(1),), events=((2, b"of a newer version"),))
    plain = msgpack.unpackb(zlib.decompress(history.encode()))
    newer = StoredHistory.decode(zlib.compress(packed(plain | {"added": 1})))
    assert newer == history
    assert newer.decoded_events() == []


@pytest.mark.parametrize("data", [b"", b"x", zlib.compress(b"\x01"), zlib.compress(packed({"version": 2}))])
def test_other_bytes_are_no_history(data: bytes) -> None:
    with pytest.raises(Undecodable):
        StoredHistory.decode(data)


def test_a_history_of_another_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    data = replace(StoredHistory(), sequence=3).encode()
    monkeypatch.setattr(stored_history, "HISTORY_VERSION", 2)
    with pytest.raises(Undecodable, match="upgrade"):
        StoredHistory.decode(data)


def test_a_long_history_loses_that_of_earlier_jobs_of_the_name_first() -> None:
    history = StoredHistory()
    for sequence in range(1, 2 * MAX_ENTRIES + 1):
        history = history.extended(sequence, [entry(sequence, begins_anew=sequence == MAX_ENTRIES)], ())
    sequences = [each.sequence for each in history.entries]
    beginning = list(range(MAX_ENTRIES, MAX_ENTRIES + MAX_FIRST_ENTRIES))
    assert sequences[:MAX_FIRST_ENTRIES] == beginning
    assert sequences[-1] == 2 * MAX_ENTRIES
    assert len(sequences) + history.num_left_out == 2 * MAX_ENTRIES
    few = StoredHistory().extended(9, [entry(n, begins_anew=n == 7) for n in range(1, 10)], ()).bounded(6)
    assert [each.sequence for each in few.entries] == [4, 5, 6, 7, 8, 9]

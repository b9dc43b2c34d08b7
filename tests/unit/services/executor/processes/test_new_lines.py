"""What is new in a log file that users' code writes, and may replace."""

import os
from pathlib import Path

import pytest

from elasticflow.services.executor.processes.job_logs import MAX_BACKLOG_BYTES, MAX_LINE_BYTES, new_lines
from elasticflow.shared.messages.log_chunk import LogLine
from tests.support.holes import skip_without_holes

SPARSE_BYTES = 15 << 40


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "g1-r0.log"


def read(file: Path, offset: int = 0, *, to_the_end: bool = False, max_lines: int = 2_000) -> list[LogLine]:
    return new_lines(file, offset, max_bytes=256 * 1024, max_lines=max_lines, to_the_end=to_the_end)


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


def test_whole_lines_count_and_the_rest_at_the_end(log_file: Path) -> None:
    log_file.write_bytes(b"one\n\nthr")
    lines = read(log_file)
    assert [(line.text, line.up_to) for line in lines] == [("one", 4), ("", 5)]
    assert read(log_file, 5) == []
    assert read(log_file, 5, to_the_end=True) == [LogLine(file="g1-r0", text="thr", up_to=8)]


def test_a_progress_bar_and_other_bytes_than_utf_8(log_file: Path) -> None:
    log_file.write_bytes(b"10%\r90%\r\n\xff\n")
    assert texts(read(log_file)) == ["90%", "\N{REPLACEMENT CHARACTER}"]


def test_a_long_line_is_cut(log_file: Path) -> None:
    log_file.write_bytes(b"x" * (2 * MAX_LINE_BYTES + 1))
    assert [len(text) for text in texts(read(log_file))] == [MAX_LINE_BYTES] * 2
    assert [len(text) for text in texts(read(log_file, to_the_end=True))] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 1]


def test_the_number_of_lines_is_bounded_and_the_others_follow(log_file: Path) -> None:
    log_file.write_bytes(b"\n" * 10)
    first = read(log_file, max_lines=4)
    assert len(first) == 4
    assert len(read(log_file, first[-1].up_to)) == 6


@pytest.mark.parametrize("offset", [0, 8, 80_000])
def test_of_a_flood_the_newest_lines_count_and_the_others_are_counted(log_file: Path, offset: int) -> None:
    log_file.write_text("".join(f"{number:07d}\n" for number in range(1_000_000)))
    note, first, *others = read(log_file, offset, max_lines=100_000)
    num_left_out = int(note.text.split()[1].replace(",", ""))
    assert num_left_out > 900_000
    assert int(first.text) == offset // 8 + num_left_out
    assert [int(line.text) for line in (first, *others)] == list(range(int(first.text), 1_000_000))
    assert note.up_to == first.up_to - 8


def test_a_flood_without_lines_ends(log_file: Path) -> None:
    log_file.write_bytes(b"x" * (2 * MAX_BACKLOG_BYTES))
    (note,) = read(log_file)
    assert note.up_to == 2 * MAX_BACKLOG_BYTES


@pytest.mark.parametrize("end", [b"newest\n", b""])
def test_what_is_read_of_a_file_is_bounded_and_no_hole_is(
    end: bytes, log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large it claims to be, and in however many pieces its bytes are."""
    skip_without_holes(log_file.parent)
    piece, num_read = b"\n" * 4_096, [0]
    with log_file.open("wb") as file:
        for number in range(64):
            os.pwrite(file.fileno(), piece, number << 32)
        os.pwrite(file.fileno(), end, SPARSE_BYTES - len(end))
        file.truncate(SPARSE_BYTES)
    pread = os.pread

    def counted(file: int, num_bytes: int, offset: int) -> bytes:
        data = pread(file, num_bytes, offset)
        num_read[0] += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    note, *others = read(log_file)
    assert "more than" in note.text
    assert [line.text.strip("\0") for line in others if line.text.strip("\0")] == ["newest"] * bool(end)
    assert num_read[0] < 2 << 20
    while lines := read(log_file, (others or [note])[-1].up_to, to_the_end=True):
        (*others,) = lines
    assert (others or [note])[-1].up_to == SPARSE_BYTES
    assert num_read[0] < 4 << 20


def test_lines_that_are_passed_over_are_counted_up_to_a_bound(log_file: Path) -> None:
    log_file.write_bytes(b"\n" * (3 * MAX_BACKLOG_BYTES))
    note = new_lines(log_file, 0, max_bytes=1_000, max_lines=10, to_the_end=False, max_counted_bytes=MAX_BACKLOG_BYTES)[
        0
    ]
    assert note.text.startswith(f"eflow: more than {MAX_BACKLOG_BYTES:,} lines left out")
    assert note.up_to == 3 * MAX_BACKLOG_BYTES - 1_000


def test_a_file_that_was_cut_is_read_from_its_beginning(log_file: Path) -> None:
    log_file.write_bytes(b"new\n")
    assert read(log_file, 100) == [LogLine(file="g1-r0", text="new", up_to=4)]


def test_links_and_pipes_are_not_read(log_file: Path) -> None:
    (log_file.parent / "secret").write_text("secret\n")
    log_file.symlink_to(log_file.parent / "secret")
    with pytest.raises(OSError):
        read(log_file)
    log_file.unlink()
    os.mkfifo(log_file)
    with pytest.raises(OSError):
        read(log_file)

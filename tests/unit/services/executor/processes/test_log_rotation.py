"""A log file stays bounded and keeps the newest output; no line is lost or repeated while others write and read it."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasticflow.client.worker_logs import LogReader
from elasticflow.services.executor.processes import job_logs
from elasticflow.services.executor.processes.job_logs import rotate, shorten_oldest
from elasticflow.shared.runtime.process.files import BLOCK_BYTES, NoHoles
from tests.support.holes import skip_without_holes

MAX_BYTES = 4 * BLOCK_BYTES


@pytest.fixture
def with_holes(tmp_path: Path) -> None:
    skip_without_holes(tmp_path)


@pytest.fixture
def without_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: int, up_to: int) -> None:
        raise NoHoles(errno.EOPNOTSUPP, "no holes")

    monkeypatch.setattr(job_logs, "free_beginning", refused)


def disk_bytes(file: Path) -> int:
    return file.stat().st_blocks * 512


@pytest.mark.usefixtures("with_holes")
def test_the_beginning_of_a_large_file_is_freed_and_the_rest_keeps_its_place(tmp_path: Path) -> None:
    log = tmp_path / "g1-r0.log"
    lines = [f"{number:07d}" for number in range(MAX_BYTES)]
    with log.open("a") as output:
        output.write("\n".join(lines))
        output.flush()
        rotate(log, max_bytes=MAX_BYTES)
        output.write("later\n")
    assert log.stat().st_size == 8 * MAX_BYTES + 5
    assert MAX_BYTES <= disk_bytes(log) <= MAX_BYTES + 2 * BLOCK_BYTES
    shown = [line.removeprefix("g1-r0 | ") for line in LogReader(tmp_path, None).new_lines(to_the_end=True)]
    assert shown.pop(0).endswith(" bytes of older lines left out: their node freed them")
    assert shown == [*lines[-len(shown) : -1], f"{lines[-1]}later"]
    assert len(shown) * 8 >= MAX_BYTES
    assert [file.name for file in tmp_path.iterdir()] == ["g1-r0.log"]


@pytest.mark.usefixtures("with_holes")
def test_a_reader_loses_and_repeats_no_line_while_the_file_grows_and_is_rotated(tmp_path: Path) -> None:
    """The one of the bus. Another process writes as fast as it can, and waits for the reader after 10,000 lines."""
    log, num_lines, at_once = tmp_path / "g1-r0.log", 200_000, 10_000
    program = f"""
        import sys
        for number in range({num_lines}):
            print(f"{{number:030d}}", flush=number % 50 == 49)
            if number % {at_once} == {at_once - 1}:
                sys.stdin.readline()
    """
    source = "\n".join(line[8:] for line in program.splitlines())
    with log.open("ab") as output:
        writer = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=output, bufsize=0)
    read, offset, num_bursts = list[int](), 0, 0
    with writer:
        assert writer.stdin is not None
        while len(read) < num_lines and (writer.poll() is None or log.stat().st_size > offset):
            for line in job_logs.new_lines(log, offset, max_bytes=100_000, max_lines=2_000, to_the_end=False):
                read.append(int(line.text))
                offset = line.up_to
            rotate(log, max_bytes=16 * BLOCK_BYTES)
            if len(read) // at_once > num_bursts:
                writer.stdin.write(b"\n")
                num_bursts += 1
    assert read == list(range(num_lines))
    assert disk_bytes(log) <= 17 * BLOCK_BYTES


@pytest.mark.usefixtures("with_holes")
def test_lines_that_are_gone_before_they_were_read_are_left_out_with_a_note(tmp_path: Path) -> None:
    log = tmp_path / "g1-r0.log"
    log.write_text("".join(f"{number:07d}\n" for number in range(MAX_BYTES)))
    rotate(log, max_bytes=MAX_BYTES)
    note, first, *_ = job_logs.new_lines(log, 8, max_bytes=8 * MAX_BYTES, max_lines=9, to_the_end=False)
    assert "more than 1 lines left out" in note.text
    assert int(first.text) * 8 == note.up_to


def test_a_small_or_absent_file_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    rotate(log, max_bytes=20)
    log.write_bytes(b"x" * 20)
    rotate(log, max_bytes=20)
    assert [file.name for file in tmp_path.iterdir()] == ["a.log"]
    assert log.read_bytes() == b"x" * 20


@pytest.mark.usefixtures("with_holes")
def test_of_many_files_the_oldest_ones_lose_their_lines(tmp_path: Path) -> None:
    logs = [tmp_path / f"g{number}-r0.log" for number in range(4)]
    for number, log in enumerate(logs):
        log.write_bytes(b"x" * MAX_BYTES)
        os.utime(log, (number, number))
    shorten_oldest(tmp_path, max_bytes=2 * MAX_BYTES)
    assert [disk_bytes(log) >= MAX_BYTES for log in logs] == [False, False, True, True]


@pytest.mark.usefixtures("without_holes")
def test_without_holes_the_end_of_a_large_file_is_moved(tmp_path: Path) -> None:
    log = tmp_path / "g1-r0.log"
    reader = LogReader(tmp_path, None)
    with log.open("ab") as output:
        output.write(b"old\n" * 100 + b"new\n" * 5)
        output.flush()
        rotate(log, max_bytes=20)
        output.write(b"later\n")
        output.flush()
        assert (tmp_path / "g1-r0.log.1").read_bytes() == b"new\n" * 5
        assert log.read_bytes() == b"later\n"
        assert list(reader.new_lines(to_the_end=False)) == ["g1-r0 | new"] * 5 + ["g1-r0 | later"]
        rotate(log, max_bytes=0)
        output.write(b"more\n")
    assert list(reader.new_lines(to_the_end=False)) == ["g1-r0 | more"]


@pytest.mark.usefixtures("without_holes")
def test_the_bound_holds_where_no_copy_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.log.1").mkdir()
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 30)
    rotate(log, max_bytes=20)
    assert log.stat().st_size == 0


@pytest.mark.usefixtures("without_holes")
@pytest.mark.parametrize("name", ["a.log", "a.log.1", "a.log.1.unfinished"])
def test_a_link_leads_to_no_other_file(name: str, tmp_path: Path) -> None:
    """The tasks can write the folder of the log."""
    victim = tmp_path / "key"
    victim.write_bytes(b"k" * 30)
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "a.log"
    if name != "a.log":
        log.write_bytes(b"x" * 30)
    (folder / name).symlink_to(victim)
    rotate(log, max_bytes=20)
    assert victim.read_bytes() == b"k" * 30
    if name != "a.log":
        assert (log.stat().st_size, (folder / "a.log.1").read_bytes()) == (0, b"x" * 20)
        assert not (folder / "a.log.1").is_symlink()


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    rotate(tmp_path / "a.log", max_bytes=0)
    assert (tmp_path / "a.log").is_fifo()

"""Logs are read as they grow; what a job puts beside them is not."""

import os
from pathlib import Path

import pytest

from elasticflow.client import worker_logs
from elasticflow.client.worker_logs import LogReader


def test_each_call_continues_where_the_last_one_stopped(tmp_path: Path) -> None:
    log = tmp_path / "g1-r0.log"
    log.write_text("one\ntwo\nthr")
    reader = LogReader(tmp_path, None)
    assert list(reader.new_lines(to_the_end=False)) == ["g1-r0 | one", "g1-r0 | two"]
    log.write_text("one\ntwo\nthree")
    assert list(reader.new_lines(to_the_end=False)) == []
    assert list(reader.new_lines(to_the_end=True)) == ["g1-r0 | three"]


def test_a_progress_bar_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "g1-r0.log").write_bytes(b"start\n\r  0%\r 50%\r100%\nend\r\n\n\r10%")
    (tmp_path / "g2-r1.log").touch()
    reader = LogReader(tmp_path, 0)
    assert [line.removeprefix("g1-r0 | ") for line in reader.new_lines(to_the_end=True)] == [
        *("start", "100%", "end", "", "10%")
    ]
    assert reader.ranks == {0}
    assert LogReader(tmp_path, None).ranks == {0, 1}


@pytest.mark.parametrize("to_the_end", [False, True])
def test_a_large_log_is_read_in_parts_and_whole_lines(
    to_the_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_logs, "_PART_BYTES", 16)
    (tmp_path / "g1-r0.log").write_text("a" * 7 + "\n" + "b" * 7 + "\n" + "c" * 40 + "\n" + "d" * 5 + "\nend")
    lines = [line.removeprefix("g1-r0 | ") for line in LogReader(tmp_path, None).new_lines(to_the_end=to_the_end)]
    assert lines[:2] == ["a" * 7, "b" * 7]
    assert "".join(lines[2:]) == "c" * 40 + "d" * 5 + ("end" if to_the_end else "")
    assert all(len(line) <= 16 for line in lines)


def test_links_and_fifos_of_a_job_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "g1-r0.log").write_text("hello\n")
    (folder / "g2-r0.log").symlink_to(tmp_path / "key")
    (folder / "g3-r0.log").symlink_to(tmp_path / "absent")
    os.mkfifo(folder / "g4-r0.log")
    (folder / "g5-r0.log").mkdir()
    assert list(LogReader(folder, None).new_lines(to_the_end=True)) == ["g1-r0 | hello"]

"""A log file stays bounded and keeps the newest output."""

import os
from pathlib import Path

import pytest

from elasticflow.services.executor.processes.log_rotation import rotate


def test_the_end_of_a_large_file_is_kept_and_the_file_is_emptied(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("ab") as output:
        output.write(b"old " * 100 + b"new " * 5)
        output.flush()
        rotate(log, max_bytes=20)
        output.write(b"later")
    assert (tmp_path / "a.log.1").read_bytes() == b"new " * 5
    assert log.read_bytes() == b"later"


def test_a_small_or_absent_file_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    rotate(log, max_bytes=20)
    log.write_bytes(b"x" * 20)
    rotate(log, max_bytes=20)
    assert [file.name for file in tmp_path.iterdir()] == ["a.log"]
    assert log.stat().st_size == 20


def test_the_bound_holds_where_no_copy_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.log.1").mkdir()
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 30)
    rotate(log, max_bytes=20)
    assert log.stat().st_size == 0


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

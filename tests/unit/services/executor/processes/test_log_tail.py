"""The last lines of a log that users' code writes, and may replace."""

import os
from pathlib import Path

import pytest

from elasticflow.services.executor.processes.job_logs import MAX_TAIL_BYTES, last_lines
from elasticflow.shared.messages.limits import MAX_LAST_LINES


def written(tmp_path: Path, data: bytes) -> Path:
    file = tmp_path / "g1-r0.log"
    file.write_bytes(data)
    return file


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo"),
        (b"one\n\n  \nno end", "one\nno end"),
        (b"\x1b[31mred\x1b[0m\x1b]0;title\n", "red0;title"),
        (b"epoch 1 10%\repoch 1 90%\r\ndone\n", "epoch 1 90%\ndone"),
        (b"bell \x07 null \x00 \xff\n", "bell ? null ? \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_lines_are_as_a_terminal_would_show_them_at_last(tmp_path: Path, data: bytes, expected: str) -> None:
    assert last_lines(written(tmp_path, data)) == expected


def test_lines_and_bytes_are_bounded(tmp_path: Path) -> None:
    many = "".join(f"line {number}\n" for number in range(1_000))
    shown = last_lines(written(tmp_path, many.encode())).splitlines()
    assert shown == [f"line {number}" for number in range(1_000 - MAX_LAST_LINES, 1_000)]
    long = last_lines(written(tmp_path, b"x" * 3 * MAX_TAIL_BYTES))
    assert len(long) == MAX_TAIL_BYTES
    cut = last_lines(written(tmp_path, b"x" * MAX_TAIL_BYTES + b"\nwhole\nlast\n"))
    assert cut == "whole\nlast"


def test_a_secret_of_which_only_the_end_is_shown_is_not_shown(tmp_path: Path) -> None:
    secret = "s" * 1_000
    log = written(tmp_path, b"one\n" + secret.encode() + b"x" * (MAX_TAIL_BYTES - 500))
    assert "s" not in last_lines(log, [secret])


def test_links_pipes_and_absent_files_have_no_lines(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    assert [last_lines(tmp_path / name) for name in ("link", "pipe", "absent")] == ["", "", ""]

"""A command prints any text to any terminal."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasticflow.history.tables import bar, table
from elasticflow.shared.runtime.process.standard_streams import adapt, prepare_standard_streams
from elasticflow.shared.runtime.process.terminal import console

_ROOT = Path(__file__).parents[5]
_SHOWN = "josé donn\udce9es.csv ━━──\n"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("latin-1", "josé donn?es.csv ==--\n".encode("latin-1")),
        ("ascii", b"jos? donn?es.csv ==--\n"),
        ("utf-8", "josé donn?es.csv ━━──\n".encode()),
    ],
)
def test_each_character_has_one_in_every_encoding(encoding: str, shown: bytes) -> None:
    prepare_standard_streams()
    out = io.BytesIO()
    stream = io.TextIOWrapper(out, encoding=encoding)
    adapt(stream)
    stream.write(_SHOWN)
    stream.flush()
    assert out.getvalue() == shown


def test_a_table_keeps_its_columns_in_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_standard_streams()
    out = io.BytesIO()
    stream = io.TextIOWrapper(out, encoding="ascii")
    adapt(stream)
    monkeypatch.setattr(sys, "stdout", stream)
    console().print(table("JOB", "PROGRESS", "STATE", rows=(("a", bar(0.5), "running"), ("b", bar(1.0), "…"))))
    stream.flush()
    assert out.getvalue().decode().splitlines() == [
        "JOB  PROGRESS      STATE  ",
        "a    ======------  running",
        "b    ============  ~      ",
    ]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_traceback(closed: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m elasticflow suits {closed}; echo $? > code"
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    ran = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert ((tmp_path / "code").read_text(), b"Traceback" in ran.stderr) == ("2\n", False)


@pytest.mark.parametrize(("command", "said"), [("--help", True), ("--version", True), ("jobs", False)])
def test_a_full_disk_is_one_line(command: str, said: bool, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
    with open("/dev/full", "w") as full:
        arguments = (sys.executable, "-m", "elasticflow", command)
        ran = subprocess.run(
            arguments,
            cwd=tmp_path,
            env=environment | {"PYTHONPATH": str(_ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ran.returncode == 2
    assert (ran.stderr == b"eflow: standard output: No space left on device\n") is said, ran.stderr


def test_a_deleted_folder_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "PWD": str(gone)}
    for name in ("EF_DATA_DIR", "NATS_URL"):
        environment.pop(name, None)
    command = f"rmdir {gone}; exec {sys.executable} -m elasticflow jobs"
    ran = subprocess.run(command, shell=True, cwd=gone, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == f"eflow: {gone}: the current folder was deleted; change to another one\n"

"""A lent machine's time: what does not fit is skipped, what hangs ends with all it started. Its wheels are whole.

The table also tells what failed: the one run there is may have no second.
"""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import marked_tests, nccl, wheels
from benchmarks.gpu.lease import Lease, marked
from benchmarks.gpu.marked_tests import FILES
from benchmarks.gpu.parts import PARTS
from tests.support.wheels import make_wheel

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0
SERVER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({!r}, 'w'); time.sleep(600)"
PART = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", {!r}], start_new_session=True)
while not os.path.exists({!r}):
    time.sleep(0.01)
"""


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    with (tmp_path / "log").open("wb") as log:
        yield Lease(PATIENCE_S, {"PATH": "/usr/bin:/bin"}, log)


def part(folder: Path, *, afterwards: str = "") -> list[str]:
    """A program with a server in a session of its own; neither heeds SIGTERM."""
    there = str(folder / "there")
    return [sys.executable, "-c", PART.format(SERVER.format(there), there) + afterwards]


def test_a_part_that_hangs_ends_with_what_it_started_in_another_session(lease: Lease, tmp_path: Path) -> None:
    running = lease.start("hangs", part(tmp_path, afterwards="time.sleep(600)"), needs_s=PATIENCE_S)
    while not (tmp_path / "there").exists():
        time.sleep(0.01)
    running.limit_s = 0.0
    ended = running.wait()
    assert ended.problem == "stopped after 0 s"
    assert not marked(running.mark)


def test_a_part_that_leaves_a_process_behind_says_so(lease: Lease, tmp_path: Path) -> None:
    running = lease.start("leaves", part(tmp_path), needs_s=PATIENCE_S)
    running.leave_s = 0.0
    ended = running.wait()
    assert (ended.problem, ended.left_behind) == ("", 1)
    assert not marked(running.mark)


def test_a_part_that_fails_says_how_it_ended(lease: Lease) -> None:
    assert lease.start("fails", [sys.executable, "-c", "exit(3)"], needs_s=9).wait().problem == "it ended with 3"


def test_a_part_that_does_not_fit_says_what_it_needs(tmp_path: Path) -> None:
    now_s = 1000.0
    with (tmp_path / "log").open("wb") as log:
        lease = Lease(100.0, {}, log, lambda: now_s)
        assert lease.refusal(90.0) == ""
        now_s += 70.0
        assert lease.refusal(90.0) == "needs 90 s, 27 s left"  # three more end what hangs
        now_s += 70.0
        assert lease.refusal(1.0) == "needs 1 s, 0 s left"


def test_the_parts_fit_into_a_lease_of_nine_minutes() -> None:
    assert sum(part.needs_s for part in PARTS.values() if not part.is_beside and not part.is_more) < 540 - 3


def test_all_files_with_tests_that_need_a_gpu_are_named() -> None:
    is_marked = re.compile(r"mark\.gpu\b")
    files = (file for file in (ROOT / "tests").rglob("test_*.py") if file != Path(__file__))
    found = [str(file.relative_to(ROOT)) for file in files if is_marked.search(file.read_text())]
    assert sorted(found) == sorted(FILES)


def test_wheels_that_lack_a_package_or_what_one_requires_are_refused(tmp_path: Path) -> None:
    for name in wheels.PACKAGES[1:]:
        make_wheel(tmp_path, name.replace("-", "_"))
    with pytest.raises(wheels.IncompleteWheels, match=r"has cffi, .*: run `python -m benchmarks.gpu.wheels`"):
        wheels.check(tmp_path)
    make_wheel(
        tmp_path, wheels.PACKAGES[0].replace("-", "_"), requires=("typing_extensions>=4", "pycparser; extra == 'a'")
    )
    wheels.check(tmp_path)
    make_wheel(tmp_path, wheels.PACKAGES[0].replace("-", "_"), requires=("unheard-of>=2; python_version >= '3.9'",))
    with pytest.raises(
        wheels.IncompleteWheels, match=r"annotated_types-1\.0-py3-none-any\.whl needs unheard-of: add it"
    ):
        wheels.check(tmp_path)


def test_the_packages_are_pinned() -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    assert set(wheels.PACKAGES) <= pinned


# --- the table -----------------------------------------------------------------------------------------


FAILED = {"exit_code": -6, "exit_codes": [-6, 0, None], "errors": ["rank 2: DistBackendError: Duplicate GPU"]}


@pytest.mark.parametrize("name", ["beside", "killed", "absent"])
def test_ranks_that_failed_are_named_with_their_errors(name: str) -> None:
    (row,) = nccl.rows_of_nccl({name: FAILED})
    assert row.goal not in ("", row.measured)
    told = " ".join(row)
    assert "-6" in told
    assert "rank 2: DistBackendError: Duplicate GPU" in told


def test_survivors_that_ended_later_are_wrong() -> None:
    survivor: dict[str, Any] = {"connected_s": 1.0, "failed_s": 0.5, "is_right": True, "watched_s": 75.0}
    codes = {"exit_codes": [0, -9, 7], "errors": []}
    watched, of_torch = nccl.rows_of_nccl_watch({"survivors": survivor | codes, "torch": {"exit_code": -6}})
    assert (watched.measured, watched.goal) == ("WRONG, (0, 7)", "right")
    assert of_torch.measured == "ends with -6"


def test_tests_that_were_stopped_are_not_told_as_passed() -> None:
    measured = {"passed": 3, "skipped": 1, "failed": {"tests/training/test_gpus.py::test_a": "AssertionError: 1"}}
    total, failed = marked_tests.rows_of_tests(measured)
    assert (total.measured, total.beside) == ("1 failed, 3 passed", "not finished")
    assert failed == ("  training/test_gpus.py::test_a", "failed: AssertionError: 1", "", "")

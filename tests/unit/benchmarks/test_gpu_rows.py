"""The table of a GPU's lease also tells what failed: the one run there is may have no second."""

from typing import Any

import pytest

from benchmarks.gpu import marked_tests, nccl, nccl_watch

FAILED = {"exit_code": -6, "exit_codes": [-6, 0, None], "errors": ["rank 2: DistBackendError: Duplicate GPU"]}


@pytest.mark.parametrize("name", ["beside", "killed", "absent"])
def test_ranks_that_failed_are_named_with_their_errors(name: str) -> None:
    (row,) = nccl.rows({name: FAILED})
    assert row.goal not in ("", row.measured)
    told = " ".join(row)
    assert "-6" in told
    assert "rank 2: DistBackendError: Duplicate GPU" in told


def test_survivors_that_ended_later_are_wrong() -> None:
    survivor: dict[str, Any] = {"connected_s": 1.0, "failed_s": 0.5, "is_right": True, "watched_s": 75.0}
    codes = {"exit_codes": [0, -9, 7], "errors": []}
    watched, of_torch = nccl_watch.rows({"survivors": survivor | codes, "torch": {"exit_code": -6}})
    assert (watched.measured, watched.goal) == ("WRONG, (0, 7)", "right")
    assert of_torch.measured == "ends with -6"


def test_tests_that_were_stopped_are_not_told_as_passed() -> None:
    measured = {"passed": 3, "skipped": 1, "failed": {"tests/training/test_gpus.py::test_a": "AssertionError: 1"}}
    total, failed = marked_tests.rows(measured)
    assert (total.measured, total.beside) == ("1 failed, 3 passed", "not finished")
    assert failed == ("  training/test_gpus.py::test_a", "failed: AssertionError: 1", "", "")

"""Large results become files that are complete from the start, also if two runners write the same one."""

import hashlib
from pathlib import Path

import pytest

from elasticflow.services.executor.worker.tasks import run_tasks
from elasticflow.services.executor.worker.tasks.run_tasks import write_result_file


def test_two_writers_of_one_result_at_once_share_no_unfinished_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = run_tasks.rename_durably
    others: list[str] = []

    def rename_after_another_writer(unfinished: Path, target: Path) -> None:
        """Nodes share the folder, and runners in two containers may have the same process id."""
        if not others:
            others.append("")
            others[0] = write_result_file(tmp_path, b"large")
        rename(unfinished, target)

    monkeypatch.setattr(run_tasks, "rename_durably", rename_after_another_writer)
    digest = hashlib.sha256(b"large").hexdigest()
    assert [write_result_file(tmp_path, b"large"), *others] == [digest, digest]
    assert [file.name for file in tmp_path.iterdir()] == [digest]
    assert (tmp_path / digest).read_bytes() == b"large"

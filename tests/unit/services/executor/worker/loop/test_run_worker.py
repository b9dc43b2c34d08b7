"""What the error of a job says beside what its code raised."""

import os
import shutil
from pathlib import Path

import pytest

from elasticflow.services.executor.worker.loop.run_worker import _missing_file_advice


def test_a_missing_file_says_how_a_job_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the folder of the job is deleted, as that of a profiling run is."""
    folder = tmp_path / "a" / "files"
    folder.mkdir(parents=True)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setenv("EF_ARTIFACTS", str(tmp_path / "a" / "artifacts"))
    monkeypatch.chdir(folder)
    shutil.rmtree(folder)
    for name in ("data/input.txt", str(folder / "data" / "input.txt")):
        assert "--workdir DIR" in _missing_file_advice(FileNotFoundError(2, "none", name))
    assert "its node has no such path" in _missing_file_advice(FileNotFoundError(2, "none", "/home/me/input.txt"))
    assert _missing_file_advice(FileNotFoundError("of a library")) == ""
    assert _missing_file_advice(ValueError("other")) == ""

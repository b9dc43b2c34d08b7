"""Executors delete the files of large results that no client has deleted."""

import os
from pathlib import Path

from elasticflow.services.executor.loads.result_files import KEEP_S, delete_old_results

NOW_S = 1_000_000.0


def test_files_of_live_loads_and_new_ones_stay(tmp_path: Path) -> None:
    for name in ("old", "live", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        changed_at_s = NOW_S - 10.0 if name == "new" else NOW_S - KEEP_S - 10.0
        os.utime(tmp_path / name, (changed_at_s, changed_at_s))
    delete_old_results(tmp_path, {"live"}, NOW_S)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["live", "new"]


def test_without_results_there_is_nothing_to_delete(tmp_path: Path) -> None:
    delete_old_results(tmp_path / "results", (), NOW_S)

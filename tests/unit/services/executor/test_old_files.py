"""Executors delete what ended jobs and loads have left, and nothing that a live one needs."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from elasticflow.services.executor import old_files
from elasticflow.services.executor.old_files import OldFiles
from elasticflow.services.executor.processes.fetched_data import data_digest
from elasticflow.services.executor.processes.installed_packages import packages_digest
from elasticflow.shared.messages.events import JobAdmitted
from elasticflow.shared.messages.pool_config import DAY_S, PoolConfig
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from tests.support.histories import NOW_S, pool, spec

DIGEST, OLD_DIGEST = "a" * 64, "b" * 64
REQUIREMENTS = ("tqdm", "einops")
URI = "s3://bucket/train"


def live_pool(**config: Any) -> PoolState:
    """With the live job "live", whose code has DIGEST."""
    admitted = JobAdmitted(
        job_id="live",
        tenant="lab",
        spec=spec(code_digest=DIGEST, requirements=REQUIREMENTS, data={"train": URI}),
        deadline_s=NOW_S + 100.0,
        minimum_satisfactory_share=(),
        gpu_seconds=100.0,
        at_s=NOW_S,
    )
    return pool(1, **config).then(admitted).state


def folder(root: Path, name: str, *, age_s: float) -> Path:
    made = root / name
    made.mkdir(parents=True)
    (made / "file").touch()
    for path in (made / "file", made):
        os.utime(path, (NOW_S - age_s,) * 2)
    return made


def sweep(root: Path, state: PoolState, now_s: float = NOW_S) -> None:
    OldFiles(root, SystemClock(), lambda: state, SilentLog()).sweep(now_s)


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_old_folders_of_ended_jobs_are_deleted(tmp_path: Path) -> None:
    for name in ("live", "ended"):
        folder(tmp_path / "logs", name, age_s=31 * DAY_S)
        folder(tmp_path / "checkpoints", name, age_s=31 * DAY_S)
    folder(tmp_path / "logs", "young", age_s=29 * DAY_S)
    folder(tmp_path / "load-logs", "ended", age_s=31 * DAY_S)
    (tmp_path / "logs" / "fork-server.log").touch()
    sweep(tmp_path, live_pool())
    assert names(tmp_path / "logs") == ["fork-server.log", "live", "young"]
    assert names(tmp_path / "load-logs") == []
    assert names(tmp_path / "checkpoints") == ["ended", "live"], "kept for ever, unless the pool says otherwise"
    sweep(tmp_path, live_pool(checkpoints_kept_s=30 * DAY_S))
    assert names(tmp_path / "checkpoints") == ["live"]


def test_a_file_that_is_still_written_keeps_its_folder(tmp_path: Path) -> None:
    written = folder(tmp_path / "logs", "ended", age_s=31 * DAY_S)
    os.utime(written / "file", (NOW_S,) * 2)
    sweep(tmp_path, live_pool())
    assert names(tmp_path / "logs") == ["ended"]


@pytest.mark.parametrize("keeps", ["a link without a target", "a link to a new file", "a time in the future"])
def test_no_trick_of_a_job_keeps_its_folder(keeps: str, tmp_path: Path) -> None:
    made = folder(tmp_path / "logs", "ended", age_s=31 * DAY_S)
    if keeps == "a time in the future":
        os.utime(made / "file", (NOW_S + 100_000 * DAY_S,) * 2)
    else:
        target = tmp_path / "target"
        if "new" in keeps:
            target.touch()
        (made / "link").symlink_to(target)
        os.utime(made / "link", (NOW_S - 31 * DAY_S,) * 2, follow_symlinks=False)
        os.utime(made, (NOW_S - 31 * DAY_S,) * 2)
    sweep(tmp_path, live_pool(), now_s=max(NOW_S, SystemClock().now_s()) + 31 * DAY_S)
    assert names(tmp_path / "logs") == []


def test_unpacked_code_of_a_live_job_stays(tmp_path: Path) -> None:
    for name in (DIGEST, OLD_DIGEST, ".unfinished-x"):
        folder(tmp_path / "code" / "lab", name, age_s=2 * DAY_S)
    folder(tmp_path / "code" / "other", DIGEST, age_s=2 * DAY_S)
    sweep(tmp_path, live_pool())
    assert names(tmp_path / "code" / "lab") == [DIGEST]
    assert names(tmp_path / "code" / "other") == [], "the live job is not of this tenant"


@pytest.mark.parametrize("at", ["before the rename", "after the rename", "after some files"])
def test_an_executor_that_is_killed_while_it_deletes_leaves_no_part_of_a_folder(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    old = folder(tmp_path / "code" / "lab", OLD_DIGEST, age_s=2 * DAY_S)
    rename, rmtree = Path.rename, shutil.rmtree

    def killed_rename(path: Path, target: Path) -> None:
        if at == "before the rename":
            raise Killed
        rename(path, target)

    def killed_rmtree(path: Path, **_: Any) -> None:
        if at == "after some files":
            (path / "file").unlink()
        raise Killed

    monkeypatch.setattr(Path, "rename", killed_rename)
    monkeypatch.setattr(old_files.shutil, "rmtree", killed_rmtree)
    with pytest.raises(Killed):
        sweep(tmp_path, live_pool())
    assert not old.exists() or names(old) == ["file"]

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(old_files.shutil, "rmtree", rmtree)
    sweep(tmp_path, live_pool())
    assert names(tmp_path / "code" / "lab") == []


def test_results_of_loads_are_kept_for_a_day(tmp_path: Path) -> None:
    folder(tmp_path / "results", "old", age_s=DAY_S + 10.0)
    folder(tmp_path / "results", "new", age_s=10.0)
    sweep(tmp_path, PoolState(config=PoolConfig(), live_jobs=Map()))
    assert names(tmp_path / "results") == ["new"]


def test_an_empty_data_folder_has_nothing_to_delete(tmp_path: Path) -> None:
    sweep(tmp_path, live_pool())
    assert names(tmp_path) == []


def test_packages_are_kept_while_their_tenant_has_a_job_that_requires_some_and_for_a_day(tmp_path: Path) -> None:
    here, on_another_node = packages_digest(REQUIREMENTS), "0" * 64
    for name in (f"lab/{here}", f"lab/{on_another_node}", f"thief/{here}"):
        folder(tmp_path / "packages", name, age_s=2 * DAY_S)
    folder(tmp_path / "packages", f"thief/{on_another_node}", age_s=DAY_S / 2)
    sweep(tmp_path, live_pool())
    assert names(tmp_path / "packages" / "lab") == sorted([on_another_node, here])
    assert names(tmp_path / "packages" / "thief") == [on_another_node]
    sweep(tmp_path, PoolState(config=PoolConfig(), live_jobs=Map()))
    assert names(tmp_path / "packages" / "lab") == []


def test_data_is_kept_for_live_jobs_of_its_tenant_and_for_a_day(tmp_path: Path) -> None:
    digest, other = data_digest(URI), data_digest("s3://bucket/other")
    for name in (f"lab/{digest}", f"lab/{other}", "lab/.unfinished-1", f"thief/{digest}"):
        folder(tmp_path / "data", name, age_s=2 * DAY_S)
    folder(tmp_path / "data", f"thief/{other}", age_s=DAY_S / 2)
    sweep(tmp_path, live_pool())
    assert names(tmp_path / "data" / "lab") == [digest]
    assert names(tmp_path / "data" / "thief") == [other]

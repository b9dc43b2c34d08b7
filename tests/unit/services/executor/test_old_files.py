"""Executors delete what ended jobs and loads have left, and nothing that a live one needs."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticflow.services.executor import old_files
from elasticflow.services.executor.old_files import OldFiles
from elasticflow.services.executor.processes.prepared_folders import data_digest, packages_digest
from elasticflow.shared.messages.events import JobAdmitted, LoadOpened
from elasticflow.shared.messages.job_environment import OwnEnvironment
from elasticflow.shared.messages.job_spec import ContinuedJob, JobSpec
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.pool_config import DAY_S, PoolConfig
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.histories import NOW_S, pool, spec
from tests.support.deep_folders import make_deep
from tests.support.virtual_clock import VirtualClock

pytestmark = pytest.mark.usefixtures("deleted_however_deep")

DIGEST, OLD_DIGEST = "a" * 64, "b" * 64
REQUIREMENTS = ("tqdm", "einops")
URI = "s3://bucket/train"


def live_pool(needs: JobSpec | None = None, **config: Any) -> PoolState:
    """With the live job "live". needs: by default, code with DIGEST, REQUIREMENTS and URI."""
    admitted = JobAdmitted(
        job_id="live",
        tenant="lab",
        spec=needs or spec(code_digest=DIGEST, requirements=REQUIREMENTS, data={"train": URI}),
        deadline_s=NOW_S + 100.0,
        minimum_satisfactory_share=(),
        gpu_seconds=100.0,
        at_s=NOW_S,
    )
    return pool(1, **config).then(admitted).state


def folder(root: Path, name: str) -> Path:
    """Changed now, whatever time its files claim: no program can set the time of an inode."""
    made = root / name
    made.mkdir(parents=True)
    (made / "file").touch()
    os.utime(made / "file", (0.0, 0.0))
    return made


def sweep(root: Path, state: PoolState, *, after_s: float) -> None:
    """As if so much time had passed since."""
    clock = SystemClock()
    OldFiles(root, clock, lambda: state, SilentLog()).sweep(clock.now_s() + after_s)


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_the_folder_of_a_job_that_a_live_one_continues_is_needed(tmp_path: Path) -> None:
    """Its checkpoints are linked when the first worker starts, which may be long after its submission."""
    identity = "0123456789abcdef"
    continued = ContinuedJob(job_id="han", identity=identity, iteration=40)
    admitted = JobAdmitted(
        job_id="live",
        tenant="lab",
        spec=spec(continues=continued),
        deadline_s=NOW_S + 100.0,
        minimum_satisfactory_share=(),
        gpu_seconds=100.0,
        at_s=NOW_S,
    )
    state = pool(1, checkpoints_kept_s=DAY_S).then(admitted).state
    for name in ("han", f"han.of-{identity}", "han.of-another", "ended"):
        folder(tmp_path / "checkpoints", name)
        folder(tmp_path / "logs", name)
    sweep(tmp_path, state, after_s=31 * DAY_S)
    assert names(tmp_path / "checkpoints") == ["han", f"han.of-{identity}"]
    assert names(tmp_path / "logs") == []


def test_old_folders_of_ended_jobs_are_deleted(tmp_path: Path) -> None:
    for name in ("live", "ended"):
        folder(tmp_path / "logs", name)
        folder(tmp_path / "checkpoints", name)
    folder(tmp_path / "load-logs", "ended.1f")
    (tmp_path / "logs" / "fork-server.log").touch()
    sweep(tmp_path, live_pool(), after_s=29 * DAY_S)
    assert names(tmp_path / "logs") == ["ended", "fork-server.log", "live"]
    sweep(tmp_path, live_pool(), after_s=31 * DAY_S)
    assert names(tmp_path / "logs") == ["fork-server.log", "live"]
    assert names(tmp_path / "load-logs") == []
    assert names(tmp_path / "checkpoints") == ["ended", "live"], "kept for ever, unless the pool says otherwise"
    sweep(tmp_path, live_pool(checkpoints_kept_s=30 * DAY_S), after_s=31 * DAY_S)
    assert names(tmp_path / "checkpoints") == ["live"]


@pytest.mark.parametrize(
    "trick", ["a link without a target", "a link to a new file", "a time in the future", "folders in each other"]
)
def test_no_trick_of_a_job_keeps_its_folder(trick: str, tmp_path: Path) -> None:
    made = folder(tmp_path / "logs", "ended")
    match trick:
        case "a link without a target":
            (made / "link").symlink_to(tmp_path / "absent")
        case "a link to a new file":
            (tmp_path / "target").touch()
            (made / "link").symlink_to(tmp_path / "target")
        case "a time in the future":
            os.utime(made / "file", (NOW_S + 100_000 * DAY_S,) * 2)
        case _:
            make_deep(made / "deep")
    folder(tmp_path / "logs", "other")
    sweep(tmp_path, live_pool(), after_s=31 * DAY_S)
    assert names(tmp_path / "logs") == []


def test_a_folder_that_cannot_be_deleted_keeps_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        folder(tmp_path / "logs", name)

    def failing(folder: Path, *, goes_on: Callable[[], bool]) -> bool:
        raise RecursionError(folder)

    monkeypatch.setattr(old_files, "delete_folder", failing)
    sweep(tmp_path, live_pool(), after_s=31 * DAY_S)
    assert all(name.startswith(".deleted-") for name in names(tmp_path / "logs"))
    monkeypatch.undo()
    sweep(tmp_path, live_pool(), after_s=31 * DAY_S)
    assert names(tmp_path / "logs") == []


@pytest.mark.asyncio
async def test_the_end_of_an_executor_ends_its_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "results", "endless")
    began, ended = threading.Event(), threading.Event()

    def endless(folder: Path, *, goes_on: Callable[[], bool]) -> bool:
        began.set()
        while goes_on():
            time.sleep(0.001)
        ended.set()
        return False

    monkeypatch.setattr(old_files, "delete_folder", endless)
    clock = VirtualClock(SystemClock().now_s() + 31 * DAY_S)
    sweeping = asyncio.create_task(OldFiles(tmp_path, clock, live_pool, SilentLog()).run())
    await asyncio.to_thread(began.wait, 60.0)
    sweeping.cancel()
    assert await asyncio.to_thread(ended.wait, 60.0)


def test_unpacked_code_of_a_live_job_stays(tmp_path: Path) -> None:
    for name in (DIGEST, OLD_DIGEST, ".unfinished-x"):
        folder(tmp_path / "code" / "lab", name)
    folder(tmp_path / "code" / "other", DIGEST)
    sweep(tmp_path, live_pool(), after_s=2 * DAY_S)
    assert names(tmp_path / "code" / "lab") == [DIGEST]
    assert names(tmp_path / "code" / "other") == [], "the live job is not of this tenant"


@pytest.mark.parametrize("at", ["before the rename", "after the rename", "after some files"])
def test_an_executor_that_is_killed_while_it_deletes_leaves_no_part_of_a_folder(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    old = folder(tmp_path / "code" / "lab", OLD_DIGEST)
    rename = Path.rename

    def killed_rename(path: Path, target: Path) -> None:
        if at == "before the rename":
            raise Killed
        rename(path, target)

    def killed_deletion(path: Path, *, goes_on: Callable[[], bool]) -> bool:
        if at == "after some files":
            (path / "file").unlink()
        raise Killed

    monkeypatch.setattr(Path, "rename", killed_rename)
    monkeypatch.setattr(old_files, "delete_folder", killed_deletion)
    with pytest.raises(Killed):
        sweep(tmp_path, live_pool(), after_s=2 * DAY_S)
    assert not old.exists() or names(old) == ["file"]

    monkeypatch.undo()
    sweep(tmp_path, live_pool(), after_s=2 * DAY_S)
    assert names(tmp_path / "code" / "lab") == []


def test_results_of_loads_are_kept_for_a_day(tmp_path: Path) -> None:
    nothing_live = PoolState(config=PoolConfig(), live_jobs=Map())
    folder(tmp_path / "results", "load")
    sweep(tmp_path, nothing_live, after_s=DAY_S - 10.0)
    assert names(tmp_path / "results") == ["load"]
    sweep(tmp_path, nothing_live, after_s=DAY_S + 10.0)
    assert names(tmp_path / "results") == []


def test_folders_of_a_live_load_stay_and_those_of_an_earlier_one_of_its_id_do_not(tmp_path: Path) -> None:
    spec = LoadSpec(task_function="jobs.fold:fold", task_s=1.0)
    state = pool(1).then(LoadOpened(load_id="a", tenant="lab", spec=spec, useful_share=None, at_s=NOW_S)).state
    for place in ("results", "load-logs"):
        for name in (state.loads["a"].folder_name, "a.1f", "a"):
            folder(tmp_path / place, name)
    sweep(tmp_path, state, after_s=31 * DAY_S)
    assert names(tmp_path / "results") == names(tmp_path / "load-logs") == [state.loads["a"].folder_name]


def test_an_empty_data_folder_has_nothing_to_delete(tmp_path: Path) -> None:
    sweep(tmp_path, live_pool(), after_s=0.0)
    assert names(tmp_path) == []


def test_packages_are_kept_while_their_tenant_has_a_job_that_requires_some_and_for_a_day(tmp_path: Path) -> None:
    here, on_another_node = packages_digest(REQUIREMENTS), "0" * 64
    for name in (f"lab/{here}", f"lab/{on_another_node}", f"thief/{here}"):
        folder(tmp_path / "packages", name)
    sweep(tmp_path, live_pool(), after_s=DAY_S / 2)
    assert names(tmp_path / "packages" / "thief") == [here]
    sweep(tmp_path, live_pool(), after_s=2 * DAY_S)
    assert names(tmp_path / "packages" / "lab") == sorted([on_another_node, here])
    assert names(tmp_path / "packages" / "thief") == []
    sweep(tmp_path, PoolState(config=PoolConfig(), live_jobs=Map()), after_s=2 * DAY_S)
    assert names(tmp_path / "packages" / "lab") == []


def test_environments_are_kept_while_their_tenant_has_a_job_in_one_and_for_a_day(tmp_path: Path) -> None:
    for name in ("lab/one", "lab/of-another-node", "thief/one"):
        folder(tmp_path / "environments", name)
    needs = live_pool(spec(own_environment=OwnEnvironment(requirements=("numpy<2",))))
    sweep(tmp_path, needs, after_s=DAY_S / 2)
    assert names(tmp_path / "environments" / "thief") == ["one"]
    sweep(tmp_path, needs, after_s=2 * DAY_S)
    assert names(tmp_path / "environments" / "lab") == ["of-another-node", "one"]
    assert names(tmp_path / "environments" / "thief") == []
    sweep(tmp_path, live_pool(), after_s=2 * DAY_S)
    assert names(tmp_path / "environments" / "lab") == []


def test_data_is_kept_for_live_jobs_of_its_tenant_and_for_a_day(tmp_path: Path) -> None:
    digest, other = data_digest(URI), data_digest("s3://bucket/other")
    for name in (f"lab/{digest}", f"lab/{other}", "lab/.unfinished-1", f"thief/{digest}"):
        folder(tmp_path / "data", name)
    sweep(tmp_path, live_pool(), after_s=DAY_S / 2)
    assert names(tmp_path / "data" / "thief") == [digest]
    sweep(tmp_path, live_pool(), after_s=2 * DAY_S)
    assert names(tmp_path / "data" / "lab") == [digest]
    assert names(tmp_path / "data" / "thief") == []

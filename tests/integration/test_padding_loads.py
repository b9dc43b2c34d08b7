"""`elasticflow.map` on a real pool: results, failures, preemption by a job, and the ends of a load."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import elasticflow
from elasticflow.client import loads
from elasticflow.errors import LoadNotOpened, LoadWasCancelled, ResultFileUnusable, TaskError
from elasticflow.services.monitor.load_results import NOTE_EVERY_S
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.state.fold.ledger_fold import Unreadable
from elasticflow.shared.state.load import LoadPhase
from testbed.real_pool import POOL, RunningPool, eventually, job
from testbed.user_code import dies_at_import, task_functions
from tests.support.shared_pool import stored_results

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def pool(session_pool: RunningPool) -> RunningPool:
    return session_pool


async def mapped(pool: RunningPool, function: Callable[[Any], Any], inputs: Iterable[Any], **options: Any) -> list[Any]:
    """In another thread, as a script would."""

    def run() -> list[Any]:
        settings = {"nats_url": pool.url, "pool": POOL, "tenant": "lab", "task_s": 0.01} | options
        return list(elasticflow.map(function, inputs, **settings))

    return await asyncio.to_thread(run)


def under_way(files: list[str]) -> bool:
    """Whether a task of `task_functions.wait_for` waits for its file."""
    return any(Path(f"{file}.waiting").exists() for file in files)


def forget(files: list[str]) -> None:
    for file in files:
        Path(f"{file}.waiting").unlink(missing_ok=True)


def release(files: list[str]) -> None:
    for file in files:
        Path(file).touch()


async def ended(pool: RunningPool, load_id: str) -> LoadPhase:
    state = await pool.when(lambda state: load_id in state.loads and not state.loads[load_id].live, f"{load_id} ends")
    return state.loads[load_id].phase


async def test_results_come_in_the_order_of_the_inputs(pool: RunningPool) -> None:
    numbers = list(range(300))
    assert await mapped(pool, task_functions.double, numbers, load_id="doubled") == [2 * x for x in numbers]
    assert await ended(pool, "doubled") is LoadPhase.FINISHED
    assert (await pool.client.state()).loads["doubled"].num_results == 300
    assert await stored_results(pool.bus, "doubled", pool=POOL) == [], "they are deleted"


async def test_a_load_without_tasks_ends_at_once(pool: RunningPool) -> None:
    assert await mapped(pool, task_functions.double, [], load_id="empty") == []
    assert await ended(pool, "empty") is LoadPhase.FINISHED


@pytest.mark.parametrize(
    ("deed", "says"), [("raise", "no such sample"), ("os._exit", "exit code 4"), ("segfault", "signal 11")]
)
async def test_a_task_that_always_fails_is_tried_again_and_reported(pool: RunningPool, deed: str, says: str) -> None:
    inputs = [1, 2, 3, deed, 5, 6]
    with pytest.raises(TaskError, match=says) as raised:
        await mapped(pool, task_functions.misbehave, inputs, max_attempts=2, load_id=f"fails-{deed[:2]}")
    assert (raised.value.index, raised.value.attempts) == (3, 2)
    await ended(pool, f"fails-{deed[:2]}")


async def test_a_task_beyond_its_time_out_has_failed(pool: RunningPool, tmp_path: Path) -> None:
    never = str(tmp_path / "never")
    with pytest.raises(TaskError, match=r"time-out of 0\.5 s"):
        await mapped(pool, task_functions.wait_for, [never], task_timeout_s=0.5, max_attempts=1)


async def test_a_job_takes_the_gpus_and_the_load_ends_all_the_same(pool: RunningPool, tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}") for number in range(6)]
    mapping = asyncio.create_task(mapped(pool, task_functions.wait_for, files, load_id="preempted", task_s=1.0))
    await eventually(lambda: under_way(files), "a task is under way")
    await pool.acknowledged(job(min_gpus=2), "job")
    state = await pool.ended(["job"])
    assert state.ended_jobs["job"].iteration == 100
    assert state.loads["preempted"].num_results == 0
    release(files)
    assert await mapping == ["waited"] * 6


async def test_killed_runners_executors_and_servers_lose_no_task(pool: RunningPool, tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}") for number in range(8)]
    mapping = asyncio.create_task(mapped(pool, task_functions.wait_for, files, load_id="killed", task_s=1.0))
    for victim in ("executor-node-0", "nats-server", "monitor", "admission"):
        await eventually(lambda: under_way(files), "a task is under way")
        pid = pool.pid(victim)
        assert pid is not None
        await pool.kill(victim)
        await pool.restarted(victim, pid)
        forget(files)
        for runner in pool.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                runner.kill()
    release(files)
    assert await mapping == ["waited"] * 8
    assert await ended(pool, "killed") is LoadPhase.FINISHED


async def test_a_complete_load_finishes_although_the_monitor_is_away(
    pool: RunningPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "FINISH_TIMEOUT_S", 0.1)
    monitor = psutil.Process(pool.pid("monitor"))
    monitor.suspend()
    try:
        assert await mapped(pool, task_functions.double, range(20), load_id="uncounted") == [2 * x for x in range(20)]
    finally:
        monitor.resume()
    assert await ended(pool, "uncounted") is LoadPhase.FINISHED


async def test_a_stopped_client_cancels_its_load(pool: RunningPool) -> None:
    def take_one() -> int:
        results = elasticflow.map(
            task_functions.double,
            range(10_000),
            nats_url=pool.url,
            pool=POOL,
            tenant="lab",
            load_id="stopped",
            task_s=0.01,
        )
        first = next(results)
        results.close()
        return first

    assert await asyncio.to_thread(take_one) == 0
    assert await ended(pool, "stopped") is LoadPhase.CANCELLED


async def test_a_load_that_does_not_pay_is_rejected(pool: RunningPool) -> None:
    with pytest.raises(LoadNotOpened, match="it does not pay"):
        await mapped(pool, task_functions.double, [1], task_s=0.001, overhead_s=60.0)


async def test_a_name_is_given_once(pool: RunningPool) -> None:
    assert await mapped(pool, task_functions.double, [1], load_id="named") == [2]
    with pytest.raises(LoadNotOpened, match="names another load already"):
        await mapped(pool, task_functions.double, [1], load_id="named", task_s=9.0)
    with pytest.raises(LoadNotOpened, match="a load of this name was used before"):
        await mapped(pool, task_functions.double, [1], load_id="named")


async def test_a_module_that_ends_its_process_fails_its_tasks(pool: RunningPool) -> None:
    with pytest.raises(TaskError, match="exit code 9"):
        await mapped(pool, dies_at_import.double, [1, 2], max_attempts=2)


async def test_a_load_that_somebody_cancels_ends_for_its_client(pool: RunningPool, tmp_path: Path) -> None:
    files = [str(tmp_path / "never")]
    mapping = asyncio.create_task(mapped(pool, task_functions.wait_for, files, load_id="cancelled"))
    await eventually(lambda: under_way(files), "a task is under way")
    other = asyncio.create_task(mapped(pool, task_functions.double, range(50), load_id="other"))
    await pool.client.cancel_load("cancelled", reason="no longer needed")
    with pytest.raises(LoadWasCancelled, match="no longer needed"):
        await mapping
    assert await other == [2 * x for x in range(50)]


async def test_an_error_of_the_inputs_reaches_the_caller(pool: RunningPool) -> None:
    def inputs() -> Iterator[int]:
        yield 1
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        await mapped(pool, task_functions.double, inputs(), load_id="bad-inputs")
    assert await ended(pool, "bad-inputs") is LoadPhase.CANCELLED


async def test_a_map_that_is_closed_while_its_inputs_block_ends(pool: RunningPool) -> None:
    blocked = threading.Event()

    def inputs() -> Iterator[int]:
        yield 1
        blocked.wait()

    def take_one() -> int:
        options = {"nats_url": pool.url, "pool": POOL, "tenant": "lab", "load_id": "blocked", "task_s": 1.0}
        results = elasticflow.map(task_functions.double, inputs(), **options)
        first = next(results)
        results.close()
        return first

    assert await asyncio.to_thread(take_one) == 2
    assert await ended(pool, "blocked") is LoadPhase.CANCELLED
    blocked.set()


async def test_a_map_that_is_never_read_opens_no_load(pool: RunningPool) -> None:
    options = {"nats_url": pool.url, "pool": POOL, "tenant": "lab", "load_id": "unread"}
    elasticflow.map(task_functions.double, [1], **options)
    assert "unread" not in (await pool.client.state()).loads


async def test_a_large_result_is_a_file_until_it_is_read(pool: RunningPool) -> None:
    sizes = [10, 700_000, 2_000_000]
    options = {"load_id": "large", "data_dir": pool.data_dir}
    assert await mapped(pool, task_functions.make_result, sizes, **options) == [bytes(size) for size in sizes]
    load = (await pool.client.state()).loads["large"]
    assert (pool.data_dir / "load-logs" / load.folder_name).is_dir()
    assert not list((pool.data_dir / "results").iterdir())


async def test_a_large_result_needs_the_data_folder(pool: RunningPool) -> None:
    with pytest.raises(ResultFileUnusable, match=r"task 0 is the file .* data folder is not known here"):
        await mapped(pool, task_functions.make_result, [700_000], load_id="nowhere")


async def test_a_script_that_ends_early_cancels_its_load(pool: RunningPool) -> None:
    script = (
        "import elasticflow\nfrom testbed.user_code.task_functions import double\n"
        f"results = elasticflow.map(double, range(100_000), nats_url={pool.url!r}, pool={POOL!r}, tenant='lab', "
        "load_id='left', task_s=0.01)\nprint(next(results), next(results))\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"0 2\n")
    assert await ended(pool, "left") is LoadPhase.CANCELLED


async def test_the_ledger_has_loads_and_no_task_and_replays(pool: RunningPool) -> None:
    await mapped(pool, task_functions.double, range(300), load_id="recorded")
    await ended(pool, "recorded")
    entries = await pool.ledger()
    of_loads = [
        event
        for entry in entries
        if not isinstance(entry.message, Unreadable)
        for event in (entry.message.events if isinstance(entry.message, PlanDecided) else (entry.message,))
        if getattr(event, "load_id", "") == "recorded"
    ]
    assert isinstance(of_loads[0], events.LoadOpened)
    assert sum(isinstance(event, events.LoadFinished) for event in of_loads) == 1
    notes = [event for event in of_loads if isinstance(event, events.LoadProgressed)]  # five a second at most
    assert len(notes) <= 1 + (of_loads[-1].at_s - of_loads[0].at_s) / NOTE_EVERY_S
    assert len(of_loads) - len(notes) < 5

"""`PaddingExecutor` and joblib on a real pool: several functions, failures, ends of loads and of scripts."""

import asyncio
import functools
import inspect
import math
import signal
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, TypeVar

import joblib
import pytest
import pytest_asyncio

import elasticflow
from elasticflow import LoadNotOpened, LoadWasCancelled, PackagingFailed, PaddingExecutor, TaskError
from elasticflow.shared.state.load import LoadPhase
from testbed.real_pool import PATIENCE_S, POOL, RunningPool, eventually
from testbed.user_code import task_functions
from testbed.user_code.task_functions import double, misbehave, wait_for

pytestmark = pytest.mark.asyncio(loop_scope="session")
T = TypeVar("T")
SCRIPT = """
import sys
import elasticflow
from task_functions import double, wait_for

class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second

def total(pair):
    return pair.first + pair.second

if __name__ == "__main__":
    url, load_id, file = sys.argv[1:]
    executor = elasticflow.PaddingExecutor(nats_url=url, pool="{pool}", tenant="lab", load_id=load_id)
    for future in (executor.submit(total, Pair(1, second=2)), executor.submit(double, 4)):
        future.add_done_callback(lambda future: print(future.result(), flush=True))
    executor.submit(wait_for, file).add_done_callback(lambda future: print(future.exception(), flush=True))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pool(session_pool: RunningPool) -> RunningPool:
    """Its GPUs have been idle for so long that admission opens a load with tasks of a second."""
    async with asyncio.timeout(PATIENCE_S):
        while not await in_thread(lambda: is_open(session_pool)):  # noqa: ASYNC110 - time alone changes the answer
            await asyncio.sleep(0.05)
    return session_pool


async def in_thread(function: Callable[[], T]) -> T:
    return await asyncio.to_thread(function)


def is_open(pool: RunningPool) -> bool:
    try:
        with executor(pool) as opened:
            return opened.submit(math.sqrt, 1.0).result(PATIENCE_S) == 1.0
    except LoadNotOpened:
        return False


def executor(pool: RunningPool, **options: Any) -> PaddingExecutor:
    return PaddingExecutor(nats_url=pool.url, pool=POOL, tenant="lab", **options)


async def phase_of(pool: RunningPool, load_id: str) -> LoadPhase:
    state = await pool.when(lambda state: load_id in state.loads and not state.loads[load_id].live, f"{load_id} ends")
    return state.loads[load_id].phase


async def test_several_functions_share_a_load(pool: RunningPool) -> None:
    def run() -> list[Any]:
        with executor(pool, load_id="of-functions") as opened:
            first = opened.submit(double, 4)
            assert first.result(PATIENCE_S) == 8, "a call does not wait for later ones"
            futures = [
                opened.submit(task_functions.total, values=[1, 2]),
                opened.submit(math.sqrt, 4.0),
                opened.submit(functools.partial(double, 5)),
            ]
            assert list(opened.map(double, range(30), timeout=PATIENCE_S)) == [2 * x for x in range(30)]
            return [future.result(PATIENCE_S) for future in futures]

    assert await in_thread(run) == [3.0, 2.0, 10]
    assert await phase_of(pool, "of-functions") is LoadPhase.FINISHED
    assert (await pool.client.state()).loads["of-functions"].num_results == 34


async def test_a_failed_call_fails_its_future_only(pool: RunningPool) -> None:
    def run() -> None:
        with executor(pool, max_attempts=2) as opened:
            failed, died, fine = (opened.submit(misbehave, how) for how in ("raise", "os._exit", "nothing"))
            with pytest.raises(TaskError, match="no such sample") as raised:
                failed.result(PATIENCE_S)
            assert raised.value.attempts == 2
            with pytest.raises(TaskError, match="exit code 4"):
                died.result(PATIENCE_S)
            assert fine.result(PATIENCE_S) == "nothing"

    await in_thread(run)


async def test_calls_under_way_are_cancelled_with_the_load(pool: RunningPool, tmp_path: Path) -> None:
    opened = executor(pool, load_id="left-calls")
    future = await in_thread(lambda: opened.submit(wait_for, str(tmp_path / "never")))
    await eventually((tmp_path / "never.waiting").exists, "the call is under way")
    assert future.running()
    assert not future.cancel()
    await in_thread(opened.cancel)
    assert isinstance(await in_thread(lambda: future.exception(PATIENCE_S)), LoadWasCancelled)
    assert await phase_of(pool, "left-calls") is LoadPhase.CANCELLED


async def test_a_load_that_is_cancelled_elsewhere_breaks_its_executor(pool: RunningPool, tmp_path: Path) -> None:
    opened = executor(pool, load_id="broken-calls")
    future = await in_thread(lambda: opened.submit(wait_for, str(tmp_path / "never")))
    await eventually((tmp_path / "never.waiting").exists, "the call is under way")
    await pool.client.cancel_load("broken-calls", reason="no longer needed")
    with pytest.raises(LoadWasCancelled, match="no longer needed"):
        await in_thread(lambda: future.result(PATIENCE_S))
    with pytest.raises(BrokenExecutor, match="no longer needed"):
        opened.submit(double, 1)


async def test_a_load_that_is_not_opened_breaks_its_executor(pool: RunningPool) -> None:
    opened = executor(pool, task_s=0.001, overhead_s=60.0)
    future = await in_thread(lambda: opened.submit(double, 1))
    with pytest.raises(LoadNotOpened, match="it does not pay"):
        await in_thread(lambda: future.result(PATIENCE_S))
    with pytest.raises(BrokenExecutor, match="it does not pay"):
        opened.submit(double, 1)


async def run_script(pool: RunningPool, folder: Path, load_id: str) -> asyncio.subprocess.Process:
    """Returns while its last call waits for the file "go"."""
    (folder / "script.py").write_text(SCRIPT.replace("{pool}", POOL))
    (folder / "task_functions.py").write_text(inspect.getsource(task_functions))
    file = folder / "go"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "script.py", pool.url, load_id, str(file)),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await eventually(Path(f"{file}.waiting").exists, "the last call is under way")
    return process


async def test_a_script_waits_at_its_end_for_its_calls(pool: RunningPool, tmp_path: Path) -> None:
    process = await run_script(pool, tmp_path, "at-the-end")
    (tmp_path / "go").touch()
    out, error = await process.communicate()
    assert (process.returncode, sorted(out.split()), error) == (0, [b"3", b"8", b"None"], b"")
    assert await phase_of(pool, "at-the-end") is LoadPhase.FINISHED


async def test_ctrl_c_cancels_the_load_of_a_script(pool: RunningPool, tmp_path: Path) -> None:
    process = await run_script(pool, tmp_path, "interrupted")
    process.send_signal(signal.SIGINT)
    out, error = await process.communicate()
    assert b"its client cancelled it" in out, error.decode()
    assert b"KeyboardInterrupt" in error
    assert await phase_of(pool, "interrupted") is LoadPhase.CANCELLED


async def test_map_calls_functions_of_installed_packages(pool: RunningPool) -> None:
    options: dict[str, Any] = {"nats_url": pool.url, "pool": POOL, "tenant": "lab", "load_id": "installed"}
    assert await in_thread(lambda: list(elasticflow.map(math.sqrt, [1.0, 4.0], **options))) == [1.0, 2.0]
    assert (await pool.client.state()).loads["installed"].spec.code_digest == ""


async def test_joblib_calls_functions_on_the_pool(pool: RunningPool) -> None:
    elasticflow.register_joblib()

    def run() -> None:
        delayed = joblib.delayed
        options = {"nats_url": pool.url, "pool": POOL, "tenant": "lab", "max_attempts": 1}
        with joblib.parallel_config(backend="elasticflow", **options):
            assert joblib.effective_n_jobs(-1) == 2, "the GPUs of the pool"
            here = joblib.Parallel(n_jobs=1)(delayed(task_functions.total)(values=[x]) for x in range(3))
            assert joblib.Parallel()(delayed(task_functions.total)(values=[x]) for x in range(3)) == here
            assert joblib.Parallel(n_jobs=-1)(delayed(double)(x) for x in range(500)) == [2 * x for x in range(500)]
            with joblib.Parallel(return_as="generator_unordered") as parallel:
                assert sorted(parallel(delayed(math.sqrt)(x) for x in (4, 1))) == [1.0, 2.0]
                assert sorted(parallel(delayed(math.exp)(x) for x in (0, 0))) == [1.0, 1.0]
            with pytest.raises(TaskError, match="no such sample"):
                joblib.Parallel()(delayed(misbehave)(how) for how in (1, 2, "raise", 4))
            with pytest.raises(PackagingFailed, match="<lambda> cannot be imported by name"):
                joblib.Parallel(batch_size=1)(delayed(f)(1) for f in (double, double, double, lambda x: x))

    await in_thread(run)

"""Runners of padding loads: results, and failures of single tasks."""

import asyncio
import pickle
import signal
import sys
import time
from pathlib import Path

import pytest

from elasticflow.services.executor.loads.padding_slot import CPU_NICENESS
from elasticflow.services.executor.processes.fork_server_client import wait_until_gone
from elasticflow.services.executor.processes.task_runner import RunnerEnded, TaskKey
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.messages.worker_protocol.task_running import MAX_TASK_BYTES, TaskDone, TaskFailed
from tests.support.task_runners import USER_CODE, WAIT_S, Runners, all_of, run, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1024 * 1024


async def test_results_arrive_in_order_while_a_second_bundle_waits(runners: Runners) -> None:
    runner = await runners.start("double")
    first, second = run(runner, *range(100)), run(runner, *range(100, 150), bundle_id=2)
    assert runner.num_bundles == 2
    assert await runner.ready()
    assert await all_of(first) == [2 * x for x in range(100)]
    assert await all_of(second) == [2 * x for x in range(100, 150)]
    assert runner.num_bundles == 0
    assert await all_of(run(runner, 7)) == [14]
    assert await all_of(run(runner)) == []
    ended = await runner.end()
    assert (ended.cause, ended.exited.signal, ended.unfinished) == ("ended", signal.SIGKILL, ())


async def test_a_bundle_may_be_larger_than_a_frame(runners: Runners) -> None:
    runner = await runners.start("total")
    assert await all_of(run(runner, *([1.0] * 20_000 for _ in range(20)))) == [20_000.0] * 20


@pytest.mark.parametrize(
    ("device", "visible"), [("cpu", ""), pytest.param("cuda", "1", marks=pytest.mark.gpu(num_gpus=2))]
)
async def test_a_runner_sees_only_its_device(runners: Runners, device: str, visible: str) -> None:
    runner = await runners.start("where", device=device, gpu_index=1)
    assert await all_of(run(runner, None)) == [(runner.pid, visible)]


async def test_tasks_on_a_cpu_slot_leave_the_cores_to_jobs(runners: Runners) -> None:
    assert await all_of(run(await runners.start("cpu_niceness", cpu_niceness=CPU_NICENESS), 0)) == [CPU_NICENESS]


async def test_an_exception_fails_one_task(runners: Runners) -> None:
    runner = await runners.start()
    before, failed, unpicklable, after = await all_of(run(runner, 1, "raise", "not picklable", 2))
    assert (before, after) == (1, 2)
    assert failed.index == 1
    assert failed.error == "ValueError: no such sample: ?"
    assert 'raise ValueError("no such sample' in failed.traceback
    assert "run_tasks.py" not in failed.traceback
    assert "cannot be pickled" in unpicklable.error


async def test_a_task_above_the_memory_limit_fails_alone(runners: Runners) -> None:
    runner = await runners.start("fill_memory", memory_limit_bytes=256 * MIB)
    small, failed, again = await all_of(run(runner, 100 * MIB, 2048 * MIB, 100 * MIB))
    assert small == again == 100 * MIB
    assert failed.error.startswith("MemoryError")
    assert "the limit is 268,435,456 bytes" in failed.error


async def test_an_overdue_task_fails_and_the_rest_is_unfinished(runners: Runners) -> None:
    runner = await runners.start(task_timeout_s=2.0)
    result, failed, ended = await all_of(run(runner, 1, "endless", 2))
    assert result == 1
    assert isinstance(failed, TaskFailed)
    assert "time-out of 2 s" in failed.error
    assert (ended.cause, ended.under_way) == ("task timed out", TaskKey(1, 1))
    assert ended.unfinished == (TaskKey(1, 2),)


async def test_an_idle_runner_does_not_time_out(runners: Runners) -> None:
    runner = await runners.start(task_timeout_s=2.0)
    assert await all_of(run(runner, 1)) == [1]
    await asyncio.sleep(2.5)
    assert await all_of(run(runner, 2)) == [2]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("no_such_module:f", "cannot import no_such_module: ModuleNotFoundError"),
        ("task_functions:no_such_function", "has no function no_such_function"),
        ("task_functions:not_a_function", "is not callable but of type int"),
        ("task_functions:<lambda>", "define it with def"),
        ("task_functions.double", "write it as package.module:function"),
    ],
)
async def test_a_bad_function_is_one_failure_before_any_task(runners: Runners, function: str, reason: str) -> None:
    runner = await runners.start(function)
    outcomes = run(runner, 1, 2)
    assert not await runner.ready()
    ended = await runner.ended()
    assert (ended.cause, ended.exited.code, ended.under_way) == ("function unusable", ExitCode.FAILED, None)
    assert reason in ended.error
    assert len(ended.unfinished) == 2
    assert await all_of(outcomes) == [ended]


async def test_too_large_inputs_and_results_fail_their_tasks(runners: Runners) -> None:
    runner = await runners.start("make_result")
    outcomes = runner.run(
        1,
        [(0, pickle.dumps(2)), (1, bytes(MAX_TASK_BYTES + 1)), (2, pickle.dumps(MAX_TASK_BYTES)), (3, pickle.dumps(1))],
    )
    by_index = {item.index: item async for item in outcomes if not isinstance(item, RunnerEnded)}
    assert isinstance(by_index[0], TaskDone)
    assert isinstance(by_index[3], TaskDone)
    for index, what in ((1, "input"), (2, "result")):
        failed = by_index[index]
        assert isinstance(failed, TaskFailed)
        assert f"its {what} has 524," in failed.error
        assert "above the limit of 524,288" in failed.error


async def test_output_goes_to_the_log(runners: Runners) -> None:
    runner = await runners.start("print_lines")
    assert await all_of(run(runner, 3)) == [3]
    assert runners.log.read_text().splitlines()[:3] == [f"line {n} of a task that prints" for n in range(3)]


EXECUTOR = """
import asyncio, pickle, sys
from pathlib import Path
from elasticflow.services.executor.processes.launcher import Launcher
from elasticflow.services.executor.processes.task_runner import TaskRunner
from elasticflow.shared.messages.worker_protocol.task_running import RunTasks

async def main():
    folder = Path(sys.argv[1])
    launcher = Launcher(data_dir=folder, node_id="doomed", on_event=lambda *_: None)
    await launcher.start()
    for name in ("idle", "busy"):
        order = RunTasks(
            load_id=name, function="task_functions:misbehave", code_path=sys.argv[2], log_file=str(folder / name)
        )
        runner = await TaskRunner.start(launcher.fork, order)
        assert await runner.ready()
        if name == "busy":
            runner.run(1, [(0, pickle.dumps("child"))])
        print(runner.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_no_runner_outlives_a_killed_executor(tmp_path: Path) -> None:
    executor = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", EXECUTOR, str(tmp_path), USER_CODE), stdout=asyncio.subprocess.PIPE
    )
    assert executor.stdout is not None
    async with asyncio.timeout(WAIT_S):
        pids = [int(await executor.stdout.readline()) for _ in range(2)]
    log = tmp_path / "busy"
    await until(lambda: log.exists() and "\n" in log.read_text())
    child = int(log.read_text().partition("child=")[2].split()[0])
    executor.kill()
    await executor.wait()
    await asyncio.to_thread(wait_until_gone, [*pids, child], timeout_s=30)


async def test_an_executor_that_was_stalled_kills_no_runner(runners: Runners) -> None:
    runner = await runners.start(task_timeout_s=1.0)
    assert await runner.ready()
    outcomes = run(runner, *range(10))
    time.sleep(2.0)  # noqa: ASYNC251 - the stall
    assert await all_of(outcomes) == list(range(10))
    await asyncio.sleep(0.1)
    assert await all_of(run(runner, 11)) == [11]


async def test_a_cpu_slot_uses_its_share_of_a_core(runners: Runners) -> None:
    runner = await runners.start("burn", cpu_share=0.25)
    began_s = time.monotonic()
    used_s = sum(await all_of(run(runner, *[0.02] * 20)))
    assert time.monotonic() - began_s >= 3.0 * used_s, "three quarters of the time are left to others"

"""Runners of padding loads: results, failures of tasks, and ends that leave no process behind."""

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from elasticflow.services.executor.processes import log_rotation
from elasticflow.services.executor.processes.bundle_outcomes import BundleOutcomes, RunnerEnded, TaskKey
from elasticflow.services.executor.processes.reaper import wait_until_gone
from elasticflow.services.executor.processes.task_runner import TaskRunner
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.messages.worker_protocol.task_running import MAX_TASK_BYTES, RunTasks, TaskDone, TaskFailed

pytestmark = pytest.mark.asyncio(loop_scope="session")

USER_CODE = str(Path(__file__).parents[1] / "support" / "user_code")
WAIT_S = 60.0  # far above the usual time
MIB = 1024 * 1024


class Runners:
    """Runners of the node's fork server."""

    def __init__(self, node: Any, folder: Path) -> None:
        self._node, self.folder = node, folder
        self._numbers = count()
        self._started: list[TaskRunner] = []

    async def start(self, function: str = "misbehave", *, task_timeout_s: float = WAIT_S, **more: Any) -> TaskRunner:
        path = f"task_functions:{function}" if function.isidentifier() else function
        self.log = self.folder / f"runner-{next(self._numbers)}.log"
        order = RunTasks(load_id="load", function=path, code_path=USER_CODE, log_file=str(self.log), **more)
        runner = await TaskRunner.start(self._node.launcher.fork, order, task_timeout_s=task_timeout_s)
        self._started.append(runner)
        return runner

    async def close(self) -> None:
        for runner in self._started:
            await runner.preempt()


@pytest_asyncio.fixture(loop_scope="session")
async def runners(node: Any, tmp_path: Path) -> AsyncIterator[Runners]:
    runners = Runners(node, tmp_path)
    yield runners
    await runners.close()


def run(runner: TaskRunner, *inputs: Any, bundle_id: int = 1) -> BundleOutcomes:
    return runner.run(bundle_id, [(index, pickle.dumps(value)) for index, value in enumerate(inputs)])


async def all_of(outcomes: BundleOutcomes) -> list[Any]:
    """Results of finished tasks, other outcomes as they are."""
    async with asyncio.timeout(WAIT_S):
        return [pickle.loads(item.result) if isinstance(item, TaskDone) else item async for item in outcomes]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - processes do not signal their work
            await asyncio.sleep(0.005)


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


async def test_end_waits_for_the_pending_tasks(runners: Runners) -> None:
    runner = await runners.start("double")
    outcomes = run(runner, *range(50))
    assert (await runner.end()).cause == "ended"
    assert len(await all_of(outcomes)) == 50


async def test_a_bundle_may_be_larger_than_a_frame(runners: Runners) -> None:
    runner = await runners.start("total")
    assert await all_of(run(runner, *([1.0] * 20_000 for _ in range(20)))) == [20_000.0] * 20


@pytest.mark.parametrize(
    ("device", "visible"), [("cpu", ""), pytest.param("cuda", "1", marks=pytest.mark.gpu(num_gpus=2))]
)
async def test_a_runner_sees_only_its_device(runners: Runners, device: str, visible: str) -> None:
    runner = await runners.start("where", device=device, gpu_index=1)
    assert await all_of(run(runner, None)) == [(runner.pid, visible)]


async def test_an_exception_fails_one_task(runners: Runners) -> None:
    runner = await runners.start()
    before, failed, unpicklable, after = await all_of(run(runner, 1, "raise", "not picklable", 2))
    assert (before, after) == (1, 2)
    assert failed.index == 1
    assert failed.error == "ValueError: no such sample: ?"
    assert 'raise ValueError("no such sample' in failed.traceback
    assert "run_tasks.py" not in failed.traceback
    assert "cannot be pickled" in unpicklable.error


@pytest.mark.parametrize(
    ("deed", "code", "signal_number"),
    [
        ("sys.exit", 3, None),
        ("os._exit", 4, None),
        ("segfault", None, signal.SIGSEGV),
        ("kill itself", None, signal.SIGKILL),
    ],
)
async def test_a_task_that_ends_the_process_is_known(
    runners: Runners, deed: str, code: int | None, signal_number: int | None
) -> None:
    runner = await runners.start()
    first, second = run(runner, 1, deed, 2), run(runner, 3, bundle_id=2)
    result, ended = await all_of(first)
    assert result == 1
    assert (ended.exited.code, ended.exited.signal) == (code, signal_number)
    assert ended.cause == ("exited" if code else "signalled")
    assert ended.under_way == TaskKey(1, 1)
    assert ended.unfinished == (TaskKey(1, 1), TaskKey(1, 2), TaskKey(2, 0))
    assert await all_of(second) == [ended]
    (later,) = await all_of(run(runner, 4, bundle_id=3))
    assert (later.cause, later.under_way, later.unfinished) == (ended.cause, None, (TaskKey(3, 0),))


async def test_a_task_that_breaks_the_gpu_fails_and_ends_the_runner(runners: Runners) -> None:
    runner = await runners.start()
    result, failed, ended = await all_of(run(runner, 1, "break the GPU", 2))
    assert result == 1
    assert "illegal memory access" in failed.error
    assert (ended.cause, ended.exited.code, ended.under_way) == ("exited", ExitCode.FAILED, None)
    assert ended.unfinished == (TaskKey(1, 2),)


async def test_a_lost_gpu_is_no_failure_of_the_task(runners: Runners) -> None:
    runner = await runners.start()
    result, ended = await all_of(run(runner, 1, "lose the GPU", 2))
    assert result == 1
    assert (ended.cause, ended.exited.code) == ("exited", ExitCode.DEVICE_UNUSABLE)
    assert ended.unfinished == (TaskKey(1, 1), TaskKey(1, 2))


async def test_a_task_above_the_memory_limit_fails_alone(runners: Runners) -> None:
    runner = await runners.start("fill_memory", memory_limit_bytes=256 * MIB)
    small, failed, again = await all_of(run(runner, 100 * MIB, 2048 * MIB, 100 * MIB))
    assert small == again == 100 * MIB
    assert failed.error.startswith("MemoryError")
    assert "the limit is 268,435,456 bytes" in failed.error


async def test_an_overdue_task_fails_and_the_rest_is_unfinished(runners: Runners) -> None:
    runner = await runners.start(task_timeout_s=0.5)
    result, failed, ended = await all_of(run(runner, 1, "endless", 2))
    assert result == 1
    assert isinstance(failed, TaskFailed)
    assert "time-out of 0.5 s" in failed.error
    assert (ended.cause, ended.under_way) == ("task timed out", TaskKey(1, 1))
    assert ended.unfinished == (TaskKey(1, 2),)


async def test_an_idle_runner_does_not_time_out(runners: Runners) -> None:
    runner = await runners.start(task_timeout_s=0.1)
    assert await all_of(run(runner, 1)) == [1]
    await asyncio.sleep(0.3)
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


async def test_preemption_ends_the_whole_process_group(runners: Runners) -> None:
    runner = await runners.start()
    outcomes = run(runner, 1, "child", 2)
    await until(lambda: runners.log.exists() and "\n" in runners.log.read_text())
    child = int(runners.log.read_text().partition("child=")[2].split()[0])
    os.killpg(runner.pid, signal.SIGTERM)  # ignored by the runner, but not by its child
    ended = await runner.preempt()
    assert (ended.cause, ended.under_way) == ("preempted", TaskKey(1, 1))
    assert ended.unfinished == (TaskKey(1, 1), TaskKey(1, 2))
    wait_until_gone([runner.pid, child], timeout_s=0.0)
    assert await all_of(outcomes) == [1, ended]


async def test_preemption_is_idempotent_at_any_time(runners: Runners) -> None:
    not_ready = await runners.start()
    outcomes = run(not_ready, 1)
    ended = await not_ready.preempt()
    assert ended.cause == "preempted"
    assert len(ended.unfinished) + len(await all_of(outcomes)) >= 1
    idle = await runners.start()
    assert await idle.ready()
    first, second = await asyncio.gather(idle.preempt(), idle.preempt())
    assert first == second == await idle.preempt() == await idle.end()
    assert (first.cause, first.unfinished, first.under_way) == ("preempted", (), None)


async def test_endless_output_is_bounded(runners: Runners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_rotation, "_POLL_S", 0.02)
    runner = await runners.start()
    run(runner, "print without end")
    rotated = runners.log.with_name(f"{runners.log.name}.1")
    await until(rotated.exists)
    before = rotated.stat().st_mtime_ns
    await until(lambda: rotated.stat().st_mtime_ns > before)
    await runner.preempt()
    assert rotated.stat().st_size <= log_rotation.MAX_LOG_BYTES


async def test_output_goes_to_the_log(runners: Runners) -> None:
    runner = await runners.start("print_lines")
    assert await all_of(run(runner, 3)) == [3]
    assert runners.log.read_text().splitlines()[:3] == [f"line {n} of a task that prints" for n in range(3)]


@pytest.mark.parametrize(
    ("deed", "reason"), [("garbage", "a frame of"), ("forged", "not under way"), ("close", "runs on")]
)
async def test_a_runner_with_hostile_messages_is_killed(runners: Runners, deed: str, reason: str) -> None:
    runner = await runners.start()
    result, ended = await all_of(run(runner, 1, deed, 2))
    assert result == 1
    assert (ended.cause, ended.exited.signal, ended.under_way) == ("channel broken", signal.SIGKILL, TaskKey(1, 1))
    assert reason in ended.error


async def test_a_process_that_a_task_forks_is_no_second_runner(runners: Runners) -> None:
    runner = await runners.start()
    assert await all_of(run(runner, "fork and return", 2, 3)) == ["parent", 2, 3]


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_runner_ends_with_its_channel(runners: Runners, is_busy: bool) -> None:
    runner = await runners.start("wait_for")
    assert await runner.ready()
    if is_busy:
        file = runners.folder / "go"
        run(runner, str(file))
        await until(Path(f"{file}.waiting").exists)
    runner._process.writer.close()  # as the kernel does for an executor that is gone
    ended = await runner.ended()
    assert ended.exited.signal == signal.SIGKILL
    wait_until_gone([runner.pid], timeout_s=0.0)


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


async def test_fifty_runners_leave_no_process_and_no_open_file(runners: Runners) -> None:
    first = await runners.start("double")
    server = psutil.Process(psutil.Process(first.pid).ppid())
    await first.preempt()
    await asyncio.sleep(0.1)  # for closing transports
    own = psutil.Process()
    before = own.num_fds(), server.num_fds(), {child.pid for child in server.children(recursive=True)}
    for _ in range(50):
        runner = await runners.start("double")
        assert await all_of(run(runner, 1)) == [2]
        await runner.preempt()
    await asyncio.sleep(0.1)
    assert (own.num_fds(), server.num_fds(), {child.pid for child in server.children(recursive=True)}) == before
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not any(name.startswith("runner ") for name in names), names

"""Runners of padding loads end as a task, a message or the executor demands, and leave no process behind."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from elasticflow.services.executor.processes import job_logs, task_runner
from elasticflow.services.executor.processes.fork_server_client import wait_until_gone
from elasticflow.services.executor.processes.task_runner import TaskKey
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.runtime.process.files import BLOCK_BYTES
from tests.support.holes import skip_without_holes
from tests.support.task_runners import Runners, all_of, run, until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_end_waits_for_the_pending_tasks(runners: Runners) -> None:
    runner = await runners.start("double")
    outcomes = run(runner, *range(50))
    assert (await runner.end()).cause == "ended"
    assert len(await all_of(outcomes)) == 50


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
    skip_without_holes(runners.folder)
    monkeypatch.setattr(job_logs, "_POLL_S", 0.02)
    runner = await runners.start()
    run(runner, "print without end")
    await until(lambda: runners.log.exists() and runners.log.stat().st_size > 3 * job_logs.MAX_LOG_BYTES)
    await runner.preempt()
    max_bytes = job_logs.MAX_LOG_BYTES + 2 * BLOCK_BYTES
    await until(lambda: runners.log.stat().st_blocks * 512 <= max_bytes)  # what came last is freed at the next look


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
    runner._process.channel._socket.shutdown(socket.SHUT_RDWR)  # as the kernel does for an executor that is gone
    ended = await runner.ended()
    assert ended.exited.signal == signal.SIGKILL
    wait_until_gone([runner.pid], timeout_s=0.0)


async def test_fifty_runners_leave_no_process_and_no_open_file(runners: Runners) -> None:
    first = await runners.start("double")
    server = psutil.Process(psutil.Process(first.pid).ppid())
    await first.preempt()
    own = psutil.Process()

    def kept() -> tuple[int, int, int]:
        return own.num_fds(), server.num_fds(), len(server.children(recursive=True))

    await asyncio.sleep(0.1)  # for closing transports
    before = kept()
    for _ in range(50):
        runner = await runners.start("double")
        assert await all_of(run(runner, 1)) == [2]
        await runner.preempt()
    await until(lambda: all(now <= then for now, then in zip(kept(), before, strict=True)))
    await until(lambda: not any(task.get_name().startswith("runner ") for task in asyncio.all_tasks()))


async def test_a_runner_whose_function_is_not_loaded_in_time_is_killed(
    runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "START_TIMEOUT_S", 0.2)
    runner = await runners.start("endless_import:function")
    outcomes = run(runner, 1)
    assert not await runner.ready()
    ended = await runner.ended()
    assert (ended.cause, ended.under_way, ended.unfinished) == ("start timed out", None, (TaskKey(1, 0),))
    assert "was not imported within" in ended.error
    assert await all_of(outcomes) == [ended]


async def test_outcomes_before_the_end_are_not_lost_to_a_late_bundle(runners: Runners) -> None:
    """The write of the bundle fails before the executor has read the last outcomes."""
    runner = await runners.start()
    assert await runner.ready()
    first = run(runner, 1, "os._exit")
    wait_until_gone([runner.pid], timeout_s=60.0)  # meanwhile this process reads nothing
    second = run(runner, 2, bundle_id=2)
    result, ended = await all_of(first)
    assert result == 1
    assert ended.under_way == TaskKey(1, 1)
    assert await all_of(second) == [ended]

"""Real runners of a real fork server on this machine, each beside the operating system's own time in the same run."""

import asyncio
import itertools
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.report import Measured, Row
from benchmarks.timing import spread_ms
from elasticflow.services.executor.loads.padding_slot import CPU_NICENESS
from elasticflow.services.executor.processes.launcher import Launcher
from elasticflow.services.executor.processes.task_runner import MAX_BUNDLES, TaskRunner
from elasticflow.shared.messages.worker_protocol.task_running import RunTasks, TaskDone

_ROOT = Path(__file__).parents[2]
_BUNDLE_SIZE = 100
_NOTHING = pickle.dumps(None)
_GIB = 1 << 30


class Runners:
    """Starts runners of one launcher."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self._launcher, self._folder = launcher, folder
        self._numbers = itertools.count()

    async def start(self, function: str) -> TaskRunner:
        """Return as soon as it is forked."""
        self.log_file = self._folder / f"runner-{next(self._numbers)}.log"
        order = RunTasks(
            load_id="benchmark",
            function=f"benchmarks.padding.task_functions:{function}",
            code_path=str(_ROOT),
            log_file=str(self.log_file),
            cpu_niceness=CPU_NICENESS,
        )
        return await TaskRunner.start(self._launcher.fork, order)

    async def kill_unused_s(self) -> float:
        """Seconds from the SIGKILL of a fork that waits for its first message until it is reaped."""
        process = await self._launcher.fork()
        began_s = time.perf_counter()
        process.kill()
        await process.exited
        killed_s = time.perf_counter() - began_s
        process.channel.close()
        return killed_s


@asynccontextmanager
async def running_launcher() -> AsyncIterator[Runners]:
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(data_dir=Path(folder), node_id="benchmark", on_event=lambda *_: None)
        await launcher.start()
        try:
            yield Runners(launcher, Path(folder))
        finally:
            await launcher.close()


async def measure_runners(*, scale: float) -> Measured:
    """All measurements below. scale: of the work."""
    async with running_launcher() as runners:
        return {
            "start": await measure_start(runners, num_rounds=int(200 * scale)),
            "gaps": await measure_gaps(runners, num_bundles=int(1000 * scale)),
            "throughput": await measure_throughput(runners, num_bundles=int(1000 * scale)),
            "preemption": await measure_preemption(runners, num_rounds=int(200 * scale), num_bytes=1),
            "preemption_1_gib": await measure_preemption(runners, num_rounds=int(50 * scale), num_bytes=_GIB),
        }


async def measure_start(runners: Runners, *, num_rounds: int) -> Measured:
    """The time from the call of `start` to the loaded function, beside a new Python interpreter that does nothing."""
    starts_s, interpreters_s = list[float](), list[float]()
    for _ in range(num_rounds):
        began_s = time.perf_counter()
        runner = await runners.start("nothing")
        assert await runner.ready()
        starts_s.append(time.perf_counter() - began_s)
        await runner.preempt()
        interpreters_s.append(_interpreter_s())
    return {"rounds": num_rounds, "start_ms": spread_ms(starts_s), "python_c_pass_ms": spread_ms(interpreters_s)}


async def measure_gaps(runners: Runners, *, num_bundles: int) -> Measured:
    """Between the end of a task and the start of the next one, within and between bundles of 100 tasks."""
    runner = await runners.start("times")
    assert await runner.ready()
    times: list[tuple[float, float]] = []
    async for done in _outcomes(runner, num_bundles):
        times.append(pickle.loads(done.result))
    await runner.end()
    gaps_s = [began_s - ended_s for (_, ended_s), (began_s, _) in itertools.pairwise(times)]
    between_s = gaps_s[_BUNDLE_SIZE - 1 :: _BUNDLE_SIZE]
    del gaps_s[_BUNDLE_SIZE - 1 :: _BUNDLE_SIZE]
    return {"bundles": num_bundles, "within_ms": spread_ms(gaps_s), "between_ms": spread_ms(between_s)}


async def measure_throughput(runners: Runners, *, num_bundles: int) -> Measured:
    """Empty tasks per second of one runner, from the first bundle that is sent to the last outcome."""
    runner = await runners.start("nothing")
    assert await runner.ready()
    began_s = time.perf_counter()
    num_tasks = 0
    async for _ in _outcomes(runner, num_bundles):
        num_tasks += 1
    took_s = time.perf_counter() - began_s
    await runner.end()
    return {"tasks": num_tasks, "tasks_per_s": num_tasks / took_s}


async def measure_preemption(runners: Runners, *, num_rounds: int, num_bytes: int) -> Measured:
    """The time from the call of `preempt` during a task to the reaped process group.

    Beside it: a killed `sleep`, and a killed fork of the same server that has done nothing, which shows what the kernel
    needs to free the pages of a process with torch. num_bytes: memory that the task holds.
    """
    preempted_s, killed_s, unused_s = list[float](), list[float](), list[float]()
    for _ in range(num_rounds):
        runner = await runners.start("hold_memory")
        runner.run(1, [(0, pickle.dumps(num_bytes))])
        while not (runners.log_file.exists() and runners.log_file.read_text()):
            await asyncio.sleep(0.002)
        began_s = time.perf_counter()
        ended = await runner.preempt()
        preempted_s.append(time.perf_counter() - began_s)
        assert len(ended.unfinished) == 1
        killed_s.append(kill_and_wait_s())
        unused_s.append(await runners.kill_unused_s())
    return {
        "rounds": num_rounds,
        "num_bytes": num_bytes,
        "preempt_ms": spread_ms(preempted_s),
        "sigkill_and_waitpid_ms": spread_ms(killed_s),
        "unused_fork_ms": spread_ms(unused_s),
    }


def _interpreter_s() -> float:
    """Seconds of a Python interpreter that does nothing, from its fork to its end."""
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began_s


def kill_and_wait_s() -> float:
    """Seconds from the SIGKILL of a sleeping process until it is reaped."""
    with subprocess.Popen(["sleep", "3600"]) as process:
        time.sleep(0.005)  # it has called exec, and sleeps
        began_s = time.perf_counter()
        process.kill()
        process.wait()
        return time.perf_counter() - began_s


async def _outcomes(runner: TaskRunner, num_bundles: int) -> AsyncIterator[TaskDone]:
    """The outcomes of bundles of empty inputs. One is executed while another waits in the runner."""
    tasks = [(index, _NOTHING) for index in range(_BUNDLE_SIZE)]
    waiting = [runner.run(bundle_id, tasks) for bundle_id in range(min(MAX_BUNDLES, num_bundles))]
    for bundle_id in range(num_bundles):
        async for outcome in waiting.pop(0):
            assert isinstance(outcome, TaskDone), outcome
            yield outcome
        if bundle_id + MAX_BUNDLES < num_bundles:
            waiting.append(runner.run(bundle_id + MAX_BUNDLES, tasks))


def rows(measured: Measured) -> Iterator[Row]:
    start, gaps = measured["start"], measured["gaps"]
    for percentile, goal in (("p50", "<= 300 ms"), ("p99", "")):
        beside = f"python -c pass: {start['python_c_pass_ms'][percentile]:.1f} ms"
        yield Row(f"start, {percentile}", f"{start['start_ms'][percentile]:.1f} ms", goal, beside)
    for where in ("within", "between"):
        gap = gaps[f"{where}_ms"]
        beside = f"p99 {gap['p99'] * 1e3:.0f} µs"
        yield Row(f"gap {where} bundles, p50", f"{gap['p50'] * 1e3:.0f} µs", "<= 1,000 µs", beside)
    yield Row("empty tasks in bundles of 100", f"{measured['throughput']['tasks_per_s']:,.0f}/s", ">= 5,000/s")
    for key, what in (("preemption", "preemption"), ("preemption_1_gib", "preemption, 1 GiB of memory")):
        times = measured[key]
        for percentile, goal in (("p50", "<= 10 ms"), ("p99", "<= 50 ms")):
            beside = (
                f"SIGKILL of sleep: {times['sigkill_and_waitpid_ms'][percentile]:.1f} ms, "
                f"of an unused fork: {times['unused_fork_ms'][percentile]:.1f} ms"
            )
            goal = goal if key == "preemption" else ""
            yield Row(f"{what}, {percentile}", f"{times['preempt_ms'][percentile]:.1f} ms", goal, beside)

"""Whole loads on an otherwise idle pool: tasks per second, three tenants, an open load; and the streams they pass.

In the streams one client publishes, pulls and acknowledges one message after another, so that the numbers are of
latencies: each publish waits until the embedded server has written it to disk. Executors and clients work concurrently
and get more.
"""

import asyncio
import contextlib
import itertools
import queue
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from nats.aio.client import Client

from benchmarks.padding.loaded_pool import Backlog, backlogged, loaded_pool, mapped
from benchmarks.padding.task_functions import draw, nothing, rest
from benchmarks.report import Measured, Row
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.padding_tasks import (
    ResultBatch,
    TaskBundle,
    TaskResult,
    decode_bundle,
    decode_results,
    encode_bundle,
    encode_results,
)
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from testbed.real_pool import RunningPool

# --- work queues and result streams beside single messages ---------------------------------------------


POOL = "bench"
_TIMEOUT_S = 30.0


async def measure_streams(
    *, num_messages: int = 1_000, input_bytes: int = 100, tasks_per_bundle: tuple[int, ...] = (1, 100)
) -> dict[str, dict[str, float]]:
    """Messages and tasks per second, by what was measured.

    num_messages: in each of the measurements. input_bytes: of one task, and of its result.
    """
    with tempfile.TemporaryDirectory(prefix="ef-bench-") as folder, EmbeddedServer(Path(folder)) as server:
        bus = await connect_nats(server.url, name="benchmark")
        try:
            await bus.ensure_pool(POOL)
            measured = {"raw": await _raw(server.url, num_messages, input_bytes)}
            for num_tasks in tasks_per_bundle:
                bundles = _bundles(num_messages, num_tasks, input_bytes)
                of_bundles = await _through_bus(bus, f"load-{num_tasks}", bundles)
                of_results = await _results(bus, num_messages, num_tasks, input_bytes)
                measured[f"bundles_of_{num_tasks}"] = of_bundles | of_results
            return measured
        finally:
            await bus.close()


async def _raw(url: str, num_messages: int, num_bytes: int) -> dict[str, float]:
    """nats-py alone, on the stream of the pool."""
    client = Client()
    await client.connect(url)
    try:
        jetstream, subject = client.jetstream(), subjects.tasks(POOL, "raw")
        with _Stopwatch() as publishing:
            for _ in range(num_messages):
                await jetstream.publish(subject, bytes(num_bytes))
        consumer = await jetstream.pull_subscribe(subject, durable="raw", stream=streams.task_stream(POOL))
        with _Stopwatch() as pulling:
            for _ in range(num_messages):
                (message,) = await consumer.fetch(1, timeout=_TIMEOUT_S)
                await message.ack()
        return _per_second(num_messages, publish=publishing.s, pull_and_ack=pulling.s)
    finally:
        await client.close()


async def _through_bus(bus: Bus, load_id: str, bundles: list[TaskBundle]) -> dict[str, float]:
    """Bundles encoded and appended, then pulled, decoded and acknowledged."""
    with _Stopwatch() as publishing:
        for number, bundle in enumerate(bundles):
            subject = subjects.tasks(POOL, load_id)
            await bus.append(subject, encode_bundle(bundle), message_id=f"{load_id}-{number}")
    queue = await bus.tasks(POOL, load_id)
    num_tasks = 0
    with _Stopwatch() as pulling:
        for _ in bundles:
            (item,) = await queue.pull(1, _TIMEOUT_S)
            num_tasks += len(decode_bundle(item.data).tasks)
            await item.ack()
    await queue.close()
    await bus.delete_load(POOL, load_id, with_results=True)
    per_second = _per_second(len(bundles), publish=publishing.s, pull_and_ack=pulling.s)
    return per_second | _per_second(num_tasks, publish_tasks=publishing.s, pull_and_ack_tasks=pulling.s)


async def _results(bus: Bus, num_messages: int, tasks_per_bundle: int, num_bytes: int) -> dict[str, float]:
    """The results of bundles stored one after another, then read."""
    load_id = f"results-{tasks_per_bundle}"
    num_tasks = num_messages * tasks_per_bundle
    with _Stopwatch() as storing:
        for first in range(0, num_tasks, tasks_per_bundle):
            await _store(bus, load_id, range(first, first + tasks_per_bundle), num_bytes)
    num_read = 0
    with _Stopwatch() as reading:
        async for batch in bus.results(POOL, load_id):
            num_read += sum(len(decode_results(record.data).results) for record in batch)
            if num_read == num_tasks:
                break
    await bus.delete_load(POOL, load_id, with_results=True)
    return _per_second(num_tasks, store_tasks=storing.s, read_tasks=reading.s)


async def _store(bus: Bus, load_id: str, indices: range, num_bytes: int) -> None:
    results = (
        TaskResult(index=index, value=bytes(num_bytes), attempts=1, task_s=0.1, node_id="node-0") for index in indices
    )
    data = encode_results(ResultBatch(results=tuple(results)))
    subject = subjects.results(POOL, load_id, indices[0], indices[-1])
    await bus.append(subject, data, message_id=f"{load_id}-{indices[0]}")


def _bundles(count: int, num_tasks: int, input_bytes: int) -> list[TaskBundle]:
    tasks = [(index, bytes(input_bytes)) for index in range(count * num_tasks)]
    return [TaskBundle(tasks=tuple(tasks[start : start + num_tasks])) for start in range(0, len(tasks), num_tasks)]


def _per_second(count: int, **taken_s: float) -> dict[str, float]:
    return {f"{name}_per_s": count / seconds for name, seconds in taken_s.items()}


class _Stopwatch:
    """s: the seconds that its block took."""

    def __enter__(self) -> "_Stopwatch":
        self.s = 0.0
        self._start_s = asyncio.get_running_loop().time()
        return self

    def __exit__(self, *error: object) -> None:
        self.s = asyncio.get_running_loop().time() - self._start_s


# --- whole loads ---------------------------------------------------------------------------------------


_NUM_SLOTS = 2
_EMPTY_TASK_S = 1e-4
_RAW_MESSAGES = 2_000


async def measure_whole_loads(*, num_empty_tasks: int, num_tasks: int, task_s: float = 0.05) -> Measured:
    """Empty tasks per second beside single messages of nats-py, and the useful share of tasks of `task_s` seconds.

    The share is of two slots, from the call of `map` to its last result.
    """
    async with loaded_pool() as pool:
        empty = [None] * num_empty_tasks
        await mapped(pool, nothing, empty[:100], load_id="warm-up", task_s=_EMPTY_TASK_S)
        results, empty_s = await mapped(pool, nothing, empty, load_id="empty", task_s=_EMPTY_TASK_S)
        assert len(results) == num_empty_tasks
        _, long_s = await mapped(pool, rest, [task_s] * num_tasks, load_id="long", task_s=task_s)
    raw = (await measure_streams(num_messages=min(_RAW_MESSAGES, num_empty_tasks), tasks_per_bundle=()))["raw"]
    return {
        "empty_tasks": num_empty_tasks,
        "empty_tasks_per_s": num_empty_tasks / empty_s,
        "raw_messages_per_s": 1.0 / (1.0 / raw["publish_per_s"] + 1.0 / raw["pull_and_ack_per_s"]),
        "task_s": task_s,
        "tasks": num_tasks,
        "tasks_took_s": long_s,
        "useful_share": num_tasks * task_s / (_NUM_SLOTS * long_s),
    }


def whole_load_rows(measured: Measured) -> list[Row]:
    raw = f"publish, pull and ack, one by one: {measured['raw_messages_per_s']:,.0f}/s"
    useful = f"{measured['tasks']} tasks took {measured['tasks_took_s']:.1f} s"
    return [
        Row("empty tasks of a whole load", f"{measured['empty_tasks_per_s']:,.0f}/s", ">= 5,000/s", raw),
        Row(f"useful share, tasks of {measured['task_s']:g} s", f"{measured['useful_share']:.1%}", "", useful),
    ]


# --- three tenants on two slots ------------------------------------------------------------------------


_FAIR_TASK_S = 0.05
_TENANTS = ("ada", "ben", "cleo")


async def measure_fairness(*, num_windows: int, window_s: float) -> Measured:
    """Jain's index of the tenants' GPU seconds in each window. A task counts when its result arrives."""
    async with loaded_pool() as pool, contextlib.AsyncExitStack() as loads:
        # enough for the first load alone until all have begun, also on a slow machine
        num_tasks = int(10 * num_windows * window_s / _FAIR_TASK_S)
        backlogs: list[Backlog] = [
            await loads.enter_async_context(
                backlogged(pool, "rest", _FAIR_TASK_S, load_id=f"of-{tenant}", num_tasks=num_tasks, tenant=tenant)
            )
            for tenant in _TENANTS
        ]
        bounds_s = time.monotonic() + window_s * np.arange(num_windows + 1)
        await asyncio.sleep(num_windows * window_s)
    gpu_s_TW = np.array([_in_windows(backlog, bounds_s) for backlog in backlogs])  # tenants T, windows W
    jain_W = gpu_s_TW.sum(0) ** 2 / (len(_TENANTS) * (gpu_s_TW**2).sum(0))
    return {
        "window_s": window_s,
        "gpu_s": {tenant: gpu_s.tolist() for tenant, gpu_s in zip(_TENANTS, gpu_s_TW, strict=True)},
        "jain": jain_W.tolist(),
        "least_jain": float(jain_W.min()),
    }


def _in_windows(backlog: Backlog, bounds_s: np.ndarray) -> np.ndarray:
    arrived_s, task_s = np.array(backlog.gpu_s).T
    return np.histogram(arrived_s, bins=bounds_s, weights=task_s)[0]


def fairness_rows(measured: Measured) -> list[Row]:
    shares = ", ".join(f"{tenant} {sum(gpu_s):.1f} s" for tenant, gpu_s in measured["gpu_s"].items())
    what = f"Jain's index of three tenants, worst of {len(measured['jain'])} windows of {measured['window_s']:g} s"
    return [Row(what, f"{measured['least_jain']:.4f}", "", shares)]


# --- an idle control plane -----------------------------------------------------------------------------


_SETTLED_S = 10.0  # later than the start of services, and than the last report of the load's progress


async def measure_idle(*, seconds: float, settled_s: float = _SETTLED_S) -> Measured:
    """The CPU use in percent of a core, by process: the services of one node and NATS."""
    async with loaded_pool() as pool:
        await asyncio.sleep(settled_s)
        without = await _cpu_percent(pool, seconds)
        inputs: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        inputs.put(0)
        mapping = asyncio.create_task(mapped(pool, draw, iter(inputs.get, None), load_id="open"))
        await pool.when(lambda state: "open" in state.loads and state.loads["open"].num_results == 1, "it has a result")
        await asyncio.sleep(settled_s)
        beside = await _cpu_percent(pool, seconds)
        inputs.put(None)
        await mapping
    return {"seconds": seconds, "percent_without_load": without, "percent_with_open_load": beside}


async def _cpu_percent(pool: RunningPool, seconds: float) -> dict[str, float]:
    before = _cpu_s(pool)
    await asyncio.sleep(seconds)
    after = _cpu_s(pool)
    return {name: 100.0 * (after[name] - before[name]) / seconds for name in after}


def _cpu_s(pool: RunningPool) -> dict[str, float]:
    """The CPU time of each service since its start; its children count with it."""
    cpu_s = dict[str, float]()
    for name, pid in pool.pids().items():
        process = psutil.Process(pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        cpu_s[name] = sum(itertools.chain.from_iterable((time.user, time.system) for time in times))
    return cpu_s


def idle_rows(measured: Measured) -> list[Row]:
    without, beside = (sum(measured[key].values()) for key in ("percent_without_load", "percent_with_open_load"))
    return [
        Row("CPU of an idle pool with an open load", f"{beside:.2f} % of a core", "< 3 %", f"{without:.2f} % without")
    ]

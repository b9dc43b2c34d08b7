"""Short measurements of what users wait for, each repeated in turn with its peer or limit in the same run.

Decisions and simulations only compute: their CPU time stands beside that of `reference_work`, a fixed piece of Python
and numpy. Whatever waits stands beside the least that it must wait for, in wall time.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from benchmarks.engine.crew import running_engine
from benchmarks.engine.resizes import Resized
from benchmarks.engine.steady import measure_steady
from benchmarks.pipeline.cluster import running_cluster
from benchmarks.pipeline.latency import measure_burst, measure_latency, raw_publishes_per_s
from benchmarks.regressions.ratios import Beside
from benchmarks.scheduling.decisions import WARM_UP_JOBS, measure_answers, measure_decisions, measure_run, two_months
from benchmarks.scheduling.workloads import Case
from benchmarks.timing import children_cpu_s, timed
from elasticflow.shared.runtime.service.run_service import keep_what_is_loaded
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.simulator.workload.throughput_tables import Throughputs, read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import bundled_throughputs, bundled_trace

_BURST, _SMALL_BURST = 2_000, 100  # submissions
_PLACED, _RATE_PER_S = 200, 50.0
_LIVE_JOBS, _REQUESTS, _QUOTES = 250, 100, 40
_TRACES, _TRACE_GPUS = ("small", "bursty"), 64
_MONTHS_SHARE = 0.05  # of the two months: 750 jobs on 1,024 GPUs
_MILLION_PARAMETERS, _RESIZES, _STEPS = 1, 3, 10  # resizes and steps in each repeat
_WORK_UNITS = 100


class PartName(StrEnum):
    """What can be measured alone."""

    COMMAND = "command"
    PIPELINE = "pipeline"
    DECISIONS = "decisions"
    SIMULATIONS = "simulations"
    RESIZE = "resize"


@dataclass(frozen=True, slots=True)
class Part:
    """about: what is measured, beside what. measure: takes the number of repeats."""

    about: str
    repeats: int
    measure: Callable[[int], Iterator[Beside]]


# --- processes: the command, the pipeline, a resize ----------------------------------------------------


def _command(repeats: int) -> Iterator[Beside]:
    """CPU seconds of whole processes."""
    yield from asyncio.run(_command_on_a_pool(repeats))


async def _command_on_a_pool(repeats: int) -> list[Beside]:
    measured: list[Beside] = []
    async with running_cluster() as cluster:
        await measure_burst(cluster, num_jobs=_SMALL_BURST, pools=("listed",))
        environment = os.environ | {"NATS_URL": cluster.server.url, "EF_POOL": "listed"}
        commands = {"eflow --version": ("--version",), "eflow jobs": ("jobs",)}
        for _ in range(repeats):
            peer_s = _process_cpu_s(environment, "-c", "pass")
            for what, arguments in commands.items():
                measured.append(Beside(what, _process_cpu_s(environment, "-m", "elasticflow", *arguments), peer_s))
    return measured


def _process_cpu_s(environment: Mapping[str, str], *arguments: str) -> float:
    before_s = children_cpu_s()
    subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
    return children_cpu_s() - before_s


def _pipeline(repeats: int) -> Iterator[Beside]:
    """Each repeat has a new server and new services."""
    for _ in range(repeats):
        yield from asyncio.run(_pipeline_once())


async def _pipeline_once() -> list[Beside]:
    async with running_cluster() as cluster:
        raw_per_s = await raw_publishes_per_s(cluster, _BURST)
        burst = await measure_burst(cluster, num_jobs=_BURST, pools=("burst",))
        latency = await measure_latency(cluster, rate_per_s=_RATE_PER_S, num_jobs=_PLACED)
    placed_s, append_s = latency["submit_to_placed_p50_ms"] / 1e3, latency["append_fsync_p50_ms"] / 1e3
    return [
        Beside("a decision in a burst, beside a raw publish", 1 / burst["decisions_per_s"], 1 / raw_per_s),
        Beside("submit to placed (p50), beside a synced append", placed_s, append_s),
    ]


def _resize(repeats: int) -> Iterator[Beside]:
    yield from asyncio.run(_resizes(_RESIZES * repeats))
    for _ in range(repeats):
        row = measure_steady(
            "perceptron",
            million_parameters=_MILLION_PARAMETERS,
            num_workers=2,
            rounds=_STEPS,
            modes=("bitwise_8",),
        )
        yield Beside("a step's CPU time, beside plain DDP", row["bitwise_8_cpu_s"], row["plain_cpu_s"])


async def _resizes(repeats: int) -> list[Beside]:
    """Two workers join two, whose step just before is the peer. A stop without a transfer is too short to compare."""
    measured: list[Beside] = []
    async with running_engine() as engine:
        job = Resized(engine, _MILLION_PARAMETERS)
        workers = await job.start(2, generation=1)
        for _ in range(repeats):
            step_s = await job.step_s(workers)
            workers, timeline = await job.switch(workers, (0, 1, None, None))
            measured.append(Beside("the stop when two workers join two, beside a step", timeline.stop_s, step_s))
            workers, _ = await job.switch(workers, (0, 1))
        for worker in workers:
            worker.kill()
    return measured


# --- computing: decisions and simulations --------------------------------------------------------------


def _decisions(repeats: int) -> Iterator[Beside]:
    known = read_throughputs(bundled_throughputs())
    for _ in range(repeats):
        yield from _beside_work(partial(_in_a_saturated_pool, known))
        yield from _beside_work(partial(_with_free_gpus, known))


def _in_a_saturated_pool(known: Throughputs) -> dict[str, float]:
    (measured,) = measure_answers(known, sizes=(_LIVE_JOBS,), count=_REQUESTS)
    return {"a request, saturated pool": measured["cpu_ms"]["all"]["mean"] / 1e3}


def _with_free_gpus(known: Throughputs) -> dict[str, float]:
    pool = "with_room"
    measured = measure_decisions(known, num_gpus=2 * _LIVE_JOBS, num_live=_LIVE_JOBS, count=_QUOTES, pools=(pool,))
    cpu_ms = measured[pool]["cpu_ms"]
    return {
        "a request, free GPUs": cpu_ms["decision, all reported"]["mean"] / 1e3,
        "a quote, free GPUs": cpu_ms["quote"]["mean"] / 1e3,
    }


def _simulations(repeats: int) -> Iterator[Beside]:
    """Simulations with all certificates checked."""
    warm_up()
    known = read_throughputs(bundled_throughputs())
    bundled = [
        Case(workload=read_trace(bundled_trace(name), known, True, 0), published_gpus=_TRACE_GPUS) for name in _TRACES
    ]
    cases = [*bundled, two_months(known, _MONTHS_SHARE)]
    keep_what_is_loaded()
    for case in cases:
        measure_run(case.first(WARM_UP_JOBS), verified=True)
    for _ in range(repeats):
        for case in cases:
            yield from _beside_work(partial(_simulated, case))


def _simulated(case: Case) -> dict[str, float]:
    what = f"{len(case.workload.jobs)} jobs on {case.published_gpus} GPUs"
    return {what: measure_run(case, verified=True)["cpu_s"]}


def _beside_work(measure: Callable[[], Mapping[str, float]]) -> list[Beside]:
    """Between two times of reference work. measure: CPU seconds by what."""
    before_s = reference_work_s()
    measured = measure()
    work_s = (before_s + reference_work_s()) / 2
    return [Beside(what, ours_s, work_s) for what, ours_s in measured.items()]


def reference_work_s() -> float:
    """CPU seconds of one piece."""
    _, took = timed(lambda: [reference_work() for _ in range(_WORK_UNITS)])
    return took.cpu_s / _WORK_UNITS


def reference_work() -> float:
    """Objects, dicts and short arrays, as decisions have them, and no code of this project. Never change it: recorded
    ratios are to it."""
    jobs = {f"job-{number}": (number % 8, 0.5 * number) for number in range(2_000)}
    order = sorted(jobs, key=lambda job_id: (-jobs[job_id][0], jobs[job_id][1]))
    free_T = np.full(256, 4_096.0)  # T slots
    for job_id in order[:400]:
        num_gpus, gpu_slots = jobs[job_id]
        until = int(np.searchsorted(np.cumsum(free_T), 1_000.0 * gpu_slots))
        free_T[:until] = np.maximum(free_T[:until] - num_gpus, 0.0)
    return float(free_T.sum())


PARTS: Mapping[PartName, Part] = {
    PartName.COMMAND: Part("the start of the command beside `python -c pass`, CPU time", 10, _command),
    PartName.PIPELINE: Part("a burst beside raw JetStream publishes; submit to placed beside an append", 3, _pipeline),
    PartName.DECISIONS: Part("decisions of admission beside fixed work, CPU time", 5, _decisions),
    PartName.SIMULATIONS: Part(
        "three simulations, all certificates checked, beside fixed work, CPU time", 5, _simulations
    ),
    PartName.RESIZE: Part("a stop-free resize beside a step; a step beside plain DDP", 5, _resize),
}

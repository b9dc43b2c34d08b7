"""`python -m benchmarks.engine.node_loss`: SIGKILL of an executor, to the next step of the workers on the other node.

One job trains on both nodes of a real pool. A seed determines when a node is lost, which one, and whether the placement
service is killed with it. The supervisor restarts what was killed, and the job grows onto the node again. The step must
begin in time and end in time: once a survivor began its first step at once and took 16.9 s for it.
"""

import asyncio
import json
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import torch
import typer
from rich.console import Console
from rich.progress import track

from benchmarks.engine.parts import Row, in_ms, table_of
from benchmarks.report import today
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.runtime.process.logs import configure_logs
from testbed.fault_evidence import Step, steps
from testbed.real_pool import CONFIG, RunningPool, job, running_pool

_HEARTBEAT_TIMEOUT_S = 3.0
_NUM_SLOTS = 4  # of two nodes
_BATCH_SIZE = 8
_JOB = "losing"
_LONGEST_PAUSE_S = 1.0
_SAMPLE_S = 0.02  # for which the job sleeps: more workers are faster on any machine, so the job grows again
_BEGUN_GOAL_S = _HEARTBEAT_TIMEOUT_S + 0.5
_ENDED_GOAL_S = _BEGUN_GOAL_S + _BATCH_SIZE * _SAMPLE_S / (_NUM_SLOTS / 2)  # and one step of the survivors
_CONFIG = replace(
    CONFIG,
    curves={f"steps/b{_BATCH_SIZE}": {num_gpus: num_gpus / (_BATCH_SIZE * _SAMPLE_S) for num_gpus in (1, 2, 4)}},
    heartbeat_timeout_s=_HEARTBEAT_TIMEOUT_S,
    max_restarts=1000,
    max_nodes_lost_at_start=1000,
)


async def measure_node_losses(num_repeats: int, *, seed: int, placement_chance: float) -> dict[str, Any]:
    """repeats: each with the seconds to the beginning and to the end of the next step."""
    rng = np.random.default_rng(seed)
    repeats: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        async with running_pool(Path(folder), num_nodes=2, replicas={}, config=_CONFIG) as pool:
            sleeps = {"step_s": 0.0, "sample_s": _SAMPLE_S}
            spec = job(JobClass.BEST_EFFORT, max_iterations=10**9, hyperparameters=sleeps)
            await pool.acknowledged(spec, _JOB)
            for number in track(range(num_repeats), "losses of a node", console=Console(stderr=True)):
                await pool.when(_trains_on(_NUM_SLOTS), f"it trains on all GPUs, repeat {number}")
                await asyncio.sleep(float(rng.uniform(0, _LONGEST_PAUSE_S)))
                node, with_placement = int(rng.integers(2)), bool(rng.random() < placement_chance)
                repeats.append(await _lose(pool, node, with_placement=with_placement))
            await pool.client.cancel(_JOB)
            await pool.ended([_JOB])
    return {"repeats": repeats, **judged(repeats)}


def judged(repeats: Sequence[Row]) -> dict[str, Row]:
    """Both times of the survivors' first step beside their goals."""
    goals_s = {"begun": _BEGUN_GOAL_S, "ended": _ENDED_GOAL_S}
    return {name: _numbers([repeat[f"{name}_s"] for repeat in repeats], goal_s) for name, goal_s in goals_s.items()}


def _numbers(times_s: Sequence[float], goal_s: float) -> Row:
    return {
        "goal_s": goal_s,
        "p50_s": statistics.median(times_s),
        "p99_s": float(np.percentile(times_s, 99)),
        "worst_s": max(times_s),
        "above_goal": sum(time_s > goal_s for time_s in times_s),
    }


async def _lose(pool: RunningPool, node: int, *, with_placement: bool) -> Row:
    """Kill the executor of a node, and wait for the first step without the workers there."""
    names = [name for name in pool.pids() if name.startswith("executor")]
    killed = [sorted(names)[node], *(["placement"] if with_placement else [])]
    executor, *others = (psutil.Process(_pid(pool, name)) for name in killed)
    lost = {process.pid for process in executor.children(recursive=True)}
    at_s = time.monotonic()
    for process in (executor, *others):
        process.send_signal(signal.SIGKILL)
    while (step := first_without(lost, steps(pool.data_dir), at_s)) is None:
        await asyncio.sleep(0.1)
        assert time.monotonic() < at_s + 20 * _ENDED_GOAL_S, f"no step after the loss of {killed}"
    return {"killed": killed, "begun_s": step[0] - at_s, "ended_s": step[1] - at_s}


def first_without(lost: set[int], recorded: Sequence[Step], since_s: float) -> tuple[float, float] | None:
    """Beginning and end of the first step that no lost process took part in: from the first survivor that begins to
    the last one that ends. None until a survivor has also completed a later step, because all have ended this one
    then."""
    recent = [step for step in recorded if step.began_s > since_s]
    shared = {step.iteration for step in recent if step.pid in lost}
    alone = [step for step in recent if step.pid not in lost and step.iteration not in shared]
    first = min((step.iteration for step in alone), default=0)
    of_first = [step for step in alone if step.iteration == first]
    if len(of_first) == len(alone):
        return None
    return min(step.began_s for step in of_first), max(step.ended_s for step in of_first)


def _trains_on(num_gpus: int) -> Any:
    def holds(state: Any) -> bool:
        one = state.live_jobs.get(_JOB)
        return one is not None and len(one.gpus) == num_gpus and one.training and one.iterations_per_s is not None

    return holds


def _pid(pool: RunningPool, name: str) -> int:
    pid = pool.pid(name)
    assert pid is not None, f"{name} runs"
    return pid


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Lose a node so many times.")] = 200,
    seed: int = 0,
    placement_chance: Annotated[
        float, typer.Option(min=0, max=1, help="Kill the placement service too with this probability.")
    ] = 0.4,
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file.")] = None,
) -> None:
    """Measure how long survivors stand still. Exit code 1 if a repeat misses the goal."""
    configure_logs(level="error")
    measured = asyncio.run(measure_node_losses(repeats, seed=seed, placement_chance=placement_chance))
    result = {"date": today(), "torch": torch.__version__, "seed": seed, **measured}
    table = table_of(f"{repeats} losses of a node: ms to the next step", "", "p50", "p99", "worst", "goal", "above it")
    for name in ("begun", "ended"):
        numbers = result[name]
        table.add_row(name, *in_ms(numbers, "p50_s", "p99_s", "worst_s", "goal_s"), str(numbers["above_goal"]))
    Console(width=140).print(table)
    if out:
        out.write_text(json.dumps(result, indent=2) + "\n")
    raise typer.Exit(int(any(result[name]["above_goal"] for name in ("begun", "ended"))))


if __name__ == "__main__":
    typer.run(main)

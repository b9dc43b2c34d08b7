"""`python -m benchmarks.engine.node_loss`: SIGKILL of an executor, to the next step of the workers on the other node.

One job trains on both nodes of a real pool. A seed determines when a node is lost, which one, and whether the placement
service is killed with it. The supervisor restarts what was killed, and the job grows onto the node again.
"""

import asyncio
import json
import signal
import statistics
import tempfile
import time
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
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.runtime.process.logs import configure_logs
from tests.support.fault_evidence import steps
from tests.support.real_pool import CONFIG, RunningPool, job, running_pool

_HEARTBEAT_TIMEOUT_S = 3.0
_GOAL_S = _HEARTBEAT_TIMEOUT_S + 0.5
_NUM_SLOTS = 4  # of two nodes
_JOB = "losing"
_PLACEMENT_CHANCE = 0.4
_LONGEST_PAUSE_S = 1.0
_SAMPLE_S = 0.02  # for which the job sleeps: more workers are faster on any machine, so the job grows again
_CONFIG = replace(
    CONFIG,
    curves={"steps/b8": {num_gpus: num_gpus / (8 * _SAMPLE_S) for num_gpus in (1, 2, 4)}},
    heartbeat_timeout_s=_HEARTBEAT_TIMEOUT_S,
    max_restarts=1000,
    max_nodes_lost_at_start=1000,
)


async def measure_node_losses(num_repeats: int, *, seed: int) -> dict[str, Any]:
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
                node, with_placement = int(rng.integers(2)), bool(rng.random() < _PLACEMENT_CHANCE)
                repeats.append(await _lose(pool, node, with_placement=with_placement))
            await pool.client.cancel(_JOB)
            await pool.ended([_JOB])
    next_step_s = [repeat["begun_s"] for repeat in repeats]
    return {
        "repeats": repeats,
        "goal_s": _GOAL_S,
        "p50_s": statistics.median(next_step_s),
        "p99_s": float(np.percentile(next_step_s, 99)),
        "worst_s": max(next_step_s),
        "above_goal": sum(s > _GOAL_S for s in next_step_s),
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
    while (step := _first_without(lost, pool.data_dir, at_s)) is None:
        await asyncio.sleep(0.1)
        assert time.monotonic() < at_s + 20 * _GOAL_S, f"no step after the loss of {killed}"
    return {"killed": killed, "begun_s": step[0] - at_s, "ended_s": step[1] - at_s}


def _first_without(lost: set[int], data_dir: Path, since_s: float) -> tuple[float, float] | None:
    """Beginning and end of the first step that no lost process took part in."""
    recent = [step for step in steps(data_dir) if step.began_s > since_s]
    shared = {step.iteration for step in recent if step.pid in lost}
    alone = [(step.began_s, step.ended_s) for step in recent if step.pid not in lost and step.iteration not in shared]
    return min(alone, default=None)


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
    out: Annotated[Path | None, typer.Option(help="Write the JSON object to this file.")] = None,
) -> None:
    """Measure how long survivors stand still. Exit code 1 if a repeat misses the goal."""
    configure_logs(level="error")
    measured = asyncio.run(measure_node_losses(repeats, seed=seed))
    result = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "torch": torch.__version__, "seed": seed, **measured}
    table = table_of(f"{repeats} losses of a node: ms to the next step", "p50", "p99", "worst", "goal", "above it")
    table.add_row(*in_ms(result, "p50_s", "p99_s", "worst_s", "goal_s"), str(result["above_goal"]))
    Console(width=140).print(table)
    if out:
        out.write_text(json.dumps(result, indent=2) + "\n")
    raise typer.Exit(int(result["above_goal"] > 0))


if __name__ == "__main__":
    typer.run(main)

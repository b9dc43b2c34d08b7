"""`python -m benchmarks.live_power_losses`: a real pool that loses power in a phase of a job, and comes back.

A pool of two nodes of two slots, in a folder of its own. A job of about a minute has a deadline in 30 minutes. When it
is in the phase, all processes get `kill -9`; then `eflow up` starts the pool again. The promise must be kept.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer

from elasticflow.client.ledger import LedgerView
from elasticflow.client.pool_endpoint import RunFile, read_run_file
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.promise import Promise, promise_of
from testbed.power_losses import PHASES, is_in_phase

ROOT = Path(__file__).parents[1]
WAIT_S = 300.0
JOB = "struck"
_SUBMISSION = (
    *("submit", "testbed.user_code.tiny_jobs:Steps", "--name", JOB, "--deadline", "30m"),
    *("--batch", "8", "--iterations", "300", "--set", "step_s=0.1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """One run. nodes_lost_at_start, restarts: as counted when the job trained again, or ended."""

    seed: int
    phase: str
    outcome: str
    is_kept: bool
    margin_s: float | None
    nodes_lost_at_start: tuple[str, ...]
    restarts: int
    explanation: str


class LivePool:
    """`eflow up` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def data_dir(self) -> Path:
        return self.folder / "pool"

    def eflow(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "elasticflow", *arguments]

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
        return kept | {"PYTHONPATH": str(ROOT), "EF_DATA_DIR": str(self.data_dir)}

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(
                self.eflow(*arguments), cwd=self.folder, env=self.environment(), stdout=output, stderr=output
            )

    async def ask(self, *arguments: str) -> str:
        """The output of the command, whatever its exit code."""
        asked = await asyncio.create_subprocess_exec(
            *self.eflow(*arguments),
            cwd=self.folder,
            env=self.environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asked.communicate()
        finally:
            if asked.returncode is None:
                asked.kill()
        return output.decode()

    async def up(self) -> "subprocess.Popen[bytes]":
        """The supervisor of a healthy pool."""
        supervisor = self.start("up", "--nodes", "2", "--slots", "2", "--device", "cpu")
        async with asyncio.timeout(WAIT_S):
            while (run := read_run_file(self.data_dir)) is None or run.pid != supervisor.pid or not run.healthy:
                assert supervisor.poll() is None, (self.folder / "output").read_text()
                await asyncio.sleep(0.1)
        return supervisor

    @property
    def run(self) -> RunFile:
        run = read_run_file(self.data_dir)
        assert run is not None, "the supervisor has ended"
        return run

    async def when(self, holds: Callable[[PoolState], bool], *, wait_s: float = WAIT_S) -> PoolState:
        """The first state of the ledger for which this holds."""
        bus = await connect_nats(self.run.nats_url, name="watches")
        try:
            async with asyncio.timeout(wait_s):
                async with contextlib.aclosing(LedgerView(bus, self.run.pool).states()) as states:
                    async for state in states:
                        if holds(state):
                            return state
            raise AssertionError("the ledger is followed for ever")
        finally:
            with contextlib.suppress(ElasticFlowError, TimeoutError):
                await bus.close()


def lose_power(supervisor: "subprocess.Popen[bytes]") -> int:
    """All processes of the pool at once; their number. They are stopped first, so that none sees another end."""
    processes = [psutil.Process(supervisor.pid)]
    processes += processes[0].children(recursive=True)
    for act in (psutil.Process.suspend, psutil.Process.kill):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                act(process)
    supervisor.wait()
    psutil.wait_procs(processes)
    return len(processes)


async def strike(folder: Path, phase: str, seed: int, *, num_strikes: int = 1) -> Struck:
    """num_strikes: the later ones while the job starts again."""
    chance = np.random.default_rng([seed, 23])
    pool = LivePool(folder)
    supervisor = await pool.up()
    try:
        limits = ("--gpus", "2..4" if phase == "switching" else "4")
        submission = asyncio.create_task(pool.ask(*_SUBMISSION, *limits))
        if phase in ("switching", "checkpointing"):
            await submission
            training = await pool.when(lambda state: (job := state.live_jobs.get(JOB)) is not None and job.training)
            submission = asyncio.create_task(pool.ask(*_request(phase, found_job(training))))
        await pool.when(lambda state: (job := state.live_jobs.get(JOB)) is not None and is_in_phase(job, phase))
        await asyncio.sleep(float(chance.uniform(0.0, 0.5 if phase in ("profiling", "starting") else 0.02)))
        for number in range(num_strikes):
            if number:
                await pool.when(_begins_or_has_ended)
            lose_power(supervisor)
            submission.cancel()  # its client is on the same machine
            await asyncio.sleep(float(chance.choice([0.0, 3.0])))
            supervisor = await pool.up()
        if not await pool.ask("jobs", "--json"):
            raise AssertionError("the pool does not answer")
        started = await pool.when(lambda state: found_job(state).training or not found_job(state).live)
        counted = found_job(started)
        ended = found_job(await pool.when(lambda state: not found_job(state).live))
        return Struck(
            seed=seed,
            phase=phase,
            outcome=str(ended.phase),
            is_kept=promise_of(ended, 0.0) is Promise.KEPT,
            margin_s=None
            if ended.deadline_s is None or ended.ended_at_s is None
            else ended.deadline_s - ended.ended_at_s,
            nodes_lost_at_start=counted.nodes_lost_at_start,
            restarts=counted.restarts,
            explanation=await pool.ask("explain", JOB),
        )
    finally:
        if supervisor.poll() is None:
            lose_power(supervisor)


def _request(phase: str, job: Job) -> tuple[str, ...]:
    """The command that brings a training job into this phase."""
    if phase == "checkpointing":
        return "checkpoint", JOB
    return ("scale-in", JOB, "2") if len(job.gpus) == 4 else ("scale-out", JOB, "4")


def found_job(state: PoolState) -> Job:
    return state.live_jobs.get(JOB) or state.ended_jobs[JOB]


def _begins_or_has_ended(state: PoolState) -> bool:
    job = found_job(state)
    return not job.live or is_in_phase(job, "starting")


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each phase.")] = 2,
    phase: Annotated[list[str] | None, typer.Option(help="Only this one; may be given several times.")] = None,
    strikes: Annotated[int, typer.Option(min=1, help="Power losses of each run.")] = 1,
    folder: Annotated[Path | None, typer.Option(help="For the pools; kept. Default: a temporary one.")] = None,
) -> None:
    """Kill all processes of a pool in phases of a job, start it again, and print what became of the promise."""
    runs: list[Struck] = []
    with tempfile.TemporaryDirectory(prefix="power-") as temporary:
        for seed in range(seeds):
            for each in phase or PHASES:
                where = (folder or Path(temporary)) / f"{each}-{seed}"
                runs.append(asyncio.run(strike(where, each, seed, num_strikes=strikes)))
                print(_row(runs[-1]), flush=True)
                print(runs[-1].explanation, file=sys.stderr, flush=True)
    print(f"{len(runs)} runs, {sum(not run.is_kept for run in runs)} promises broken")
    raise typer.Exit(int(any(not run.is_kept for run in runs)))


def _row(run: Struck) -> str:
    margin = "" if run.margin_s is None else f"{run.margin_s:.0f} s"
    nodes = ", ".join(run.nodes_lost_at_start) or "none"
    return f"| {run.phase} | {run.seed} | {run.outcome} | {margin} | {nodes} | {run.restarts} |"


if __name__ == "__main__":
    typer.run(main)

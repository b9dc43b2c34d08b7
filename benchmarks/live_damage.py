"""`python -m benchmarks.live_damage`: damaged checkpoints and an older NATS store, under a real pool with a job."""

import asyncio
import shutil
import sys
from pathlib import Path

import psutil
import typer

from benchmarks.damage import Flip
from benchmarks.live_power_losses import JOB, LivePool, found_job, lose_power
from elasticflow.shared.state.promise import Promise, promise_of

_SUBMIT = ("submit", "testbed.user_code.tiny_jobs:Steps", "--deadline", "30m", "--batch", "8", "--gpus", "4")


async def damaged_checkpoint(folder: Path) -> bool:
    """One bit of the newest of two checkpoints flips, and all executors get `kill -9`. Whether the promise is kept."""
    pool = LivePool(folder)
    supervisor = await pool.up()
    try:
        await pool.ask(*_SUBMIT, "--name", JOB, "--iterations", "500", "--set", "step_s=0.1")
        for _ in range(2):
            await pool.when(lambda state: found_job(state).training and found_job(state).iteration > 0)
            at = found_job(await pool.when(lambda state: True)).iteration
            await pool.when(lambda state, at=at: found_job(state).iteration > at)
            print(await pool.ask("checkpoint", JOB))
        files = sorted(pool.data_dir.glob("checkpoints/**/*.ckpt"))
        print(*(file.name for file in files), sep="\n")
        named = pool.run.processes.items()
        executors = [psutil.Process(process.pid) for name, process in named if name.startswith("executor")]
        for executor in executors:
            for each in (executor, *executor.children(recursive=True)):
                each.suspend()
        newest = files[-1]
        Flip(file=newest.name, offset=newest.stat().st_size // 2, bit=0, is_clean=True).apply(newest.parent)
        for executor in executors:
            executor.kill()
        ended = found_job(await pool.when(lambda state: not found_job(state).live))
        explanation = await pool.ask("explain", JOB)
        print(explanation)
        return promise_of(ended, 0.0) is Promise.KEPT and "checkpoints could not be used" in explanation
    finally:
        lose_power(supervisor)


async def older_store(folder: Path) -> bool:
    """A copy of NATS's data is restored after a job was acknowledged, and another tenant submits a job of its id.

    Whether the start and `doctor` warn, and whether the other job begins anew and gets its own model.
    """
    pool = LivePool(folder)
    nats, copy = pool.data_dir / "nats", folder / "nats-copy"
    supervisor = await pool.up()
    lose_power(supervisor)
    shutil.copytree(nats, copy)
    supervisor = await pool.up()
    await pool.ask(*_SUBMIT, "--name", JOB, "--iterations", "20", "--set", "step_s=0.1")
    await pool.when(lambda state: not found_job(state).live)
    await asyncio.sleep(5.0)  # the executors' bookmarks follow within two seconds
    lose_power(supervisor)
    shutil.rmtree(nats)
    shutil.copytree(copy, nats)
    (folder / "output").write_text("")
    supervisor = await pool.up()
    try:
        doctor = await pool.ask("doctor")
        started = (folder / "output").read_text()
        print(started, doctor, await pool.ask("jobs"), sep="\n")
        warned = all("NATS has older data" in " ".join(text.split()) for text in (started, doctor))
        return await _begins_anew(pool) and warned
    finally:
        lose_power(supervisor)


async def _begins_anew(pool: LivePool) -> bool:
    """Whether a job of another tenant, with the id of one that the ledger has forgotten, takes nothing of it."""
    other = ("--tenant", "other", "--iterations", "10", "--set", "step_s=0.1")
    print(await pool.ask(*_SUBMIT, "--name", JOB, *other))
    ended = found_job(
        await pool.when(lambda state: JOB in state.ended_jobs and not state.ended_jobs[JOB].artifacts.due)
    )
    explanation, fetched = await pool.ask("explain", JOB), await pool.ask("fetch", JOB, "--tenant", "other")
    moved = sorted(folder.name for folder in pool.data_dir.glob(f"*/{JOB}.of-*"))
    print(explanation, fetched, *moved, sep="\n")
    own_model = f"iteration {ended.iteration}" in fetched and ended.iteration == 10
    return own_model and "from iteration 0" in explanation and bool(moved)


def main(folder: Path) -> None:
    """Print what the pool says, and exit 1 if it keeps silent or breaks the promise."""
    kept = asyncio.run(damaged_checkpoint(folder / "checkpoint"))
    warned = asyncio.run(older_store(folder / "store"))
    print(f"damaged checkpoint: {'kept and told' if kept else 'NOT'}")
    print(f"older store: {'warned, and nothing taken' if warned else 'NOT'}")
    sys.exit(not (kept and warned))


if __name__ == "__main__":
    typer.run(main)

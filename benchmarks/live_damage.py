"""`python -m benchmarks.live_damage`: damaged checkpoints and an older NATS store, under a real pool with a job."""

import asyncio
import shutil
import sys
from pathlib import Path

import psutil
import typer

from benchmarks.live_power_losses import JOB, LivePool, found_job, lose_power
from elasticflow.shared.state.promise import Promise, promise_of

_SUBMIT = ("submit", "tests.support.user_code.tiny_jobs:Steps", "--deadline", "30m", "--batch", "8", "--gpus", "4")


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
        flip_middle_bit(files[-1])
        for executor in executors:
            executor.kill()
        ended = found_job(await pool.when(lambda state: not found_job(state).live))
        explanation = await pool.ask("explain", JOB)
        print(explanation)
        return promise_of(ended, 0.0) is Promise.KEPT and "checkpoints could not be used" in explanation
    finally:
        lose_power(supervisor)


def flip_middle_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


async def older_store(folder: Path) -> bool:
    """A copy of NATS's data is restored after a job was acknowledged. Whether the start and `doctor` warn."""
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
        return all("NATS has older data" in " ".join(text.split()) for text in (started, doctor))
    finally:
        lose_power(supervisor)


def main(folder: Path) -> None:
    """Print what the pool says, and exit 1 if it keeps silent or breaks the promise."""
    kept = asyncio.run(damaged_checkpoint(folder / "checkpoint"))
    warned = asyncio.run(older_store(folder / "store"))
    print(f"damaged checkpoint: {'kept and told' if kept else 'NOT'}; older store: {'warned' if warned else 'NOT'}")
    sys.exit(not (kept and warned))


if __name__ == "__main__":
    typer.run(main)

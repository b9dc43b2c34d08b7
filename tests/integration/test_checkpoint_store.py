"""Nodes without a common folder: a job goes on from the copy of its checkpoint when its node is lost with its disk."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.pool import PoolState
from testbed.real_pool import POOL, eventually, job, left_behind, running_pool, slowed_down
from tests.support.executor_process import ROOT


def node(name: str, folder: Path, url: str) -> subprocess.Popen[bytes]:
    """An executor with a data folder of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
    where = ("--nats-url", url, "--pool", POOL, "--data-dir", name, "--node-id", name, "--device", "cpu")
    return subprocess.Popen(
        [sys.executable, "-m", "elasticflow", "node", *where, "--slots", "1"],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT), "EF_CHECKPOINT_STORE": (folder / "store").as_uri()},
        start_new_session=True,
    )


def lose(lost: subprocess.Popen[bytes], folder: Path) -> None:
    """The node with its workers and its disk."""
    started = psutil.Process(lost.pid).children(recursive=True)
    for process in (psutil.Process(lost.pid), *started):
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs([psutil.Process(lost.pid)] if psutil.pid_exists(lost.pid) else [], timeout=10)
    shutil.rmtree(folder)


async def test_a_job_goes_on_elsewhere_when_its_node_is_lost_with_its_disk(tmp_path: Path) -> None:
    async with running_pool(tmp_path, num_nodes=0, replicas={}) as pool:
        first = node("a", tmp_path, pool.url)
        second = None
        try:
            spec = replace(job(JobClass.BEST_EFFORT), max_iterations=2_000)
            slow_down = tmp_path / "slow_down"
            await pool.acknowledged(slowed_down(spec, slow_down), "moves")

            def trains(state: PoolState) -> bool:
                return (moves := state.live_jobs.get("moves")) is not None and moves.iteration > 0

            await pool.when(trains, "it trains")
            reply = await pool.client.checkpoint("moves")
            (copy,) = (tmp_path / "store" / POOL / "lab").glob("*/*.ckpt")
            assert f"-i{reply.iteration:014d}-" in copy.name
            lose(first, tmp_path / "a")
            second = node("b", tmp_path, pool.url)

            def goes_on(state: PoolState) -> bool:
                moves = state.live_jobs.get("moves")
                return moves is not None and moves.training_generation is not None and moves.generation > 2

            state = await pool.when(goes_on, "it trains again")
            history = "\n".join(entry.text for entry in await pool.client.history("moves"))
            assert f"from iteration {reply.iteration}" in history, history
            assert state.nodes["b"].alive
            slow_down.unlink()
            await pool.client.cancel("moves")
        finally:
            for each in filter(None, (first, second)):
                each.terminate()
            for each in filter(None, (first, second)):
                each.wait(60)
            for name in ("a", "b"):
                await eventually(lambda name=name: not left_behind(tmp_path / name), f"nothing of {name} is left")

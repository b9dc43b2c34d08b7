"""A pool with four slots on one GPU: a second job makes the first one shrink, which grows again after its end.

Everything is as a user starts it: `eflow up` with a NATS server of its own, services, an executor, a profiling run.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

from benchmarks.engine.parts import Device
from benchmarks.gpu.jobs import GLOBAL_BATCH_SIZE, Paced
from benchmarks.report import Measured, Row
from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint, read_run_file
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState

_NUM_SLOTS = 4
_LONG, _SHORT = "long", "short"  # ids of the jobs
_NUM_ITERATIONS = {_LONG: 300, _SHORT: 60}
_QUICK_ITERATIONS = {_LONG: 160, _SHORT: 10}
_STEP_S = 0.2  # of one worker
_HEAD_START = 10  # iterations of the first job before the second one
_DEADLINE_S = 600.0  # far away: the load of this machine does not decide
_MODEL = "paced"


def measure_pool(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    """A quick run gives the pool the jobs' scaling curve, instead of a profiling run."""
    settings = {"stop_free": True, "resize_cost_s": 1.0}
    if quick:
        rates = {str(num): num / _STEP_S for num in (1, 2, 4)}
        settings["curves"] = {f"{_MODEL}/b{GLOBAL_BATCH_SIZE}": rates}  # pyright: ignore[reportArgumentType]
    with tempfile.TemporaryDirectory(prefix="gpu-pool-") as folder:
        config, data_dir = Path(folder) / "pool.json", Path(folder) / "pool"
        config.write_text(json.dumps(settings))
        began_s = time.monotonic()
        slots = ("--nodes", "1", "--slots", str(_NUM_SLOTS), "--device", device.value)
        _eflow("up", *slots, "--config", str(config), "--data-dir", str(data_dir), "--detach")
        note(up_s=time.monotonic() - began_s)
        try:
            run = read_run_file(data_dir)
            assert run is not None, "the pool runs"
            endpoint = Endpoint(nats_url=run.nats_url, pool=run.pool)
            note(**asyncio.run(_measure(endpoint, _QUICK_ITERATIONS if quick else _NUM_ITERATIONS)))
        finally:
            _eflow("down", "--data-dir", str(data_dir))


def _eflow(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "elasticflow", *arguments], check=True)


async def _measure(endpoint: Endpoint, num_iterations: dict[str, int]) -> Measured:
    """shares: slots of the jobs, whenever they changed. broken: why a job did not keep its promise."""
    shares: list[tuple[int, int]] = []
    async with Client.connect(endpoint, tenant="lab") as client, asyncio.TaskGroup() as tasks:
        following = tasks.create_task(_follow(client, shares))
        began_s = time.monotonic()
        await client.submit(_spec(num_iterations[_LONG]), job_id=_LONG)
        decided_s = time.monotonic() - began_s
        async with aclosing(client.states()) as states:
            async for state in states:
                if (job := state.job(_LONG)) is not None and (not job.live or job.iteration >= _HEAD_START):
                    break
        await client.submit(_spec(num_iterations[_SHORT]), job_id=_SHORT)
        ended = [await client.wait(job_id) for job_id in (_SHORT, _LONG)]
        following.cancel()
    return {
        "decided_s": decided_s,
        "trained_s": time.monotonic() - began_s,
        "shares": shares,
        "broken": {job.job_id: why for job in ended if (why := _broken(job))},
        "restarts": sum(job.restarts for job in ended),
    }


def _spec(num_iterations: int) -> JobSpec:
    job = Paced().set_hyperparameter(global_batch_size=GLOBAL_BATCH_SIZE, step_s=_STEP_S)
    job.model_name = _MODEL
    return job.term_condition(max_iterations=num_iterations).set_deadline(within=_DEADLINE_S).spec()


async def _follow(client: Client, shares: list[tuple[int, int]]) -> None:
    async with aclosing(client.states()) as states:
        async for state in states:
            present = _num_slots(state, _LONG), _num_slots(state, _SHORT)
            if [present] != shares[-1:]:
                shares.append(present)


def _num_slots(state: PoolState, job_id: str) -> int:
    """The number of slots of a job that trains; 0 for any other."""
    job = state.live_jobs.get(job_id)
    return len(job.gpus) if job is not None and job.phase is Phase.ADMITTED else 0


def _broken(job: Job) -> str:
    if job.phase is not Phase.FINISHED:
        return f"{job.phase} {job.explanation}"
    assert job.deadline_s is not None
    assert job.ended_at_s is not None
    late_s = job.ended_at_s - job.deadline_s
    return f"{late_s:.0f} s late" if late_s > 0 else ""


def rows_of_pool(measured: Measured) -> Iterable[Row]:
    if "shares" not in measured:
        return
    of_long = [long for long, _ in measured["shares"] if long]
    changes = {(before < after) - (before > after) for before, after in pairwise(of_long)}
    what = [name for name, sign in (("shrinks", -1), ("grows", 1)) if sign in changes]
    told = " ".join(f"{long}+{short}" for long, short in measured["shares"])
    yield Row("slots of two jobs on one GPU; the first one", ", ".join(what) or "stays", "shrinks, grows", told)
    broken = "; ".join(f"{job_id}: {why}" for job_id, why in measured["broken"].items())
    times = f"up in {measured['up_s']:.1f} s, decided in {measured['decided_s']:.1f} s, {measured['restarts']} restarts"
    yield Row("promises of two jobs on one GPU", broken or "kept", "kept", times)

"""Jobs start, lose workers, are cancelled and end; the resources of services and nodes do not grow.

EF_SOAK_EVENTS=100 plays a hundred events instead of six, and EF_SOAK_OUT=FILE keeps what was weighed, as JSON.
"""

import contextlib
import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.engine.soak import Footprint, footprint
from elasticflow.shared.messages.job_spec import JobClass
from testbed.real_pool import RunningPool, eventually, job, persistently, running_pool

NUM_EVENTS = int(os.environ.get("EF_SOAK_EVENTS", "6"))
OUT = os.environ.get("EF_SOAK_OUT", "")
AT_ONCE = 3  # jobs, so that shares change
KINDS = ("nothing", "kill", "stop", "cancel", "end the fork server")
SLACK = 3  # descriptors or threads: a pool of threads that was not full yet, a file that is being written


@pytest.mark.nightly("a soak says little in a minute; the other tests of faults find what is left behind")
@pytest.mark.timeout(180 + 20 * NUM_EVENTS)
async def test_nothing_adds_up_in_services_and_nodes(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    async with running_pool(tmp_path, num_nodes=2, replicas={}) as pool:
        await play(pool, rng, first=0, num_events=AT_ONCE)  # what is loaded once is loaded then
        before = weighed(pool)
        await play(pool, rng, first=AT_ONCE, num_events=NUM_EVENTS)
        await eventually(lambda: not grown(before, weighed(pool)), "nothing has grown: what is closed takes a moment")
        after = weighed(pool)
        assert not pool.workers()
        assert len(pool.fork_servers()) == 2
    keep(before, after)


def grown(before: dict[str, Footprint], after: dict[str, Footprint]) -> list[str]:
    """Processes of the pool that hold more than before, or are no longer the same."""
    return [
        name
        for name in before.keys() | after.keys()
        if (then := before.get(name)) is None
        or (now := after.get(name)) is None
        or now.descriptors > then.descriptors + SLACK
        or now.threads > then.threads + SLACK
        or (now.processes, now.ports) != (then.processes, then.ports)
    ]


def keep(before: dict[str, Footprint], after: dict[str, Footprint]) -> None:
    if OUT:
        rows = {name: {"before": asdict(before[name]), "after": asdict(after[name])} for name in before}
        Path(OUT).write_text(json.dumps({"events": NUM_EVENTS, "at_rest": rows}, indent=2) + "\n")


async def play(pool: RunningPool, rng: np.random.Generator, *, first: int, num_events: int) -> None:
    """So many jobs, and what befalls each; all have ended, and no worker is left."""
    job_ids = [f"soak-{number}" for number in range(first, first + num_events)]
    for start in range(0, num_events, AT_ONCE):
        some = job_ids[start : start + AT_ONCE]
        for job_id in some:
            await pool.acknowledged(job(JobClass.BEST_EFFORT, max_iterations=80), job_id)
        for job_id in some:
            await befall(pool, str(rng.choice(KINDS)), job_id, rng)
        await pool.ended(some)
    await eventually(lambda: not pool.workers(), "no worker is left")
    await eventually(lambda: len(pool.fork_servers()) == 2, "both nodes can start workers")


async def befall(pool: RunningPool, kind: str, job_id: str, rng: np.random.Generator) -> None:
    if kind == "cancel":
        await persistently(lambda: pool.client.cancel(job_id, reason="it has to end"))
    if kind in ("nothing", "cancel"):
        return
    if found := pool.fork_servers() if kind == "end the fork server" else pool.workers():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by itself
            found[rng.integers(len(found))].send_signal(signal.SIGSTOP if kind == "stop" else signal.SIGKILL)


def weighed(pool: RunningPool) -> dict[str, Footprint]:
    """Each process of the pool, with all below."""
    processes = {name: psutil.Process(pid) for name, pid in pool.pids().items()}
    return {name: footprint([process, *process.children(recursive=True)]) for name, process in processes.items()}

"""Hostile messages on all kinds of subjects, keys and objects of a real pool, and frames of its workers.

`python -m benchmarks.hostile --messages 1000000 --seconds 3600`. No service may end, and memory stays flat. Frames come
from the workers of real jobs, which are submitted again when they end. The plan and the writer's position of the views
are attacked in the last tenth only: after an unreadable message of the plan, planners wait for the operator. Exits 1 if
a process of the pool was replaced, or if a job that is submitted afterwards does not finish.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from elasticflow.client.client import Client
from elasticflow.client.operator_decisions import configure
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.shared.errors import ElasticFlowError, Retry
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.state import snapshot_encoding
from testbed.hostile_messages import JOB, NODE, PLAN, QUOTE, SUBMIT, TELEMETRY, hostile_bytes
from testbed.real_pool import POOL, RunningPool, job, persistently, running_pool

# --- messages, and the places that they go to ----------------------------------------------------------


RECORDED = Path(__file__).parents[1] / "tests" / "unit" / "shared" / "messages" / "recorded_messages"
MAX_BYTES = 16_384  # larger ones are the tests' matter: here the number counts
FRAMES_JOB = "frames-"  # the beginning of the ids of the jobs whose workers send frames
NUM_FRAME_JOBS = 2  # one for each slot of the node
_FRAMES_SENT = re.compile(r"^frame (\d+)$", re.MULTILINE)

Send = Callable[[bytes, int], Awaitable[object]]


class Hostile:
    """Bytes from a seed: those of the tests, and recorded messages with some bytes changed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._chance = [data for data in hostile_bytes() if len(data) <= MAX_BYTES]
        self._recorded = [file.read_bytes() for file in sorted(RECORDED.glob("*.msgpack"))]

    def next(self) -> bytes:
        if self._rng.random() < 0.3:
            return self._chance[int(self._rng.integers(len(self._chance)))]
        data = bytearray(self._recorded[int(self._rng.integers(len(self._recorded)))])
        for _ in range(int(self._rng.integers(0, 4))):
            data[int(self._rng.integers(len(data)))] = int(self._rng.integers(256))
        return bytes(data[: int(self._rng.integers(1, len(data) + 1))] if self._rng.random() < 0.2 else data)


def senders(pool: RunningPool) -> dict[str, Send]:
    """The senders, by name of the kind of place."""
    bus = pool.bus

    def append(subject: str) -> Send:
        return lambda data, number: bus.append(subject, data, message_id=f"hostile-{number}")

    async def replace_snapshot(data: bytes, _: int) -> None:
        saved = await snapshot_store.newest_saved(bus, POOL)
        name = snapshot_store.saved_object("none" if saved is None else saved.snapshot)
        await bus.put_object(streams.snapshot_bucket(POOL), name, data)

    return {
        "commands": append(SUBMIT),
        "quotes": lambda data, _: bus.request(QUOTE, data, 10.0),
        "telemetry": lambda data, _: bus.publish(TELEMETRY, data),
        "replies": lambda data, _: bus.publish(subjects.answer("lab", POOL, "intruder"), data),
        "events of jobs": append(JOB),
        "events of nodes": append(NODE),
        "events of loads": append(subjects.load(POOL, "intruder")),
        "tasks": append(subjects.tasks(POOL, "intruder")),
        "results": append(subjects.results(POOL, "intruder", 0, 1)),
        "records of nodes": lambda data, _: bus.put_value(streams.node_bucket(POOL), "intruder", data),
        "views": lambda data, number: bus.put_value(streams.view_bucket(POOL), f"intruder.history.{number % 50}", data),
        "logs": lambda data, number: bus.put_value(streams.log_bucket(POOL), f"lab.intruder.j.{number % 50}", data),
        "code": lambda data, number: bus.put_object(streams.code_bucket(POOL), f"lab/{number % 50}", data),
        "artifacts": lambda data, number: bus.put_object(
            streams.artifact_bucket(POOL), streams.artifact_name("lab", "intruder", f"{number % 50}", 0), data
        ),
        "snapshots": replace_snapshot,
        "names of snapshots": append(subjects.snapshot(POOL, snapshot_encoding.SHAPE)),
        "leases": lambda data, number: bus.put_value(streams.state_bucket(POOL), f"lease.intruder-{number % 50}", data),
        "attempts": lambda data, number: bus.put_value(streams.state_bucket(POOL), f"attempts.{number}-0", data),
        "dead letters": append(subjects.dead_letter(POOL, "admission")),
    }


def rare_senders(pool: RunningPool) -> dict[str, Send]:
    """The senders after which planners wait for the operator, or the monitor makes all views again."""
    return {
        "plan": lambda data, number: pool.bus.append(PLAN, data, message_id=f"hostile-{number}"),
        "writer of views": lambda data, _: pool.bus.put_value(streams.view_bucket(POOL), streams.WRITER_KEY, data),
    }


async def send_frames(pool: RunningPool) -> None:
    """Keep jobs running whose workers send frames of their own. Until cancelled."""
    spec = job(
        JobClass.BEST_EFFORT,
        training_function="testbed.user_code.hostile_frames:Frames",
        hyperparameters={"step_s": 0.2, "frames_per_step": 18},
        max_iterations=1_000_000,
        max_gpus=1,
    )
    live, number = set[str](), 0
    async with contextlib.aclosing(pool.client.states()) as states:
        async for state in states:
            live = {job_id for job_id in live if job_id not in state.ended_jobs}
            while len(live) < NUM_FRAME_JOBS:
                with contextlib.suppress(Retry):  # a full work queue; the next state is soon
                    live.add(await pool.client.post(spec, job_id=f"{FRAMES_JOB}{number}"))
                    number += 1


def frames_sent(pool: RunningPool) -> int:
    """The frames that all workers have sent, as their logs tell."""
    logs = pool.data_dir.glob(f"logs/{FRAMES_JOB}*/g*-r*.log")
    return sum(max(map(int, _FRAMES_SENT.findall(log.read_text(errors="replace"))), default=0) for log in logs)


def channels_broken(pool: RunningPool) -> int:
    """Workers that the executor has killed for a frame that it could not read."""
    return (pool.data_dir / "services" / "executor-node-0.log").read_text(errors="replace").count("channel_broken")


# --- the attack ----------------------------------------------------------------------------------------


NUM_SENDERS = 32
NUM_SAMPLES = 10  # of the memory
RARE_FROM, RARE_EVERY = 0.9, 500  # of the messages: what keeps services from their work
FRAMES = "frames of workers"


def memory_mib(pool: RunningPool) -> dict[str, float]:
    return {name: round(psutil.Process(pid).memory_info().rss / 2**20, 1) for name, pid in sorted(pool.pids().items())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """sent, refused: messages by kind of place, the latter with the error. memory_mib: of each process, over time.

    channels_broken: workers that were killed for a frame that their executor could not read.
    """

    messages: int
    seconds: float
    sent: dict[str, int]
    refused: dict[str, int]
    channels_broken: int
    same_processes: bool
    job_afterwards: str
    memory_mib: list[dict[str, float]]


class Attack:
    """num_messages: without the frames of workers. limit_s: it stops earlier."""

    def __init__(self, pool: RunningPool, num_messages: int, limit_s: float, seed: int) -> None:
        self._pool, self._num_messages, self._limit_s = pool, num_messages, limit_s
        self._hostile = Hostile(seed)
        self._often, self._rarely = senders(pool), rare_senders(pool)
        self._numbers, self._began_s = iter(range(num_messages)), time.monotonic()
        self.sent, self.refused = collections.Counter[str](), collections.Counter[str]()
        self.memory_mib = [memory_mib(pool)]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    async def run(self) -> None:
        frames = asyncio.create_task(send_frames(self._pool))
        while not (frames.done() or frames_sent(self._pool) or self.seconds > self._limit_s):
            await asyncio.sleep(0.1)  # a short attack would end before its workers have started
        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_SENDERS):
                tasks.create_task(self._send_many())
        frames.cancel()
        await asyncio.wait({frames})
        if not frames.cancelled():
            await frames
        self.sent[FRAMES] = frames_sent(self._pool)

    async def _send_many(self) -> None:
        often, rarely = list(self._often), list(self._rarely)
        for number in self._numbers:
            if self.seconds > self._limit_s:
                return
            share = max(number / self._num_messages, self.seconds / self._limit_s)
            if share >= len(self.memory_mib) / NUM_SAMPLES:
                self.memory_mib.append(memory_mib(self._pool))
            before_the_next = RARE_EVERY - 1 - number % RARE_EVERY
            if share >= RARE_FROM and before_the_next < len(rarely):
                await self._send(rarely[before_the_next], self._rarely, number)
            else:
                await self._send(often[number % len(often)], self._often, number)

    async def _send(self, kind: str, places: Mapping[str, Send], number: int) -> None:
        try:
            await places[kind](self._hostile.next(), number)
            self.sent[kind] += 1
        except ElasticFlowError as error:  # a full work queue, for example
            self.refused[f"{kind}: {type(error).__name__}"] += 1


async def attack(num_messages: int, limit_s: float, seed: int, folder: Path) -> Result:
    async with running_pool(folder, num_nodes=1, replicas={}) as pool:
        await pool.acknowledged(job(), "before")
        await pool.ended(["before"])
        pids, under_way = pool.pids(), Attack(pool, num_messages, limit_s, seed)
        await under_way.run()
        seconds, state = under_way.seconds, await pool.client.state()
        if state.unreadable_plan_sequence:
            changes = {"skip_plan_up_to": state.sequence}
            await configure(pool.url, POOL, None, SystemClock(), changes=changes)
        # the attack has used up what its own tenant may send (docs/adr/0103)
        other = Client(pool.bus, Endpoint(nats_url=pool.url, pool=POOL), tenant="other", clock=SystemClock())
        await persistently(lambda: other.post(job(), job_id="after"))
        state = await pool.ended(["after"])
        return Result(
            messages=under_way.sent.total(),
            seconds=round(seconds, 1),
            sent=dict(sorted(under_way.sent.items())),
            refused=dict(sorted(under_way.refused.items())),
            channels_broken=channels_broken(pool),
            same_processes=pool.pids() == pids,
            job_afterwards=state.ended_jobs["after"].phase.value,
            memory_mib=[*under_way.memory_mib, memory_mib(pool)],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3_600.0, help="stop earlier")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="file for the numbers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        result = asyncio.run(attack(given.messages, given.seconds, given.seed, Path(folder)))
    text = json.dumps(asdict(result), indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")
    if not result.same_processes or result.job_afterwards != "finished":
        sys.exit(1)


if __name__ == "__main__":
    main()

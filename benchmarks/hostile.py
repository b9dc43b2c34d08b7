"""Hostile messages on all kinds of subjects, keys and objects of a real pool: no service ends, and memory is flat.

`python -m benchmarks.hostile --messages 1000000 --seconds 3600`. Frames of workers are not sent here:
`tests/properties/test_hostile_workers.py` has them. Exits 1 if a process of the pool was replaced, or if a job that is
submitted afterwards does not finish.
"""

import argparse
import asyncio
import collections
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from elasticflow.client.configure_pool import configure
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.process.clock import SystemClock
from tests.faults.test_hostile_messages import JOB, NODE, PLAN, QUOTE, SUBMIT, TELEMETRY, hostile_bytes
from tests.support.real_pool import POOL, RunningPool, job, running_pool

RECORDED = Path(__file__).parents[1] / "tests" / "unit" / "shared" / "messages" / "recorded_messages"
MAX_BYTES = 16_384  # larger ones are the tests' matter: here the number counts
NUM_SENDERS = 32
NUM_SAMPLES = 10  # of the memory
PLAN_EVERY = 1_000  # of all messages: planners wait for the operator after the first one

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
    """By name of the kind of place."""
    bus = pool.bus

    def append(subject: str) -> Send:
        return lambda data, number: bus.append(subject, data, message_id=f"hostile-{number}")

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
    }


def memory_mib(pool: RunningPool) -> dict[str, float]:
    return {name: round(psutil.Process(pid).memory_info().rss / 2**20, 1) for name, pid in sorted(pool.pids().items())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """sent, refused: messages by kind of place, the latter with the error. memory_mib: of each process, over time."""

    messages: int
    seconds: float
    sent: dict[str, int]
    refused: dict[str, int]
    same_processes: bool
    job_afterwards: str
    memory_mib: list[dict[str, float]]


async def attack(num_messages: int, limit_s: float, seed: int, folder: Path) -> Result:
    sent, refused = collections.Counter[str](), collections.Counter[str]()
    async with running_pool(folder, num_nodes=1, replicas={}) as pool:
        await pool.acknowledged(job(), "before")
        await pool.ended(["before"])
        pids, hostile, by_kind = pool.pids(), Hostile(seed), senders(pool)
        kinds, samples, began_s = list(by_kind), [memory_mib(pool)], time.monotonic()
        numbers = iter(range(num_messages))

        async def send_many() -> None:
            for number in numbers:
                elapsed_s = time.monotonic() - began_s
                if elapsed_s > limit_s:
                    return
                share = max(number / num_messages, elapsed_s / limit_s)
                if share >= len(samples) / NUM_SAMPLES:
                    samples.append(memory_mib(pool))
                kind = "plan" if number % PLAN_EVERY == PLAN_EVERY - 1 else kinds[number % len(kinds)]
                data = hostile.next()
                try:
                    if kind == "plan":
                        await pool.bus.append(PLAN, data, message_id=f"hostile-{number}")
                    else:
                        await by_kind[kind](data, number)
                    sent[kind] += 1
                except ElasticFlowError as error:  # a full work queue, for example
                    refused[f"{kind}: {type(error).__name__}"] += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_SENDERS):
                tasks.create_task(send_many())
        seconds = time.monotonic() - began_s
        state = await pool.client.state()
        if state.unreadable_plan_sequence:
            changes = {"skip_plan_up_to": state.sequence}
            await configure(pool.url, POOL, None, SystemClock(), changes=changes)
        await pool.acknowledged(job(), "after")
        state = await pool.ended(["after"])
        samples.append(memory_mib(pool))
        return Result(
            messages=sent.total(),
            seconds=round(seconds, 1),
            sent=dict(sorted(sent.items())),
            refused=dict(sorted(refused.items())),
            same_processes=pool.pids() == pids,
            job_afterwards=state.ended_jobs["after"].phase.value,
            memory_mib=samples,
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

"""Hostile messages on all kinds of subjects, keys and objects of a real pool, and frames of its workers.

`python -m benchmarks.hostile --messages 1000000 --seconds 3600`. No service may end, and memory stays flat. Frames come
from the workers of real jobs, which are submitted again when they end. The plan and the writer's position of the views
are attacked in the last tenth only: after an unreadable message of the plan, planners wait for the operator. Exits 1 if
a process of the pool was replaced, or if a job that is submitted afterwards does not finish.
"""

import argparse
import asyncio
import collections
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.hostile_places import Hostile, Send, channels_broken, frames_sent, rare_senders, send_frames, senders
from elasticflow.client.operator_decisions import configure
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.runtime.process.clock import SystemClock
from testbed.real_pool import POOL, RunningPool, job, running_pool

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
        await pool.acknowledged(job(), "after")
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

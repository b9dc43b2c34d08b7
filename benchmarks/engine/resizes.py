"""Resizes while the other workers train, and losses of one worker.

stop_s: from the step boundary at which all were ready to the first step of the new generation, the only time in which
no worker trains. goal_s: 20 ms plus twice the time for the state's bytes at the speed of a plain copy between
processes. restart_s: the same resize through a checkpoint, from the command to the first step, with processes forked
from a warm server. crash_s and hang_s: from SIGKILL or SIGSTOP of one of the workers to the end of the survivors' next
step. shrink_s: from SIGKILL to the beginning of that step. replaced_s: from SIGKILL to the end of the first step with a
replacement. Of few losses, the 99th percentile is the worst one: `--losses` repeats them.
"""

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from rich.table import Table

from benchmarks.engine.copying import measure_copying
from benchmarks.engine.device import Device, device_fields
from benchmarks.engine.elastic import Engine, running_engine
from benchmarks.engine.models import PerceptronOfEight, Trained
from benchmarks.engine.parts import Options, Row, in_ms, table_of
from elasticflow.services.executor.processes.launcher import Exited, WorkerHandle
from elasticflow.services.executor.processes.manager import GenerationSecrets
from elasticflow.shared.messages.measurements import ResizeTimeline
from elasticflow.shared.messages.worker_protocol.from_worker import Progressed, Started, Switched
from elasticflow.shared.messages.worker_protocol.to_worker import (
    Assignment,
    GenerationPlan,
    PeersLost,
    PrepareSwitch,
    StopAtBoundary,
)

_STEADY_REPORTS = 1  # of progress, between two resizes
_LARGE_ROUNDS = 3  # of a model that takes seconds for each
_LARGE = 100  # million parameters
_BYTES_OF_A_PARAMETER = 8  # itself and its momentum
# to so many workers, one after the other; models of a million parameters also where there are many workers
_COURSE = {1: (2, 4, 8, 2, 1, 2), 25: (2, 4, 2), 100: (2, 4, 2)}
_LOSSES = {2: (signal.SIGKILL, signal.SIGSTOP), 4: (signal.SIGKILL,)}  # by number of workers
_GOAL_S, _COPIES = 0.020, 2


@dataclass(frozen=True, slots=True)
class _Loss:
    """Times from the signal to the beginning and the end of the next step, and to the end of the first with a
    replacement."""

    shrink_s: float
    continued_s: float
    replaced_s: float


def measure(options: Options) -> list[Row]:
    sizes = options.million_parameters
    return [
        row for size in sizes for row in asyncio.run(_of_size(size, options.rounds, options.losses, options.device))
    ]


async def _of_size(million_parameters: int, rounds: int, losses_a_round: int, device: Device) -> list[Row]:
    """A row for each resize of the course. losses_a_round: by SIGKILL, of each number of workers."""
    rounds = min(rounds, _LARGE_ROUNDS) if million_parameters >= _LARGE else rounds
    copied_per_s = await asyncio.to_thread(measure_copying, _BYTES_OF_A_PARAMETER * million_parameters * 1_000_000)
    course = list(pairwise(_COURSE[million_parameters]))
    timelines: dict[tuple[int, int], list[ResizeTimeline]] = {change: [] for change in course}
    losses: dict[tuple[int, int], dict[signal.Signals, list[_Loss]]] = {
        next(change for change in course if change[0] == num_workers): {number: [] for number in numbers}
        for num_workers, numbers in _LOSSES.items()
    }
    async with running_engine(device) as engine:
        job = Resized(engine, million_parameters)
        workers = await job.start(course[0][0], generation=1)
        for _ in range(rounds):
            for change in course:
                for number, seen in losses.get(change, {}).items():
                    for _ in range(losses_a_round if number == signal.SIGKILL else 1):
                        workers, loss = await job.lose(workers, number)
                        seen.append(loss)
                before, after = change
                members = [rank if rank < before else None for rank in range(after)]
                workers, timeline = await job.switch(workers, members)
                timelines[change].append(timeline)
        restart_s = await job.restart(workers, 4)
    rows = [_row(million_parameters, change, of_change, copied_per_s) for change, of_change in timelines.items()]
    rows[0] |= {"restart_s": restart_s}
    for change, seen in losses.items():
        rows[course.index(change)] |= _of_losses(seen[signal.SIGKILL], seen.get(signal.SIGSTOP, []))
    return rows


def _row(million_parameters: int, change: tuple[int, int], timelines: list[ResizeTimeline], copied_per_s: float) -> Row:
    bytes_moved = timelines[0].bytes_moved
    return {
        "million_parameters": million_parameters,
        "change": f"{change[0]} -> {change[1]}",
        "num_workers": change[1],
        "stop_s": statistics.median(timeline.stop_s for timeline in timelines),
        "worst_stop_s": max(timeline.stop_s for timeline in timelines),
        "goal_s": _GOAL_S + _COPIES * bytes_moved / copied_per_s,
        "prepare_s": statistics.median(timeline.prepare_s for timeline in timelines),
        "bytes_moved": bytes_moved,
        "copied_bytes_per_s": copied_per_s,
        "rounds": len(timelines),
    }


def _of_losses(crashes: list[_Loss], hangs: list[_Loss]) -> Row:
    return {
        "num_losses": len(crashes),
        **_quantiles("crash", [crash.continued_s for crash in crashes]),
        **_quantiles("shrink", [crash.shrink_s for crash in crashes]),
        **_quantiles("replaced", [crash.replaced_s for crash in crashes]),
        **(_quantiles("hang", [hang.continued_s for hang in hangs]) if hangs else {}),
    }


def _quantiles(name: str, seconds: list[float]) -> Row:
    return {f"{name}_s": statistics.median(seconds), f"{name}_p99_s": float(np.percentile(seconds, 99))}


def table(rows: list[Row]) -> Table:
    drawn = table_of(
        "A resize, milliseconds",
        *("parameters", "workers", "stop", "worst", "goal", "prepared in", "MB moved"),
        *(
            "by restart",
            "torchrun",
            "x",
            "SIGKILL, p50",
            "p99",
            "shrink",
            "replaced",
            "SIGSTOP, p50",
            "p99",
        ),
    )
    for row in rows:
        drawn.add_row(
            f"{row['million_parameters']} M",
            row["change"],
            *in_ms(row, "stop_s", "worst_stop_s", "goal_s", "prepare_s"),
            f"{row['bytes_moved'] / 1e6:.1f}",
            *in_ms(row, "restart_s", "torchrun_s"),
            f"{row['torchrun_ratio']:.0f}" if "torchrun_ratio" in row else "",
            *in_ms(row, "crash_s", "crash_p99_s", "shrink_s", "replaced_s", "hang_s", "hang_p99_s"),
        )
    return drawn


class Resized:
    """One job, and its workers as an executor sees them."""

    def __init__(self, engine: Engine, million_parameters: int, model: type[Trained] = PerceptronOfEight) -> None:
        self._engine = engine
        self._assignment = engine.assignment(model, million_parameters)
        self._generation = 0
        self.secrets = GenerationSecrets()  # of the generations that follow
        self.switched_at_s = 0.0  # when the last resize was reported

    async def start(self, num_workers: int, *, generation: int) -> list[WorkerHandle]:
        """Start all workers anew; return after they have trained for a while."""
        self._generation = generation
        workers = [await self._launch(rank, num_workers) for rank in range(num_workers)]
        await self._engine.receive(Progressed, workers[0], rendezvous=workers)
        return workers

    async def switch(
        self,
        before: list[WorkerHandle],
        members: Sequence[int | None],
        *,
        lost: tuple[int, ...] = (),
        num_reports: int = _STEADY_REPORTS,
    ) -> tuple[list[WorkerHandle], ResizeTimeline]:
        """Rank r was rank members[r] before, or is new where that is None. num_reports: of progress, to await."""
        self._generation += 1
        leaving = [w for rank, w in enumerate(before) if rank not in (*members, *lost)]
        size = len(members) + len(leaving)
        workers = [
            await self._launch(rendezvous_rank, len(members), size) if rank is None else before[rank]
            for rendezvous_rank, rank in enumerate(members)
        ]
        for rendezvous_rank, worker in enumerate((*workers, *leaving)):
            if worker in before:
                change = PrepareSwitch(plan=self._plan(len(members), size), rendezvous_rank=rendezvous_rank)
                worker.send(change)
        kind = Started if members[0] is None else Switched
        event = await self._engine.receive(kind, workers[0], rendezvous=[*workers, *leaving])
        switched_at_s = self._engine.received_at_s[kind]
        assert event.resize is not None, "it joined workers that trained"
        for _ in range(num_reports):
            await self._engine.receive(Progressed, workers[0])
        self.switched_at_s = switched_at_s
        return workers, event.resize

    async def step_s(self, workers: list[WorkerHandle]) -> float:
        """The time of a step since the last resize, as the workers report their speed."""
        while True:
            reported = await self._engine.receive(Progressed, workers[0])
            if reported.iterations_per_s is not None:
                return 1.0 / reported.iterations_per_s

    async def lose(self, workers: list[WorkerHandle], number: signal.Signals) -> tuple[list[WorkerHandle], _Loss]:
        """The last worker receives this signal; the others continue, and a new one joins."""
        began_s = time.monotonic()
        os.kill(workers[-1].pid, number)
        await self._engine.receive(Exited, workers[-1])
        last = len(workers) - 1
        for worker in workers[:last]:  # as the ledger would report
            worker.send(PeersLost(generation=self._generation))
        left, timeline = await self.switch(workers, range(last), lost=(last,), num_reports=0)
        continued_s = self.switched_at_s - began_s
        workers, _ = await self.switch(left, [*range(last), None])
        return workers, _Loss(continued_s - timeline.first_step_s, continued_s, self.switched_at_s - began_s)

    async def restart(self, workers: list[WorkerHandle], num_workers: int) -> float:
        """Through a checkpoint: from the command to the first reported step."""
        began_s = time.monotonic()
        for worker in workers:
            worker.send(StopAtBoundary())
        for worker in workers:
            await self._engine.receive(Exited, worker)
        workers = await self.start(num_workers, generation=self._generation + 1)
        took_s = self._engine.received_at_s[Started] - began_s
        for worker in workers:
            worker.kill()
        return took_s

    async def _launch(self, rank: int, world_size: int, rendezvous_size: int = 0) -> WorkerHandle:
        assignment: Assignment = replace(
            self._assignment,
            plan=self._plan(world_size, rendezvous_size),
            rank=rank,
            **device_fields(self._engine.device, rank),
        )
        return await self._engine.launcher.launch(assignment)

    def _plan(self, world_size: int, rendezvous_size: int) -> GenerationPlan:
        return GenerationPlan(
            generation=self._generation,
            world_size=world_size,
            rendezvous_size=rendezvous_size,
            secret=self.secrets.of(self._assignment.job_id, self._generation),
        )

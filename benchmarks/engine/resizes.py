"""Resizes while the other workers train, and losses of one worker.

stop_s: from the step boundary at which all were ready to the first step of the new generation, the only time in which
no worker trains. goal_s: 20 ms plus twice the time for the state's bytes at the speed of a plain copy between
processes. restart_s: the same resize through a checkpoint, from the command to the first step, with processes forked
from a warm server. crash_s and hang_s: from SIGKILL or SIGSTOP of one of the workers to the end of the survivors' next
step. shrink_s: from SIGKILL to the beginning of that step. replaced_s: from SIGKILL to the end of the first step with a
replacement. Of few losses, the 99th percentile is the worst one: `--losses` repeats them.

The model of the stop is seconds + seconds_per_byte * bytes + seconds_per_doubling * log2(workers). It is fitted by
least squares of the relative errors, so that the longest stop does not dominate; no coefficient is negative.

The cost of a secret is what it costs a resize that workers prove the secret of their generation to each other
(docs/adr/0070). One job goes from two workers to four and back, on loopback, in turn with a secret and without: both
meet the same load. prepare_s: from the order to the stop.
"""

import asyncio
import math
import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from rich.table import Table
from scipy.optimize import nnls

from benchmarks.engine.crew import Engine, running_engine
from benchmarks.engine.models import PerceptronOfEight, Trained
from benchmarks.engine.parts import Device, Options, Row, device_fields, in_ms, table_of
from benchmarks.engine.restores import measure_copying
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


# --- a model of the stop -------------------------------------------------------------------------------


def fitted(resizes: list[Row]) -> dict[str, Any]:
    """rows of `resizes`: bytes_moved to each joining worker, num_workers afterwards, stop_s."""
    stop_s_R = np.array([row["stop_s"] for row in resizes])  # R rows
    factors_RC = np.array([(1.0, row["bytes_moved"], math.log2(row["num_workers"])) for row in resizes])
    scale_C = factors_RC.max(axis=0).clip(min=1.0)  # scaled: bytes beside counts would cost all digits
    coefficients_C, _ = nnls(factors_RC / scale_C / stop_s_R[:, None], np.ones(len(resizes)))
    coefficients_C = coefficients_C / scale_C
    errors_R = factors_RC @ coefficients_C / stop_s_R - 1
    return {
        "seconds": float(coefficients_C[0]),
        "seconds_per_byte": float(coefficients_C[1]),
        "seconds_per_doubling": float(coefficients_C[2]),
        "relative_error_rms": float(np.sqrt(np.mean(errors_R**2))),
    }


def stops_by_num_gpus(resizes: list[Row]) -> dict[str, float]:
    """The longest median stop of a resize to so many workers, for any state."""
    by_num_gpus: dict[int, float] = {}
    for row in resizes:
        num_gpus = row["num_workers"]
        by_num_gpus[num_gpus] = max(row["stop_s"], by_num_gpus.get(num_gpus, 0.0))
    return {str(num_gpus): stop_s for num_gpus, stop_s in sorted(by_num_gpus.items())}


# --- the cost of a secret ------------------------------------------------------------------------------


_SECRETS = {"without": GenerationSecrets(), "with": GenerationSecrets(b"0" * 64)}
_SECRET_TIMES = ("stop_s", "prepare_s")


def measure_secrets(options: Options) -> list[Row]:
    return [asyncio.run(_secrets_of_size(size, options)) for size in options.million_parameters]


async def _secrets_of_size(million_parameters: int, options: Options) -> Row:
    """Medians, and the median of the differences between neighbours."""
    timelines: dict[str, list[ResizeTimeline]] = {name: [] for name in _SECRETS}
    async with running_engine(options.device) as engine:
        job = Resized(engine, million_parameters)
        workers = await job.start(2, generation=1)
        for number in range(2 * options.rounds):
            name = ("without", "with")[(number + number // 2) % 2]  # each is first as often as second
            job.secrets = _SECRETS[name]
            workers, timeline = await job.switch(workers, [0, 1, None, None])
            timelines[name].append(timeline)
            workers, _ = await job.switch(workers, [0, 1])
    row: Row = {"million_parameters": million_parameters, "pairs": options.rounds}
    for time_s in _SECRET_TIMES:
        without, with_secret = ([getattr(each, time_s) for each in timelines[name]] for name in _SECRETS)
        what = time_s.removesuffix("_s")
        row |= {f"{what}_without_s": statistics.median(without), f"{what}_with_s": statistics.median(with_secret)}
        differences = [after - before for before, after in zip(without, with_secret, strict=True)]
        lower, median, upper = statistics.quantiles(differences, n=4) if len(differences) > 1 else differences * 3
        row |= {f"{what}_more_s": median, f"{what}_more_quartiles_s": [lower, upper]}
    return row


def secrets_table(rows: list[Row]) -> Table:
    drawn = table_of(
        "A resize from two to four workers, without and with a secret, milliseconds",
        *("parameters", "pairs", "stop without", "with", "more", "prepared without", "with", "more"),
    )
    for row in rows:
        times = (f"{time_s[:-2]}_{what}_s" for time_s in _SECRET_TIMES for what in ("without", "with", "more"))
        drawn.add_row(f"{row['million_parameters']} M", str(row["pairs"]), *in_ms(row, *times))
    return drawn

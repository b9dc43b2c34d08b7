"""The five changes of ElasticFlow's Figure 12, each without a stop of the job and through a checkpoint."""

import asyncio
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.engine.elastic import Engine, running_engine
from benchmarks.engine.models import PerceptronOfSixteen
from benchmarks.engine.resizes import Resized

Change = tuple[str, int, Sequence[int | None]]  # name, workers before, and each new rank's old one


def changes(*, million_parameters: int, rounds: int) -> Mapping[str, float]:
    """Medians in seconds.

    preparation, stop: of workers that switch; only in the stop no worker trains. restart: from the command to the first
    step through a checkpoint, the interval that the paper reports.
    """
    return asyncio.run(_measured(million_parameters, rounds))


def _five_changes() -> tuple[Change, ...]:
    grown = [*range(8), *[None] * 8]
    return (
        ("1-to-2", 1, [0, None]),
        ("2-to-1", 2, [0]),
        ("8-to-16", 8, grown),
        ("16-to-8", 16, range(8)),
        ("migration-8", 8, [None] * 8),
    )


async def _measured(million_parameters: int, rounds: int) -> dict[str, float]:
    numbers = dict[str, float]()
    async with running_engine() as engine:
        for change in _five_changes():
            numbers |= await _of_change(engine, change, million_parameters, rounds)
    numbers["preparation-share-1-to-2"] = numbers["preparation-1-to-2"] / (
        numbers["preparation-1-to-2"] + numbers["stop-1-to-2"]
    )
    numbers["saved-1-to-2"] = 1.0 - numbers["stop-1-to-2"] / numbers["restart-1-to-2"]
    return numbers


async def _of_change(engine: Engine, change: Change, million_parameters: int, rounds: int) -> dict[str, float]:
    name, before, members = change
    restarts_s, stops_s, preparations_s = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        job = Resized(engine, million_parameters, PerceptronOfSixteen)
        restarts_s.append(await job.restart(await job.start(before, generation=1), len(members)))
        workers, timeline = await job.switch(await job.start(before, generation=3), members, num_reports=0)
        stops_s.append(timeline.stop_s)
        preparations_s.append(timeline.prepare_s)
        for worker in workers:
            worker.kill()
    return {
        f"restart-{name}": statistics.median(restarts_s),
        f"stop-{name}": statistics.median(stops_s),
        f"preparation-{name}": statistics.median(preparations_s),
    }

"""What it costs a resize that workers prove the secret of their generation to each other (docs/adr/0070).

One job goes from two workers to four and back, on loopback, in turn with a secret and without: both meet the same load.
stop_s: the time in which no worker trains. prepare_s: from the order to that time.
"""

import asyncio
import statistics

from rich.table import Table

from benchmarks.engine.elastic import running_engine
from benchmarks.engine.parts import Options, Row, in_ms, table_of
from benchmarks.engine.resizes import Resized
from elasticflow.services.executor.processes.manager import GenerationSecrets
from elasticflow.shared.messages.measurements import ResizeTimeline

_SECRETS = {"without": GenerationSecrets(), "with": GenerationSecrets(b"0" * 64)}
_TIMES = ("stop_s", "prepare_s")


def measure(options: Options) -> list[Row]:
    return [asyncio.run(_of_size(size, options)) for size in options.million_parameters]


async def _of_size(million_parameters: int, options: Options) -> Row:
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
    for time in _TIMES:
        without, with_secret = ([getattr(each, time) for each in timelines[name]] for name in _SECRETS)
        what = time.removesuffix("_s")
        row |= {f"{what}_without_s": statistics.median(without), f"{what}_with_s": statistics.median(with_secret)}
        differences = [after - before for before, after in zip(without, with_secret, strict=True)]
        lower, median, upper = statistics.quantiles(differences, n=4) if len(differences) > 1 else differences * 3
        row |= {f"{what}_more_s": median, f"{what}_more_quartiles_s": [lower, upper]}
    return row


def table(rows: list[Row]) -> Table:
    drawn = table_of(
        "A resize from two to four workers, without and with a secret, milliseconds",
        *("parameters", "pairs", "stop without", "with", "more", "prepared without", "with", "more"),
    )
    for row in rows:
        times = (f"{time[:-2]}_{what}_s" for time in _TIMES for what in ("without", "with", "more"))
        drawn.add_row(f"{row['million_parameters']} M", str(row["pairs"]), *in_ms(row, *times))
    return drawn

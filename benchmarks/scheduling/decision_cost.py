"""`python -m benchmarks.scheduling.decision_cost`: how the CPU time of one admission decision grows.

With live jobs, at two GPUs for each; and with GPUs, at a fixed number of live jobs. The pools are those of
`pools.py`: promises are constructed, so that 30,000 jobs take minutes and not days. A decision is on a request
for a deadline after all jobs have reported, as in `decisions.py`; it is not carried out, so that all see one pool.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.report import machine
from benchmarks.scheduling.decisions import APART_S, LOOSE, recipe_of
from benchmarks.scheduling.pools import all_reported, arriving_jobs, laid_out_pool, plain_pass, submitted
from benchmarks.scheduling.report import Sheet, show
from benchmarks.scheduling.workloads import tables
from benchmarks.timing import Took, spread_ms, timed
from elasticflow.services.admission import policy as admission
from elasticflow.services.admission.quote import quote
from elasticflow.shared.messages.commands import QuoteDeadline
from elasticflow.shared.messages.events import JobAdmitted
from elasticflow.shared.runtime.service.run_service import keep_what_is_loaded
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.simulator.trace.simulation import spec_of, submission
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.workload import TENANT

LIVE_JOBS = (10, 100, 1_000, 3_000, 10_000, 30_000)
GPUS_PER_JOB = 2
GPUS = (8, 64, 512, 4_096, 32_768, 100_000)
LIVE_JOBS_BESIDE_GPUS = 100
MOST_DECISIONS, LEAST_DECISIONS = 200, 5
WITHIN = 0.25  # a power law holds where no size is further from it than this part
WHAT = ("decision", "quote", "plain pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """Time = constant * size ** exponent, by least squares of the logarithms, for sizes from least to most."""

    exponent: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.exponent:.2f} ({self.least:,.0f} to {self.most:,.0f})"


def fitted(sizes: Sequence[float], times: Sequence[float]) -> PowerLaw | None:
    """The law of the most sizes beside each other, three at least, of which none is off by more than WITHIN.

    Of several such ranges, the one with the largest sizes counts.
    """
    log_sizes, log_times = np.log(np.array(sizes)), np.log(np.array(times))
    for count in range(len(sizes), 2, -1):
        for first in range(len(sizes) - count, -1, -1):
            part = slice(first, first + count)
            exponent, constant = np.polyfit(log_sizes[part], log_times[part], 1)
            off = np.abs(log_times[part] - (exponent * log_sizes[part] + constant))
            if float(off.max()) <= math.log1p(WITHIN):
                return PowerLaw(exponent=float(exponent), least=sizes[first], most=sizes[first + count - 1])
    return None


def steps(sizes: Sequence[float], times: Sequence[float]) -> list[float]:
    """The exponent between each size and the next."""
    return [
        math.log(after / before) / math.log(larger / smaller)
        for smaller, larger, before, after in zip(sizes, sizes[1:], times, times[1:], strict=False)
    ]


def measured_size(known: Throughputs, *, num_gpus: int, num_live: int, seconds: float) -> dict[str, Any]:
    """Decisions, quotes and plain passes in one pool, for so long, but a few at least.

    The first decision, for which nothing is cached, is not counted: it is of a service that has just started.
    """
    recipe = recipe_of(num_gpus, num_live, LOOSE)
    (state, now_s), built = timed(partial(laid_out_pool, recipe, known, num_live))
    cache, until_s = PlanningCache(), time.monotonic() + seconds
    times: dict[str, list[Took]] = {what: [] for what in WHAT}
    admitted = 0
    for number, job in enumerate(arriving_jobs(replace(recipe, num_jobs=6 * MOST_DECISIONS), known, MOST_DECISIONS)):
        if number > LEAST_DECISIONS and time.monotonic() >= until_s:
            break
        now_s += APART_S
        asking = submitted(job, now_s)
        reported = all_reported(state, now_s)
        events, took = timed(partial(admission.decide, reported, (submission(asking),), now_s, cache))
        if not number:
            continue
        admitted += any(isinstance(event, JobAdmitted) for event in events)
        times["decision"].append(took)
        question = QuoteDeadline(tenant=TENANT, spec=spec_of(asking))
        times["quote"].append(timed(partial(quote, reported, question, now_s, cache))[1])
        times["plain pass"].append(timed(partial(plain_pass, reported))[1])
    return {
        "num_gpus": state.num_gpus,
        "live_jobs": len(state.live_jobs),
        "decisions": len(times["decision"]),
        "admitted": admitted,
        "pool_built_cpu_s": built.cpu_s,
        "cpu_ms": {what: spread_ms([took.cpu_s for took in tooks]) for what, tooks in times.items()},
    }


def law_rows(rows: Sequence[dict[str, Any]], size: str) -> dict[str, Any]:
    """The power law of each kind of call, and the exponent from each size to the next."""
    sizes = [float(row[size]) for row in rows]
    found: dict[str, Any] = {}
    for what in WHAT:
        medians = [row["cpu_ms"][what]["p50"] for row in rows]
        law = fitted(sizes, medians)
        found[what] = {
            "law": None if law is None else {"exponent": law.exponent, "least": law.least, "most": law.most},
            "steps": steps(sizes, medians),
        }
    return found


def sheet_of(title: str, rows: Sequence[dict[str, Any]], size: str) -> Sheet:
    """A line for each size, and a last one with the fitted exponents."""
    laws = law_rows(rows, size)
    by_step = {what: ["", *(f" ^{exponent:.2f}" for exponent in laws[what]["steps"])] for what in WHAT}

    def cell(row: dict[str, Any], number: int, what: str) -> str:
        spread = row["cpu_ms"][what]
        return f"{spread['p50']:.2f} / {spread['p99']:.2f}{by_step[what][number]}"

    def law_of(what: str) -> str:
        law = laws[what]["law"]
        return "no power law" if law is None else f"{PowerLaw(**law)}"

    lines = [
        (
            f"{row['live_jobs']:,}",
            f"{row['num_gpus']:,}",
            f"{row['admitted']} of {row['decisions']}",
            *(cell(row, number, what) for what in WHAT),
            f"{row['pool_built_cpu_s']:.0f} s",
        )
        for number, row in enumerate(rows)
    ]
    columns = ("live jobs", "GPUs", "admitted", *(f"{what}, p50 / p99, ms" for what in WHAT), "pool built")
    last = ("exponent", "", "", *(law_of(what) for what in WHAT), "")
    return Sheet(title=f"{title}, CPU on one core, {machine()}", columns=columns, rows=(*lines, last))


def main(
    seconds: Annotated[float, typer.Option(min=1.0, help="No size is begun after so long.")] = 900.0,
    most_jobs: Annotated[int, typer.Option(min=10, help="The most live jobs.")] = LIVE_JOBS[-1],
    most_gpus: Annotated[int, typer.Option(min=8, help="The most GPUs beside a fixed number of jobs.")] = GPUS[-1],
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON object.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure how the time of a decision grows with live jobs and with GPUs.

    \b
    Examples:
      python -m benchmarks.scheduling.decision_cost --out decision_cost.json
      python -m benchmarks.scheduling.decision_cost --seconds 60 --most-jobs 1000 --most-gpus 512
    """
    known, until_s = tables(None), time.monotonic() + seconds
    by_gpus = [(LIVE_JOBS_BESIDE_GPUS, num_gpus) for num_gpus in GPUS if num_gpus <= most_gpus]
    by_jobs = [(num_live, GPUS_PER_JOB * num_live) for num_live in LIVE_JOBS if num_live <= most_jobs]
    warm_up()
    keep_what_is_loaded()
    measured_size(known, num_gpus=16, num_live=8, seconds=0.0)  # what is still compiled or loaded is not counted
    each_s = seconds / (2 * len(by_gpus) + 2 * len(by_jobs))  # as long again to build the pools
    results: dict[str, list[dict[str, Any]]] = {"by_gpus": [], "by_live_jobs": []}
    for part, wanted in (("by_gpus", by_gpus), ("by_live_jobs", by_jobs)):
        for num_live, num_gpus in wanted:
            if time.monotonic() >= until_s:
                print(f"no time for {num_live:,} jobs on {num_gpus:,} GPUs", file=sys.stderr, flush=True)
                continue
            row = measured_size(known, num_gpus=num_gpus, num_live=num_live, seconds=each_s)
            results[part].append(row)
            print(f"{num_live:,} jobs on {num_gpus:,} GPUs are measured", file=sys.stderr, flush=True)
    sizes = {"by_gpus": "num_gpus", "by_live_jobs": "live_jobs"}
    laws = {part: law_rows(rows, sizes[part]) for part, rows in results.items()}
    titles = {"by_gpus": "Decisions against GPUs", "by_live_jobs": f"Decisions, {GPUS_PER_JOB} GPUs a live job"}
    drawn = (sheet_of(titles[part], rows, sizes[part]) for part, rows in results.items())
    show(drawn, {"machine": machine(), **results, "exponents": laws}, as_json=as_json, out=out)


if __name__ == "__main__":
    typer.run(main)

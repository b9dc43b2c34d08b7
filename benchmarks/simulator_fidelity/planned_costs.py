"""`python -m benchmarks.simulator_fidelity.planned_costs`: promises by the budget for a change of GPUs.

Workers switch without a stop (docs/adr/0018), but each plan budgets a whole start at each change. A budget by kind of
change would lie between the first two here. A confidence says how fast a promise assumes the job to be, not how long a
change takes; with `--speed-noise` the speeds differ from their curves, and each confidence plans with each budget.
"""

import os
from collections.abc import Iterator
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.report import Measured, Row, report, where_and_when
from benchmarks.scheduling.workloads import Case, cluster_of, generated_cases, tables, trace_cases
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.timing.training_time import SwitchTime, TrainingTime
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.failures_and_speed_noise import Deviations, SpeedNoise
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation

CONFIDENCES = (None, 0.9, 0.99)  # of promises in pools whose jobs differ from their curves
_FACTORS = (1, 10)  # of the reference cost
_STOP_S = 0.15  # of a switch, as measured live
_STOP = "the stop of a switch"
_START = "a whole start"
_START_AND_WAIT = "a start, and the wait until another job has left"
BUDGETS = (_STOP, _START, _START_AND_WAIT)
_COUNTS = ("admitted", "met", "late")

_Speeds = tuple[float | None, SpeedNoise | None]  # the confidence of promises, and how speeds differ from curves


def main(
    traces: Annotated[Path | None, typer.Option(help="Folder of traces.", show_default="those at hand")] = None,
    throughputs: Annotated[Path | None, typer.Option(help="Folder of tables.", show_default="those at hand")] = None,
    first: Annotated[int | None, typer.Option(min=1, help="So many jobs of each workload.", show_default="all")] = None,
    speed_noise: Annotated[
        float | None,
        typer.Option(help="True speed: curve times a lognormal factor. Then each confidence is simulated."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="With --speed-noise: so many draws of the speeds.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Simulate each workload with three budgets for a change, and the same physics: jobs switch without a stop."""
    before, known = os.getloadavg()[0], tables(throughputs)
    cases = [*trace_cases(traces, known), *generated_cases(known)]
    taken = cases if first is None else [case.first(first) for case in cases]
    measured = [_measured(*each) for each in product(taken, _FACTORS, _speeds(speed_noise, seeds))]
    result = {**where_and_when(before), "speed_noise": speed_noise, "planned_costs": measured}
    report(
        "; ".join(("Budgets for a change of GPUs", *BUDGETS)), result, {"planned_costs": rows}, as_json=as_json, out=out
    )


def _speeds(sigma: float | None, seeds: int) -> list[_Speeds]:
    """sigma: None if all jobs are as fast as their curves."""
    if sigma is None:
        return [(None, None)]
    return [(each, SpeedNoise(seed=seed, sigma=sigma)) for each in CONFIDENCES for seed in range(1, seeds + 1)]


def _measured(case: Case, factor: int, speeds: _Speeds) -> Measured:
    """The jobs admitted with each budget, and the admitted jobs that met their deadline or were late."""
    confidence, noise = speeds
    cost = _scaled(reference_cost(case.published_gpus), factor)
    changes = _changes(cost)
    budgets = {_STOP: ResizeCost.flat(_STOP_S), _START: cost, _START_AND_WAIT: _scaled(cost, 2)}
    numbers: dict[str, Any] = {}
    for name, budget in budgets.items():
        result = Simulation(
            case.workload,
            cluster_of(case.published_gpus),
            TrainingModel(resize_cost=budget, changes=changes),
            SimulatedPool(confidence=confidence),
            Deviations(noise=noise),
        ).run()
        numbers[name] = {"admitted": result.num_admitted, "met": result.num_met(), "late": result.num_late()}
    return {
        "workload": case.name,
        "jobs": len(case.workload.jobs),
        "factor": factor,
        "confidence": confidence,
        "seed": None if noise is None else noise.seed,
        "budgets": numbers,
    }


def _scaled(cost: ResizeCost, factor: float) -> ResizeCost:
    return ResizeCost(cost.num_gpus_C, tuple(factor * seconds for seconds in cost.seconds_C))


def _changes(start: ResizeCost) -> TrainingTime:
    """Starts and preparations take as long, also of jobs that shrink, whose GPUs others wait for."""
    switch = SwitchTime(prepare=start, stop=ResizeCost.flat(_STOP_S))
    return TrainingTime(first_start=start, restart=start, grow=switch, shrink=switch, suspend=start)


def rows(measured: list[Measured]) -> Iterator[Row]:
    """The seeds of each workload added up, then all workloads."""
    for (workload, factor, confidence), runs in groupby(measured, itemgetter("workload", "factor", "confidence")):
        yield _row(workload, factor, confidence, list(runs))
    for factor, confidence in dict.fromkeys((run["factor"], run["confidence"]) for run in measured):
        alike = [run for run in measured if (run["factor"], run["confidence"]) == (factor, confidence)]
        yield _row("all", factor, confidence, alike)


def _row(workload: str, factor: int, confidence: float | None, runs: list[Measured]) -> Row:
    counted = "; ".join(", ".join(str(number) for number in added_up(runs, budget)) for budget in BUDGETS)
    sure = "" if confidence is None else f", confidence {confidence:g}"
    return Row(
        f"{workload}, {factor} x the reference cost{sure}: admitted, met, late by budget",
        counted,
        "none late",
        f"of {sum(run['jobs'] for run in runs)} jobs",
    )


def added_up(runs: list[Measured], budget: str) -> tuple[int, ...]:
    """Jobs that were admitted, that met their deadline, and that were late."""
    return tuple(sum(run["budgets"][budget][name] for run in runs) for name in _COUNTS)


if __name__ == "__main__":
    typer.run(main)

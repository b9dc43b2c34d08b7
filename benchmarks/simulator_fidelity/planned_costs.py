"""`python -m benchmarks.simulator_fidelity.planned_costs`: promises by the budget for a change of GPUs.

Workers switch without a stop (docs/adr/0018), but each plan budgets a whole start at each change. A budget by kind of
change would lie between the first two here.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.report import Measured, Row, report, where_and_when
from benchmarks.scheduling.workloads import Case, cluster_of, generated_cases, tables, trace_cases
from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.timing.training_time import SwitchTime, TrainingTime
from elasticflow.simulator.trace.simulation import Simulation

_FACTORS = (1, 10)  # of the reference cost
_STOP_S = 0.15  # of a switch, as measured live
_STOP = "the stop of a switch"
_START = "a whole start"
_START_AND_WAIT = "a start, and the wait until another job has left"
_BUDGETS = (_STOP, _START, _START_AND_WAIT)


def main(
    traces: Annotated[Path | None, typer.Option(help="Folder of traces.", show_default="those at hand")] = None,
    throughputs: Annotated[Path | None, typer.Option(help="Folder of tables.", show_default="those at hand")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Simulate each workload with three budgets for a change, and the same physics: jobs switch without a stop."""
    before, known = os.getloadavg()[0], tables(throughputs)
    cases = [*trace_cases(traces, known), *generated_cases(known)]
    measured = [_measured(case, factor) for case in cases for factor in _FACTORS]
    result = {**where_and_when(before), "planned_costs": measured}
    report("Budgets for a change of GPUs", result, {"planned_costs": rows}, as_json=as_json, out=out)


def _measured(case: Case, factor: int) -> Measured:
    """Of each budget: jobs admitted, and admitted jobs that were late."""
    cost = _scaled(reference_cost(case.published_gpus), factor)
    changes = _changes(cost)
    budgets = {_STOP: ResizeCost.flat(_STOP_S), _START: cost, _START_AND_WAIT: _scaled(cost, 2)}
    numbers: dict[str, Any] = {}
    for name, budget in budgets.items():
        result = Simulation(case.workload, cluster_of(case.published_gpus), resize_cost=budget, changes=changes).run()
        numbers[name] = {"admitted": result.num_admitted, "met": result.num_met(), "late": result.num_late()}
    return {"workload": case.name, "jobs": len(case.workload.jobs), "factor": factor, "budgets": numbers}


def _scaled(cost: ResizeCost, factor: float) -> ResizeCost:
    return ResizeCost(cost.num_gpus_C, tuple(factor * seconds for seconds in cost.seconds_C))


def _changes(start: ResizeCost) -> TrainingTime:
    """Starts and preparations take as long, also of jobs that shrink, whose GPUs others wait for."""
    switch = SwitchTime(prepare=start, stop=ResizeCost.flat(_STOP_S))
    return TrainingTime(first_start=start, restart=start, grow=switch, shrink=switch, suspend=start)


def rows(measured: list[Measured]) -> Iterator[Row]:
    for case in measured:
        for budget in _BUDGETS:
            numbers = case["budgets"][budget]
            what = f"{case['workload']}, {case['factor']} x the reference cost, budget {budget}: admitted, late"
            yield Row(what, f"{numbers['admitted']}, {numbers['late']}", "none late", f"of {case['jobs']} jobs")


if __name__ == "__main__":
    typer.run(main)

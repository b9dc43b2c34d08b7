"""`python -m benchmarks.simulator_fidelity.planned_costs_live`: promises of a live pool, by the budget for a change.

The live side of `planned_costs`: the same jobs, on pools that differ in nothing but the budget for a change of GPUs,
and with `--confidence` in the speed that a promise assumes. Deadlines leave little more than the work, so that the
budget decides which jobs are admitted. The control job first runs alone; a run in which its speed differs is void.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.report import Measured, Row, report, where_and_when
from benchmarks.simulator_fidelity.outcomes import Calibration, control_row, recorded_run, verdict
from benchmarks.simulator_fidelity.workload import (
    CONFIG,
    CONTROL,
    arrivals,
    read_messages,
    run_unless_kept,
    tight_arrivals,
)
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.process.logs import configure_logs
from elasticflow.simulator.timing.recorded_times import recorded_times

_STOP_S = 0.15  # of a switch
BUDGETS: Mapping[str, PoolConfig] = {
    "the stop of a switch": replace(CONFIG, resize_cost_s_by_num_gpus={1: _STOP_S}),
    "a start as learned": replace(CONFIG, resize_cost_s=_STOP_S),
    "a start, at least 2 s": CONFIG,
}


class Run(NamedTuple):
    """A workload on a pool with one budget. confidence: None: promises have the margin for speeds instead."""

    seed: int
    jobs: int
    confidence: float | None
    budget: str

    @property
    def config(self) -> PoolConfig:
        return replace(BUDGETS[self.budget], confidence=self.confidence)

    @property
    def name(self) -> str:
        return f"{self.seed}-{self.jobs}jobs-{list(BUDGETS).index(self.budget)}-{_speeds(self.confidence)}"


def main(
    out: Annotated[Path, typer.Option(help="Folder of the ledgers and of planned_costs_live.json.")] = Path("budgets"),
    jobs: Annotated[int, typer.Option(min=1, help="Jobs of a run, beside the control job.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Workloads, each with every budget and confidence.")] = 3,
    confidence: Annotated[
        list[float] | None,
        typer.Option(min=0.5, max=0.9999, help="Also promise with this probability; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first workload.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the ledgers that --out has.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
) -> None:
    """Run each workload on a live pool of CPU slots with each budget.

    Exit code 1 if a run is void: it has no result, and --resume repeats it. Delete control-alone.eflow if all are.
    """
    os.environ.pop("NATS_URL", None)  # each run has a pool of its own
    configure_logs(level="error")
    before = os.getloadavg()[0]
    out.mkdir(parents=True, exist_ok=True)
    alone = out / f"{CONTROL}-alone.eflow"
    run_unless_kept(arrivals(seed, 0), alone, resume=resume)
    undisturbed = Calibration.of(recorded_times(read_messages(alone)))
    runs = product(range(seed, seed + repeats), (jobs,), (None, *(confidence or ())), BUDGETS)
    measured = [_measured(Run(*each), undisturbed, out, resume) for each in runs]
    result = {**where_and_when(before), "jobs": jobs, "planned_costs_live": measured}
    report(
        "Budgets for a change of GPUs, live",
        result,
        {"planned_costs_live": rows},
        as_json=as_json,
        out=out / "planned_costs_live.json",
    )
    raise typer.Exit(int(any(run["void"] for run in measured)))


def _measured(run: Run, undisturbed: Calibration, folder: Path, resume: bool) -> Measured:
    """The number of jobs with a deadline that were admitted, and of these that were late. Nothing of a void run."""
    asked, ledger = tight_arrivals(run.seed, run.jobs), folder / f"{run.name}.eflow"
    run_unless_kept(asked, ledger, resume=resume, config=run.config)
    messages = read_messages(ledger)
    control = verdict(undisturbed.control_change(messages))
    if control["void"]:
        ledger.replace(ledger.with_suffix(".void.eflow"))
        return {**run._asdict(), **control}
    outcomes = recorded_run(messages).outcomes.values()
    promised = [outcome for outcome in outcomes if outcome.deadline_s is not None]
    return {
        **run._asdict(),
        **control,
        "asked": sum(job.deadline_in_s is not None for job in asked),
        "admitted": len(promised),
        "late": sum(not outcome.met for outcome in promised),
    }


def rows(measured: list[Measured]) -> Iterator[Row]:
    """The workloads of each budget and confidence added up, without void runs; then the control job of each run."""
    for confidence, name in product(dict.fromkeys(run["confidence"] for run in measured), BUDGETS):
        runs = [run for run in measured if (run["confidence"], run["budget"]) == (confidence, name)]
        valid = [run for run in runs if not run["void"]]
        admitted, late, asked = (sum(run[what] for run in valid) for what in ("admitted", "late", "asked"))
        each = ", ".join("void" if run["void"] else f"{run['admitted']} ({run['late']})" for run in runs)
        yield Row(
            f"budget {name}, {_speeds(confidence)}: admitted, late",
            f"{admitted}, {late}",
            "none late",
            f"of {asked}; runs: {each}",
        )
    for run in measured:
        name = f"workload {run['seed']}, {run['budget']}, {_speeds(run['confidence'])}"
        yield control_row(name, run, "the control job alone")


def _speeds(confidence: float | None) -> str:
    return "margin" if confidence is None else f"confidence-{confidence:g}"


if __name__ == "__main__":
    typer.run(main)

"""`python -m benchmarks.simulator_fidelity`: an unseen workload on a live pool, and simulated after one calibration."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.report import Measured, Row, report, where_and_when
from benchmarks.simulator_fidelity.outcomes import (
    Calibration,
    Comparison,
    compared,
    control_row,
    name_and_verdict,
    recorded_run,
    verdict,
)
from benchmarks.simulator_fidelity.workload import (
    CONFIG,
    Arrival,
    arrivals,
    calibration_arrivals,
    read_messages,
    run_unless_kept,
)
from elasticflow.shared.runtime.process.logs import configure_logs
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.timing.recorded_times import recorded_times

_GOAL = "3 %"
_TITLES = {
    "simulated": "simulator's own decisions against {}",
    "placements": "simulator with recorded placements against {}",
    "stops": "the same, each change a stop of the planned cost, against {}",
}


def main(
    out: Annotated[Path, typer.Option(help="Folder of the ledgers and of fidelity.json.")] = Path("fidelity"),
    jobs: Annotated[int, typer.Option(min=1, help="Jobs of a run, beside the control job.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Live runs of the test workload.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of the calibration; the test workload has the next one.")] = 1,
    scale: Annotated[
        float, typer.Option(min=0.1, help="Jobs, and the gaps between them, are so many times longer.")
    ] = 1.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the ledgers that --out has; else all are run.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
) -> None:
    """Measure how far the simulator is from a live pool on CPU slots. Exit code 1 if every live run is void."""
    os.environ.pop("NATS_URL", None)  # each run has a pool of its own
    configure_logs(level="error")
    before = os.getloadavg()[0]
    out.mkdir(parents=True, exist_ok=True)
    calibration, test = calibration_arrivals(seed, jobs, scale), arrivals(seed + 1, jobs, scale)
    wanted = {
        out / f"calibration-{seed}-{jobs}-{scale:g}.eflow": calibration,
        **{out / f"test-{seed + 1}-{jobs}-{scale:g}-{number}.eflow": test for number in range(repeats)},
    }
    for ledger, workload in wanted.items():
        run_unless_kept(workload, ledger, resume=resume)
    first, *others = wanted
    measured = measure(first, tuple(others), test)
    result = {**where_and_when(before), "seed": seed, "jobs": jobs, "scale": scale, "fidelity": measured}
    report("Simulator against live pool", result, {"fidelity": rows}, as_json=as_json, out=out / "fidelity.json")
    raise typer.Exit(int(all(run["void"] for run in measured["runs"])))


def measure(calibration_ledger: Path, ledgers: tuple[Path, ...], jobs: tuple[Arrival, ...]) -> Measured:
    """The calibration, the errors in each live run, and those of live runs against each other."""
    times = recorded_times(read_messages(calibration_ledger))
    calibration = Calibration.of(times)
    simulated, planned = calibration.simulated(jobs), ResizeCost.flat(CONFIG.resize_cost_s)
    runs: list[dict[str, Any]] = []
    live = {ledger.stem: read_messages(ledger) for ledger in ledgers}
    recorded = {name: recorded_run(messages) for name, messages in live.items()}
    for name, messages in live.items():
        run = recorded[name]
        runs.append(
            {
                "run": name,
                **verdict(calibration.control_change(messages)),
                "simulated": _numbers(compared(simulated, run.outcomes)),
                "placements": _numbers(compared(calibration.with_recorded_placements(jobs, run), run.outcomes)),
                "stops": _numbers(compared(calibration.with_recorded_placements(jobs, run, planned), run.outcomes)),
            }
        )
    floor = [
        {"runs": [one, other], **_numbers(compared(recorded[one].outcomes, recorded[other].outcomes))}
        for one, other in combinations([run["run"] for run in runs if not run["void"]], 2)
    ]
    return {
        "changes": asdict(calibration.changes),
        "num_changes": {
            kind: {num: len(seconds) for num, seconds in found.items()}
            for kind, found in vars(times).items()
            if kind != "trained"
        },
        "rates": calibration.rates,
        "assumed": calibration.assumed,
        "runs": runs,
        "live_against_live": floor,
    }


def _numbers(comparison: Comparison) -> dict[str, Any]:
    return {
        "mean": comparison.mean,
        "p95": comparison.p95,
        "worst": comparison.worst,
        "met": comparison.met,
        "gpu_seconds_error": comparison.gpu_seconds_error,
        "makespan_error": comparison.makespan_error,
        "other_fates": comparison.other_fates,
        "errors": dict(comparison.errors),
    }


def rows(measured: Measured) -> Iterator[Row]:
    for run in measured["runs"]:
        yield control_row(run["run"], run, "the calibration")
        for which, title in _TITLES.items():
            yield _row(title.format(name_and_verdict(run["run"], run)), run[which], _GOAL)
    for pair in measured["live_against_live"]:
        yield _row(" against ".join(pair["runs"]), pair, "")


def _row(what: str, numbers: Measured, goal: str) -> Row:
    met, other = numbers["met"]
    beside = (
        f"deadlines met {met} / {other}; GPU-seconds {numbers['gpu_seconds_error']:+.1%}; "
        f"makespan {numbers['makespan_error']:+.1%}; jobs with another fate: {len(numbers['other_fates'])}"
    )
    return Row(
        f"{what}: error of completion times, mean / p95 / worst",
        f"{numbers['mean']:.1%} / {numbers['p95']:.1%} / {numbers['worst']:.1%}",
        goal,
        beside,
    )


if __name__ == "__main__":
    typer.run(main)

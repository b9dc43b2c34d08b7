"""`python -m benchmarks.heterogeneous`: jobs on GPUs of several types, beside goals and other solvers."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.heterogeneous import completion_times, deadlines, mixed_slots, solver
from benchmarks.report import RowsOf, report, where_and_when
from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.workload.workload import TypedPool, typed_pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """scale: of the work, 1 for numbers to quote. pool, first_seed: of the parts that simulate one."""

    scale: float
    pool: TypedPool
    first_seed: int

    def scaled(self, number: int) -> int:
        return max(int(number * self.scale), 1)


@dataclass(frozen=True, slots=True)
class Part:
    measure: Callable[[Options], Any]  # what the JSON object has under the name of the part
    rows: RowsOf


class PartName(StrEnum):
    """What can be measured alone; also the name of its numbers in the JSON object."""

    SOLVER = "solver"
    COMPLETION_TIMES = "completion_times"
    MIXED_SLOTS = "mixed_slots"
    DEADLINES = "deadlines"
    PUBLISHED_TRACES = "published_traces"
    ONE_TYPE = "one_type"
    DECISION_TIME = "decision_time"
    RESIZES = "resizes"


PARTS: Mapping[str, Part] = {
    PartName.SOLVER: Part(
        lambda options: solver.measure_solver(num_splits=options.scaled(1000), num_checked=options.scaled(200), seed=0),
        solver.rows,
    ),
    PartName.COMPLETION_TIMES: Part(
        lambda options: completion_times.measure_completion_times(
            options.pool, num_jobs=options.scaled(300), first_seed=options.first_seed
        ),
        completion_times.rows,
    ),
    PartName.MIXED_SLOTS: Part(
        lambda options: mixed_slots.measure_mixed_slots(num_mixes=options.scaled(mixed_slots.NUM_MIXES)),
        mixed_slots.rows,
    ),
    PartName.DEADLINES: Part(
        lambda options: deadlines.measure_deadlines(share_of_cases=options.scale, num_jobs=options.scaled(100)),
        deadlines.deadline_rows,
    ),
    PartName.PUBLISHED_TRACES: Part(
        lambda options: deadlines.measure_published_traces(max_jobs=options.scaled(300)), deadlines.trace_rows
    ),
    PartName.ONE_TYPE: Part(
        lambda options: deadlines.measure_one_type(num_nodes=options.scaled(4)), deadlines.one_type_rows
    ),
    PartName.DECISION_TIME: Part(
        lambda options: deadlines.measure_decision_time(
            num_gpus=4 * options.scaled(512), num_live=options.scaled(1000), count=options.scaled(200)
        ),
        deadlines.decision_rows,
    ),
    PartName.RESIZES: Part(
        lambda options: mixed_slots.measure_resizes(num_schedules=options.scaled(10)),
        mixed_slots.resize_rows,
    ),
}


def main(
    only: Annotated[list[PartName] | None, typer.Option(help="Measure this part alone; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option(help="A tenth of the work: to see that it runs, not to quote.")] = False,
    pool: Annotated[
        str, typer.Option(help="GPUs that are simulated, as NUMBERxTYPE of the types V100, P100 and K80.")
    ] = "4xV100,8xP100,16xK80",
    first_seed: Annotated[int, typer.Option(help="Of the three seeds of completion_times.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure what jobs on GPUs of several types need, on this machine."""
    try:
        result = _measure(
            only or list(PartName), Options(scale=0.1 if quick else 1.0, pool=typed_pool(pool), first_seed=first_seed)
        )
    except BadSettings as error:
        raise typer.BadParameter(str(error), param_hint="--pool") from error
    rows_of = {name: part.rows for name, part in PARTS.items()}
    report("GPUs of several types", result, rows_of, as_json=as_json, out=out)


def _measure(names: list[PartName], options: Options) -> dict[str, Any]:
    before = os.getloadavg()[0]
    result = {name.value: PARTS[name].measure(options) for name in names}
    return {**where_and_when(before), **result}


if __name__ == "__main__":
    typer.run(main)

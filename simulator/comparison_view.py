"""A comparison of policies as people and programs read it."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, get_args

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from simulator.comparison import Comparison, Fate, OtherDecision
from simulator.view import clock_time, headed, plain_table

WHOSE = ("recorded", "modelled", "other")
MANY = 20  # rows after which a table is cut


def as_object(comparison: Comparison) -> dict[str, Any]:
    """All of it, ready for JSON."""
    return asdict(comparison) | {"counts": {whose: dict(comparison.count(whose)) for whose in WHOSE}}


def shown(comparison: Comparison) -> Group:
    """The first decisions that differ, how the jobs fare, and who fares differently."""
    title = Text(
        f"{comparison.policy} after sequence {comparison.from_sequence}; the record ends at "
        f"{comparison.until_sequence}, {clock_time(comparison.until_s)}; the model goes on to "
        f"{clock_time(comparison.modelled_until_s)}, the last deadline, as if nobody else came"
    )
    return Group(
        title,
        *_first_differences(comparison),
        headed("jobs by what became of them", _counts_table(comparison)),
        *_jobs_that_differ(comparison),
    )


def _first_differences(comparison: Comparison) -> Iterator[Text]:
    name, first = comparison.policy, comparison.first_admission
    if first is None:
        yield Text("on the recorded states no admission differs")
    else:
        count = comparison.num_admissions_that_differ
        yield Text(
            f"admissions that differ on the recorded states: {count}, first at {_decision(first, name)}"
        )
    if comparison.first_allocation is None:
        yield Text("on the recorded states no allocation differs")
    else:
        yield Text(f"the first allocation that differs is at {_decision(comparison.first_allocation, name)}")


def _decision(decision: OtherDecision, name: str) -> str:
    return (
        f"sequence {decision.sequence} ({clock_time(decision.now_s)}): "
        f"recorded {_in_words(decision.recorded)}; {name} {_in_words(decision.other)}"
    )


def _in_words(said: Mapping[str, object]) -> str:
    return ", ".join(f"{job_id}: {what}" for job_id, what in said.items())


def _counts_table(comparison: Comparison) -> Table:
    table = plain_table("")
    for name in ("RECORDED", "THE SAME POLICIES, MODELLED", f"{comparison.policy.upper()}, MODELLED"):
        table.add_column(name, justify="right")
    counts = [comparison.count(whose) for whose in WHOSE]
    for fate in get_args(Fate):
        if any(count.get(fate) for count in counts):
            table.add_row(fate, *(str(count.get(fate, 0)) for count in counts))
    return table


def _jobs_that_differ(comparison: Comparison) -> Iterator[RenderableType]:
    differing = [job for job in comparison.jobs if job.modelled != job.other]
    table = plain_table("JOB", "DEADLINE", "RECORDED", "MODELLED", comparison.policy.upper())
    for job in differing[:MANY]:
        deadline = "" if job.deadline_s is None else clock_time(job.deadline_s)
        table.add_row(escape(job.job_id), deadline, job.recorded, job.modelled, job.other)
    title = f"{len(differing)} of {len(comparison.jobs)} jobs fare differently in the model"
    yield headed(title, table) if differing else Text(f"\n{title}", style="italic")
    if len(differing) > MANY:
        yield Text(f"and {len(differing) - MANY} more; --json has all")

"""`replay --policy`: a recorded history beside another policy, decision by decision and to the end.

Decision by decision, the other policy decides on the recorded states: exact, without a model. To the end, it decides on
the states that follow from its own decisions, in the model of `counterfactual`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from elasticflow.shared.messages.events import PlanDecided, PoolConfigured
from elasticflow.shared.state.job import Job, Phase
from elasticflow.simulator.baselines.policy_catalogue import OURS, AdmissionPolicy, planners, policies_named
from elasticflow.simulator.replay.counterfactual import run_on
from elasticflow.simulator.replay.recorded_ledger import Entry, job_registry
from elasticflow.simulator.replay.retaken_decisions import OtherDecision, other_decisions
from elasticflow.simulator.replay.state_tables import clock_time, headed, plain_table

Fate = Literal["met", "late", "open", "rejected", "failed", "cancelled", "finished", "unfinished", "undecided"]

_ENDS: Mapping[Phase, Fate] = {
    Phase.REJECTED: "rejected",
    Phase.CANCELLED: "cancelled",
    Phase.FAILED: "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFates:
    """The fate of one job: recorded, modelled under the recorded policies, modelled under the other policy.

    other_gpus: under the other policy, the times since which it held how many; None as an end: it had not ended.
    """

    job_id: str
    deadline_s: float | None
    recorded: Fate
    modelled: Fate
    other: Fate
    recorded_end_s: float | None
    modelled_end_s: float | None
    other_end_s: float | None
    other_gpus: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Fates of the jobs that were live at from_sequence or came later.

    The record counts up to its end, the model up to the last deadline.
    """

    policy: str
    from_sequence: int
    until_sequence: int
    until_s: float
    modelled_until_s: float
    first_admission: OtherDecision | None
    first_allocation: OtherDecision | None
    num_admissions_that_differ: int
    jobs: tuple[JobFates, ...]

    def count(self, whose: Literal["recorded", "modelled", "other"]) -> Mapping[Fate, int]:
        """Jobs by fate."""
        return Counter(getattr(job, whose) for job in self.jobs)


def compare(entries: tuple[Entry, ...], from_sequence: int, name: str) -> Comparison:
    """The record after `from_sequence` beside the policy `name`, one of POLICY_NAMES."""
    chosen = policies_named(name)
    changed = _with_admission(entries, chosen.admission) if name in OURS else entries
    until_s = entries[-1].stored_at_s
    before, jobs = job_registry(entries[:from_sequence]), job_registry(entries)
    last_s = max((job.deadline_s for job in jobs.values() if job.deadline_s is not None), default=until_s)
    last_s = max(last_s, until_s)
    modelled = run_on(entries, from_sequence, planners(), last_s)
    other = run_on(changed, from_sequence, chosen.policies, last_s)
    admissions = tuple(other_decisions(changed, from_sequence, chosen.policies["admission"]))
    return Comparison(
        policy=name,
        from_sequence=from_sequence,
        until_sequence=entries[-1].sequence,
        until_s=until_s,
        modelled_until_s=last_s,
        first_admission=admissions[0] if admissions else None,
        first_allocation=next(other_decisions(changed, from_sequence, chosen.policies["allocator"]), None),
        num_admissions_that_differ=sum(len(decision.other) for decision in admissions),
        jobs=tuple(
            JobFates(
                job_id=job_id,
                deadline_s=job.deadline_s,
                recorded=fate(job, until_s),
                modelled=fate(modelled.jobs.get(job_id), last_s),
                other=fate(other.jobs.get(job_id), last_s),
                recorded_end_s=job.ended_at_s,
                modelled_end_s=_end_s(modelled.jobs.get(job_id)),
                other_end_s=_end_s(other.jobs.get(job_id)),
                other_gpus=other.num_gpus.get(job_id, ()),
            )
            for job_id, job in sorted(jobs.items())
            if job_id not in before or before[job_id].live
        ),
    )


def fate(job: Job | None, at_s: float) -> Fate:
    """The fate of a job at an instant; open: its deadline has not passed."""
    if job is None or job.phase is Phase.PROFILING:
        return "undecided"
    if job.phase in _ENDS:
        return _ENDS[job.phase]
    if job.deadline_s is None:
        return "unfinished" if job.ended_at_s is None else "finished"
    if job.ended_at_s is not None:
        return "met" if job.ended_at_s <= job.deadline_s else "late"
    return "open" if at_s < job.deadline_s else "late"


def _end_s(job: Job | None) -> float | None:
    return None if job is None else job.ended_at_s


def _with_admission(entries: tuple[Entry, ...], admission: AdmissionPolicy) -> tuple[Entry, ...]:
    """The record of a pool with this admission setting."""

    def changed(event: Any) -> Any:
        if not isinstance(event, PoolConfigured):
            return event
        return replace(event, config=replace(event.config, admission=admission))

    return tuple(
        replace(entry, message=replace(entry.message, events=tuple(map(changed, entry.message.events))))
        if isinstance(entry.message, PlanDecided)
        else entry
        for entry in entries
    )


# --- output ---------------------------------------------------------------------------------------------

WHOSE = ("recorded", "modelled", "other")
MANY = 20  # rows after which a table is cut


def comparison_object(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison, ready for JSON."""
    return asdict(comparison) | {"counts": {whose: dict(comparison.count(whose)) for whose in WHOSE}}


def comparison_tables(comparison: Comparison) -> Group:
    """The first decisions that differ, jobs by fate, and the jobs whose fates differ."""
    end = "the last deadline" if comparison.modelled_until_s > comparison.until_s else "with it"
    title = Text(
        f"{comparison.policy} after sequence {comparison.from_sequence}; the record ends at "
        f"{comparison.until_sequence}, {clock_time(comparison.until_s)}; the model goes on to "
        f"{clock_time(comparison.modelled_until_s)}, {end}, with no later arrivals"
    )
    return Group(
        title,
        *_first_differences(comparison),
        headed("jobs by fate", _counts_table(comparison)),
        *_jobs_that_differ(comparison),
    )


def _first_differences(comparison: Comparison) -> Iterator[Text]:
    name, first = comparison.policy, comparison.first_admission
    if first is None:
        yield Text("on the recorded states no admission differs")
    else:
        count = comparison.num_admissions_that_differ
        yield Text(f"admissions that differ on the recorded states: {count}, first at {_decision(first, name)}")
    if comparison.first_allocation is None:
        yield Text("on the recorded states no allocation differs")
    else:
        yield Text(f"the first allocation that differs is at {_decision(comparison.first_allocation, name)}")


def _decision(decision: OtherDecision, name: str) -> str:
    return (
        f"sequence {decision.sequence} ({clock_time(decision.now_s)}): "
        f"recorded {_in_words(decision.recorded)}; {name} {_in_words(decision.other)}"
    )


def _in_words(decided: Mapping[str, object]) -> str:
    return ", ".join(f"{job_id}: {what}" for job_id, what in decided.items())


def _counts_table(comparison: Comparison) -> Table:
    table = plain_table("")
    for name in ("RECORDED", "SAME POLICIES, MODELLED", f"{comparison.policy.upper()}, MODELLED"):
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
    title = f"{len(differing)} of {len(comparison.jobs)} jobs have another fate in the model"
    yield headed(title, table) if differing else Text(f"\n{title}", style="italic")
    if len(differing) > MANY:
        yield Text(f"and {len(differing) - MANY} more; --json has all")

"""The rows of the report: each claim beside what was measured, its verdict, and the command for it alone.

Why measurements differ from the papers is written by hand, with the check behind it (reasons.toml).
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.papers.analogues import Analogue
from benchmarks.papers.claims import Claim, Figure, Form, Setup
from benchmarks.papers.claims_file import check_keys, tables, text, texts
from benchmarks.papers.execution import Inputs, alone, curve_number
from benchmarks.papers.runs import (
    NumbersOf,
    Run,
    as_described,
    for_bound,
    for_ours,
    measured,
    missing,
    skipped_jobs,
    with_order,
)
from benchmarks.papers.verdicts import Measurement, Verdict, order_beside, verdict
from elasticflow.shared.errors import BadSettings

OTHERS = "runs of the other claims of the figure, which --resume goes on with"
OWN_TABLES = "the project's own throughput tables stand in for the published ones"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """ours, bound, described: the same number with our policy, at most, and with the baseline as its paper says."""

    claim: Claim
    measurement: Measurement | None
    verdict: Verdict
    ours: Measurement | None
    verdict_on_ours: Verdict | None
    bound: Measurement | None
    described: Mapping[str, Measurement]
    reason: str
    missing: tuple[str, ...]
    command: str  # for its figure alone

    def as_object(self) -> dict[str, object]:
        """The row as an object for JSON."""
        return {**asdict(self), "claim": self.claim.claim_id, "about": asdict(self.claim)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A figure of a paper and the rows of its claims."""

    figure: Figure
    rows: tuple[Row, ...]


def sections(
    figures: tuple[Figure, ...], inputs: Inputs, numbers_of: NumbersOf, reasons: Mapping[str, str]
) -> tuple[Section, ...]:
    """reasons: of differences, by claim or figure, as checked by a person."""

    def has(run: Run) -> bool:
        return inputs.has(run.jobs)

    def row(figure: Figure, claim: Claim) -> Row:
        if inputs.throughputs is None and claim.setup is not None:
            claim = replace(claim, stands_in=OWN_TABLES)
        elif left_out := skipped_jobs(claim, numbers_of):
            claim = replace(claim, stands_in=left_out)
        found = with_order(claim, _measured(claim, inputs, numbers_of), figure, numbers_of)
        own = for_ours(claim)
        ours = None if own is None else with_order(claim, measured(own, numbers_of), figure, numbers_of)
        limit = for_bound(claim)
        described = {
            other.contestant.policy: value
            for other in as_described(claim)
            if other.contestant is not None and (value := measured(other, numbers_of)) is not None
        }
        judged = verdict(claim, found)
        is_ordered = judged in (Verdict.DIFFERS, Verdict.HOLDS)
        is_open = is_ordered and found is not None and _lacks_order(figure, claim, found)
        return Row(
            claim=claim,
            measurement=found,
            verdict=Verdict.NOT_RUN if is_open else judged,
            ours=ours,
            verdict_on_ours=None if ours is None else verdict(claim, ours),
            bound=None if limit is None else measured(limit, numbers_of),
            described=described,
            reason="" if found is None else reasons.get(claim.claim_id, reasons.get(claim.figure, "")),
            missing=missing(claim, numbers_of, has) if found is None else (OTHERS,) * is_open,
            command=f"python -m benchmarks.papers {inputs.in_words}{alone(claim.figure)}",
        )

    return tuple(
        Section(figure=figure, rows=tuple(row(figure, claim) for claim in figure.claims)) for figure in figures
    )


def _lacks_order(figure: Figure, claim: Claim, found: Measurement) -> bool:
    """Whether it could still differ or hold when the claims have run whose order with this one counts."""
    return claim.form is Form.VALUE and len(found.beside) < len(order_beside(figure.claims, claim))


def _measured(claim: Claim, inputs: Inputs, numbers_of: NumbersOf) -> Measurement | None:
    if claim.setup is None or not claim.setup.model or claim.needs:
        return measured(claim, numbers_of)
    (num_gpus,) = claim.setup.num_gpus_by_trace
    value = curve_number(inputs, claim.setup.model, claim.setup.batch_size, num_gpus)
    return None if value is None else Measurement(value=value, least=value, most=value)


def counts(shown: tuple[Section, ...], of: Callable[[Row], bool] = lambda row: True) -> dict[str, int]:
    """Rows by verdict, in the order of reports."""
    found = [row.verdict for section in shown for row in section.rows if of(row)]
    return {one.value: found.count(one) for one in Verdict}


def setup_text(setup: Setup | None) -> str:
    """A line that says on which jobs and GPUs a claim is measured."""
    if setup is None:
        return ""
    sizes = " and ".join(map(str, dict.fromkeys(setup.num_gpus_by_trace)))
    parts = [", ".join(setup.traces)] if setup.traces else []
    if (generated := setup.generated) is not None:
        seeds = ", ".join(map(str, generated.deadline_seeds))
        of_all = f"{generated.num_jobs} generated jobs, mean gap {generated.mean_gap_s:g} s, seed {generated.seed}"
        parts.append(of_all if setup.deadline_over_duration else f"{of_all}, deadlines of seeds {seeds}")
    if setup.model:
        parts.append(f"{setup.model}, batch size {setup.batch_size}")
    if sizes:
        parts.append(f"{sizes} GPUs")
    if setup.deadline_over_duration is not None:
        parts.append(f"deadlines of {setup.deadline_over_duration:g} durations")
    if setup.best_effort_share is not None:
        parts.append(f"{setup.best_effort_share:.0%} best effort")
    if setup.average is not None:
        parts.append(setup.average.value)
    return "; ".join(parts)


# --- why measurements differ ---------------------------------------------------------------------------


REASONS = Path(__file__).with_name("reasons.toml")
NONE_KNOWN = "No reason is known."


def read_reasons(figures: Sequence[Figure], analogues: Sequence[Analogue], file: Path = REASONS) -> Mapping[str, str]:
    """Reasons by the id of a figure, a claim, or a check of an analogue; BadSettings for an id that does not exist."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadSettings((f"{file}: {error}",)) from error
    ids = {figure.figure_id for figure in figures} | {claim.claim_id for figure in figures for claim in figure.claims}
    ids |= {analogue.check_id(check) for analogue in analogues for check in analogue.checks}
    check_keys(content, {"reason"}, file.name)
    found = dict[str, str]()
    for table in tables(content.get("reason"), "reason"):
        check_keys(table, {"rows", "text", "checked"}, "reason")
        rows = texts(table.get("rows"), "reason: rows")
        where = f"reason of {rows[0] if rows else 'no row'}"
        said = f"{text(table, 'text', where)} Checked: {text(table, 'checked', where)}"
        for row in rows:
            if row not in ids:
                raise BadSettings((f"{file.name}: there is no figure, claim or check {row!r}",))
            if row in found:
                raise BadSettings((f"{file.name}: {row} has two reasons",))
            found[row] = said
    return found

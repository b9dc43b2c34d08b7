"""The measurement of a claim from the numbers of runs, and what is missing where there is none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from benchmarks.papers.claims import Average, Claim, Figure, Form
from benchmarks.papers.quantities import QUANTITIES
from benchmarks.papers.runs import Run, runs_of
from benchmarks.papers.verdicts import Beside, Measurement, order_beside

Numbers = Mapping[str, float | None]
NumbersOf = Callable[[Run], Numbers | None]  # None: not run yet


def measured(claim: Claim, numbers_of: NumbersOf) -> Measurement | None:
    """The measurement; None if a run is missing, or a number is undefined in one of them."""
    pairs = runs_of(claim)
    values = [
        (_number(numbers_of(run), claim), _number(numbers_of(other), claim) if other else 1.0) for run, other in pairs
    ]
    known = [(value, other) for value, other in values if value is not None and other is not None]
    if not pairs or len(known) < len(values):
        return None
    if claim.form is Form.VALUE:
        return _spread([value for value, _ in known], mean(value for value, _ in known))
    if any(not other for _, other in known):
        return None
    quotients = [value / other for value, other in known]
    is_mean = claim.setup is not None and claim.setup.average is Average.MEAN_OF_RATIOS
    total = mean(quotients) if is_mean else sum(value for value, _ in known) / sum(other for _, other in known)
    if claim.form is Form.QUOTIENT:
        return _spread(quotients, total)
    return _spread([1.0 - quotient for quotient in quotients], 1.0 - total)


def _number(numbers: Numbers | None, claim: Claim) -> float | None:
    return None if numbers is None else numbers.get(claim.quantity)


def _spread(values: Sequence[float], value: float) -> Measurement:
    return Measurement(value=value, least=min(values), most=max(values))


def with_order(
    claim: Claim, measurement: Measurement | None, figure: Figure, numbers_of: NumbersOf
) -> Measurement | None:
    """The measurement beside those of the other claims whose order with this one counts."""
    if measurement is None or claim.form is not Form.VALUE:
        return measurement
    others = ((other, measured(other, numbers_of)) for other in order_beside(figure.claims, claim))
    beside = tuple(
        Beside(published=other.value, measured=found.value)
        for other, found in others
        if other.value is not None and found is not None
    )
    return replace(measurement, beside=beside)


def skipped_jobs(claim: Claim, numbers_of: NumbersOf) -> str:
    """How many jobs its traces lost, for a wrong row or a model without a table; "" if none."""
    numbers = {run.jobs.trace: numbers_of(run) for pair in runs_of(claim) for run in pair if run is not None}
    known = [(trace, found["jobs"] or 0, found.get("skipped") or 0) for trace, found in numbers.items() if found]
    parts = [f"{skipped:,.0f} of {jobs + skipped:,.0f} jobs of {trace}" for trace, jobs, skipped in known if skipped]
    return f"{' and '.join(parts)} are left out: wrong rows, or models without a table" if parts else ""


def missing(claim: Claim, numbers_of: NumbersOf, has: Callable[[Run], bool]) -> tuple[str, ...]:
    """Why there is no measurement."""
    if claim.needs:
        return claim.needs
    runs = [run for pair in runs_of(claim) for run in pair if run is not None]
    if absent := sorted({run.jobs.trace for run in runs if not has(run)}):
        return tuple(f"the trace {name}.csv in the folder of --traces" for name in absent)
    if not runs:
        return ("throughputs of that model, batch size and number of GPUs in the folder of --throughputs",)
    if to_do := sum(numbers_of(run) is None for run in dict.fromkeys(runs)):
        return (f"{to_do} of its runs, which --resume goes on with",)
    return (f"a run in which {QUANTITIES[claim.quantity].title} is defined",)

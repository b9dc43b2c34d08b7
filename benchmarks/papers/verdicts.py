"""The verdict on a claim: a pure function of the claim and of what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.papers.claims import Better, Claim, Form

LEAST_CHANGE = 0.01  # a quotient or a reduction that is nearer to no change has no direction


class Verdict(StrEnum):
    """The verdicts in the order of reports: what was not reached comes first."""

    DIFFERS = "differs"
    HOLDS = "holds"
    REPRODUCED = "reproduced"
    BETTER = "better"
    NO_VALUE = "no published value"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Another claim of the same figure: the two published values have an order, and so have the measured ones."""

    published: float
    measured: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """value: the mean over seeds; least, most: over them. beside: other measured claims of the figure."""

    value: float
    least: float
    most: float
    beside: tuple[Beside, ...] = ()


def verdict(claim: Claim, measurement: Measurement | None) -> Verdict:
    """The verdict on a claim. measurement: None if it was not run. No value: a trace that no paper has.

    Reproduced: within the tolerance. Better: beyond it in the better direction, for the paper's own system. Holds: the
    direction of a quotient or a reduction, or the order among those claims of the figure whose published values differ
    by more than the tolerance. A stand-in can at most hold.
    """
    if measurement is None:
        return Verdict.NOT_RUN
    if claim.value is None:
        return Verdict.NO_VALUE
    if not claim.stands_in:
        if abs(measurement.value - claim.value) <= claim.within:
            return Verdict.REPRODUCED
        if claim.own and _is_better(claim, measurement.value):
            return Verdict.BETTER
    return Verdict.HOLDS if _holds(claim, claim.value, measurement) else Verdict.DIFFERS


def _is_better(claim: Claim, measured: float) -> bool:
    assert claim.value is not None
    if claim.better is Better.HIGHER:
        return measured > claim.value
    return claim.better is Better.LOWER and measured < claim.value


def _holds(claim: Claim, published: float, measurement: Measurement) -> bool:
    if claim.form is Form.QUOTIENT:
        return _same_direction(published - 1.0, measurement.value - 1.0)
    if claim.form is Form.REDUCTION:
        return _same_direction(published, measurement.value)
    ordered = [other for other in measurement.beside if abs(published - other.published) > claim.within]
    return bool(ordered) and all(
        same_side(published - other.published, measurement.value - other.measured) for other in ordered
    )


def _same_direction(published: float, measured: float) -> bool:
    return abs(measured) > LEAST_CHANGE and same_side(published, measured)


def same_side(published: float, measured: float) -> bool:
    """Whether both have the same sign, or both are zero."""
    return published * measured > 0 or published == measured == 0


def order_beside(claims: Sequence[Claim], claim: Claim) -> tuple[Claim, ...]:
    """The claims whose order with this one counts: of a baseline, the paper's own system; of that, all baselines."""
    plain = [other for other in claims if other.form is Form.VALUE and other is not claim]
    return tuple(other for other in plain if other.own != claim.own and other.quantity == claim.quantity)

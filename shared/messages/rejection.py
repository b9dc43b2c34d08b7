"""The contents of a rejection: offers that admission would promise instead, and an infeasibility certificate.

A rejection for lack of GPUs has one certificate, which any program can check (`simulator/verification`). The first
three kinds are proofs: from the jobs' numbers alone they show that no schedule keeps every promise and this deadline.
A price is for one GPU during one second.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len
from pydantic import AllowInfNan, Field, Strict

from elasticflow.shared.messages.limits import BatchSize, DurationS, PositiveIterations, TimeS

MAX_PRICED_INTERVALS = 1024

Price = Annotated[float, Strict(), Ge(0), Le(1e12), AllowInfNan(False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Values with which admission accepts the rejected command, if the pool does not change before."""

    deadline_s: TimeS
    max_iterations: PositiveIterations
    global_batch_size: BatchSize


@dataclass(frozen=True, slots=True, kw_only=True)
class TooSlowAlone:
    """The job would be late even if it had the whole cluster alone.

    earliest_end_s: None if it runs on no number of GPUs here.
    """

    kind: Literal["too_slow_alone"] = "too_slow_alone"
    earliest_end_s: TimeS | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadedInterval:
    """All jobs together, at their cheapest, need more GPU-seconds within [start_s, end_s) than exist."""

    kind: Literal["overloaded_interval"] = "overloaded_interval"
    start_s: TimeS
    end_s: TimeS
    needed_gpu_seconds: DurationS
    available_gpu_seconds: DurationS


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedInterval:
    """A GPU-second within [start_s, end_s) costs `price`."""

    start_s: TimeS
    end_s: TimeS
    price: Price


@dataclass(frozen=True, slots=True, kw_only=True)
class InfeasibleProgram:
    """Prices at which all jobs must pay more than all GPUs earn: the linear program over time is infeasible.

    prices: disjoint, in order of time; other GPU-seconds are free. They are an optimum of the dual (Farkas' lemma).
    """

    kind: Literal["infeasible_program"] = "infeasible_program"
    prices: Annotated[tuple[PricedInterval, ...], Len(max_length=MAX_PRICED_INTERVALS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overpriced:
    """The job displaces more than its value: gpu_seconds * price > value.

    price_limit: the highest price of a GPU-second at which admission would take the job. crowded_from_s and
    crowded_until_s: when most of the promises that it displaces are due; None in older messages.
    """

    kind: Literal["overpriced"] = "overpriced"
    gpu_seconds: DurationS
    price: Price
    value: Price
    price_limit: Price
    crowded_from_s: TimeS | None = None
    crowded_until_s: TimeS | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unproven:
    """The search found no schedule, and no proof that none exists.

    earliest_deadline_s: a deadline that can be promised; None if none is known.
    """

    kind: Literal["unproven"] = "unproven"
    earliest_deadline_s: TimeS | None


InfeasibilityCertificate = Annotated[
    TooSlowAlone | OverloadedInterval | InfeasibleProgram | Overpriced | Unproven, Field(discriminator="kind")
]

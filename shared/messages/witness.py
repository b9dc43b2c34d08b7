"""Why a deadline was refused, in a form that anyone can check: each refusal for want of GPUs carries one witness.

All but the last two are proofs: they show, from the facts of the jobs alone, that no schedule keeps every promise
and this one too. Prices are of one GPU for one second.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len
from pydantic import AllowInfNan, Field, Strict

from shared.messages.limits import DurationS, TimeS

MAX_PRICED_INTERVALS = 1024

Price = Annotated[float, Strict(), Ge(0), Le(1e12), AllowInfNan(False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TooSlowAlone:
    """The job would be late with the whole cluster to itself. earliest_end_s: None if it runs nowhere here."""

    kind: Literal["too_slow_alone"] = "too_slow_alone"
    earliest_end_s: TimeS | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadedInterval:
    """Even at their cheapest, all jobs together must hold more GPU-seconds within [start_s, end_s) than exist."""

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
    """Dual prices of the linear program over time: what all jobs must pay at least exceeds what all GPUs earn.

    prices: disjoint, in order; where none is named a GPU-second is free. Optima of the dual (Farkas' lemma).
    """

    kind: Literal["infeasible_program"] = "infeasible_program"
    prices: Annotated[tuple[PricedInterval, ...], Len(max_length=MAX_PRICED_INTERVALS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TooDear:
    """It would fit, but crowd out more than it is worth: gpu_seconds * price > worth.

    accepted_price: with GPU-seconds at that price it would be taken.
    """

    kind: Literal["too_dear"] = "too_dear"
    gpu_seconds: DurationS
    price: Price
    worth: Price
    accepted_price: Price


@dataclass(frozen=True, slots=True, kw_only=True)
class NotProved:
    """No way was found, and no proof that there is none. earliest_deadline_s: the gap ends there, None if unknown."""

    kind: Literal["not_proved"] = "not_proved"
    earliest_deadline_s: TimeS | None


Witness = Annotated[
    TooSlowAlone | OverloadedInterval | InfeasibleProgram | TooDear | NotProved, Field(discriminator="kind")
]

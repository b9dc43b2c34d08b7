"""Why not: a witness for each refused deadline, the simplest that proves it.

Nothing here decides anything; the scheduler has said no already. Sound, never complete: where stops stand between
the bound and the truth, there is no proof, and the witness says so.
"""

import math
from collections.abc import Sequence

import numpy as np

from shared.messages.witness import (
    InfeasibleProgram,
    NotProved,
    OverloadedInterval,
    PricedInterval,
    TooSlowAlone,
    Witness,
)
from shared.scheduling.lower_bound import Demands, Floats, alone_s, demands
from shared.scheduling.progressive_filling import SchedulableJob
from shared.scheduling.relaxation import relax
from shared.scheduling.resize_cost import ResizeCost

MARGIN = 1e-8  # relative: what a proof must win by, ten times what a checker in floats asks for
MAX_VARIABLES = 6_000  # of the linear program: some 50 ms
NUM_INTERVALS = 4  # that look most crowded, looked at closely


def find_witness(
    newcomer: SchedulableJob,
    promised: Sequence[SchedulableJob],
    num_gpus: int,
    now_s: float,
    resize_cost: ResizeCost,
    *,
    earliest_deadline_s: float | None = None,
    max_variables: int = MAX_VARIABLES,
) -> Witness:
    """What shows that `newcomer` cannot be promised beside `promised`; all have deadlines.

    earliest_deadline_s: the earliest that the scheduler found, for where nothing is proved. max_variables: of the
    linear program, 0 for none.
    """
    takes_s = alone_s(newcomer, num_gpus, now_s, resize_cost)
    if takes_s > (newcomer.deadline_s - now_s) * (1 + MARGIN):
        return TooSlowAlone(earliest_end_s=now_s + takes_s if math.isfinite(takes_s) else None)
    hopeful = [
        job for job in promised if alone_s(job, num_gpus, now_s, resize_cost) <= job.deadline_s - now_s
    ]  # a promise that is broken already proves nothing about this one
    asked = demands((newcomer, *hopeful), num_gpus, now_s, resize_cost)
    return (
        _overloaded_interval(asked)
        or _infeasible_program(asked, max_variables)
        or NotProved(earliest_deadline_s=earliest_deadline_s)
    )


def _overloaded_interval(asked: Demands) -> OverloadedInterval | None:
    """From now to the deadline before which most is missing."""
    until_K = np.unique(asked.until_U)
    until_K = until_K[until_K > 0]
    load_K = asked.needed_before(until_K) / (asked.num_gpus * until_K)
    for until_s in until_K[np.argsort(-load_K, kind="stable")[:NUM_INTERVALS]]:
        end_s = asked.now_s + float(until_s)
        needed, available = _payment_and_income(asked, np.array([asked.now_s]), np.array([end_s]), np.ones(1))
        if available * (1 + MARGIN) < needed < math.inf:
            return OverloadedInterval(
                start_s=asked.now_s,
                end_s=end_s,
                needed_gpu_seconds=needed,
                available_gpu_seconds=available,
            )
    return None


def _infeasible_program(asked: Demands, max_variables: int) -> InfeasibleProgram | None:
    """The dual prices of the linear program, if the jobs cannot pay them."""
    relaxation = relax(asked, max_variables=max_variables)
    if relaxation is None:
        return None
    instants_s, price_B = relaxation.instants_s, relaxation.price_B
    changes = np.flatnonzero(np.diff(price_B, prepend=np.nan))  # equal neighbours are one interval
    starts_s_K, price_K = instants_s[changes], price_B[changes]
    ends_s_K = np.append(starts_s_K[1:], instants_s[-1])
    dear = price_K > 0
    starts_s_K, ends_s_K, price_K = starts_s_K[dear], ends_s_K[dear], price_K[dear]
    payment, income = _payment_and_income(asked, starts_s_K, ends_s_K, price_K)
    if not income * (1 + MARGIN) < payment < math.inf:
        return None
    prices = zip(starts_s_K.tolist(), ends_s_K.tolist(), price_K.tolist(), strict=True)
    return InfeasibleProgram(
        prices=tuple(
            PricedInterval(start_s=start_s, end_s=end_s, price=price) for start_s, end_s, price in prices
        )
    )


def _payment_and_income(
    asked: Demands, starts_s_K: Floats, ends_s_K: Floats, price_K: Floats
) -> tuple[float, float]:
    income = asked.num_gpus * float(price_K @ (ends_s_K - starts_s_K))
    return asked.least_payment(starts_s_K, ends_s_K, price_K), income

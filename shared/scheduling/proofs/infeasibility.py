"""Infeasibility certificates: for each rejected deadline, the simplest proof that no schedule keeps all promises and
it.

Nothing here decides; the scheduler has already rejected the job. The proofs are sound but not complete: where stops
stand between the bound and the truth there is none, and the certificate says so (`Unproven`).
"""

import math
from collections.abc import Sequence

import numpy as np

from elasticflow.shared.messages.rejection import (
    InfeasibleProgram,
    OverloadedInterval,
    PricedInterval,
    TooSlowAlone,
)
from elasticflow.shared.scheduling.proofs.linear_program import relax
from elasticflow.shared.scheduling.proofs.payment_bound import Demands, Floats, Request, demands
from elasticflow.shared.state.nodes import PromisableGpus

MARGIN = 1e-8  # relative: ten times the tolerance of a floating-point checker
MAX_VARIABLES = 2_000  # of the linear program
NUM_LOOKS, NUM_CLOSE_LOOKS = 32, 3  # deadlines that are tested


InfeasibilityProof = TooSlowAlone | OverloadedInterval | InfeasibleProgram


def find_infeasibility_proof(
    arriving_job: Request,
    promised: Sequence[Request],
    gpus: PromisableGpus,
    now_s: float,
    *,
    max_variables: int = MAX_VARIABLES,
) -> InfeasibilityProof | None:
    """Return the proof that `arriving_job` cannot be promised beside `promised`, if one is found; all jobs have
    deadlines.

    max_variables: of the linear program; 0: none.
    """
    asked = demands((arriving_job, *promised), gpus.num_gpus, now_s, gpus.drops)
    takes_s = float(asked.takes_J[0])
    if takes_s > (arriving_job.deadline_s - now_s) * (1 + MARGIN):
        return TooSlowAlone(earliest_end_s=now_s + takes_s if math.isfinite(takes_s) else None)
    asked = asked.hopeful()  # a promise that is already broken proves nothing about this job
    if not len(asked.job_U) or asked.job_U[0] != 0:
        return None
    return _overloaded_interval(asked) or _infeasible_program(asked, max_variables)


def _overloaded_interval(asked: Demands) -> OverloadedInterval | None:
    """The interval from now to a deadline. Tests some deadlines without stops, then those around the fullest with
    stops.
    """
    until_K: Floats = np.unique(asked.until_U)
    quick = asked.free_of_stops()
    coarse_K = until_K[:: max(len(until_K) // NUM_LOOKS, 1)]
    fullest_s = float(_fullest_first(quick, coarse_K)[0])
    middle, half = int(until_K.searchsorted(fullest_s)), NUM_LOOKS // 2
    near_K = until_K[max(middle - half, 0) : middle + half + 1]
    close_K = _fullest_first(quick, near_K)[:NUM_CLOSE_LOOKS]
    for until_s, needed in zip(close_K.tolist(), asked.needed_before(close_K).tolist(), strict=True):
        end_s = asked.now_s + until_s
        missing = float(asked.missing(np.array([asked.now_s]), np.array([end_s]))[0])
        available = asked.num_gpus * (end_s - asked.now_s) - missing
        if available * (1 + MARGIN) < needed < math.inf:
            return OverloadedInterval(
                start_s=asked.now_s,
                end_s=end_s,
                needed_gpu_seconds=needed,
                available_gpu_seconds=available,
            )
    return None


def _fullest_first(asked: Demands, until_K: Floats) -> Floats:
    return until_K[np.argsort(-asked.needed_before(until_K) / until_K, kind="stable")]


def _infeasible_program(asked: Demands, max_variables: int) -> InfeasibleProgram | None:
    """The dual prices of the linear program, if the jobs cannot pay them."""
    relaxation = relax(asked, max_variables=max_variables)
    if relaxation is None:
        return None
    instants_s, price_B = relaxation.instants_s, relaxation.price_B
    changes = np.flatnonzero(np.diff(price_B, prepend=np.nan))  # equal neighbours are one interval
    starts_s_K, price_K = instants_s[changes], price_B[changes]
    ends_s_K = np.append(starts_s_K[1:], instants_s[-1])
    is_priced = price_K > 0
    starts_s_K, ends_s_K, price_K = starts_s_K[is_priced], ends_s_K[is_priced], price_K[is_priced]
    income = asked.num_gpus * float(price_K @ (ends_s_K - starts_s_K))
    income -= float(price_K @ asked.missing(starts_s_K, ends_s_K))
    payment = asked.least_payment(starts_s_K, ends_s_K, price_K)
    if not income * (1 + MARGIN) < payment < math.inf:
        return None
    prices = zip(starts_s_K.tolist(), ends_s_K.tolist(), price_K.tolist(), strict=True)
    return InfeasibleProgram(
        prices=tuple(PricedInterval(start_s=start_s, end_s=end_s, price=price) for start_s, end_s, price in prices)
    )

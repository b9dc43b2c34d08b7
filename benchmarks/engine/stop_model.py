"""The stop of a resize: seconds + seconds_per_byte * bytes + seconds_per_doubling * log2(workers).

Fitted to measured stops by least squares of the relative errors, so that the longest does not dominate; no coefficient
is negative.
"""

import math
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.engine.parts import Row


def fitted(resizes: list[Row]) -> dict[str, Any]:
    """rows of `resizes`: bytes_moved to each joining worker, num_workers afterwards, stop_s."""
    stop_s_R = np.array([row["stop_s"] for row in resizes])  # R rows
    factors_RC = np.array([(1.0, row["bytes_moved"], math.log2(row["num_workers"])) for row in resizes])
    scale_C = factors_RC.max(axis=0).clip(min=1.0)  # scaled: bytes beside counts would cost all digits
    coefficients_C, _ = nnls(factors_RC / scale_C / stop_s_R[:, None], np.ones(len(resizes)))
    coefficients_C = coefficients_C / scale_C
    errors_R = factors_RC @ coefficients_C / stop_s_R - 1
    return {
        "seconds": float(coefficients_C[0]),
        "seconds_per_byte": float(coefficients_C[1]),
        "seconds_per_doubling": float(coefficients_C[2]),
        "relative_error_rms": float(np.sqrt(np.mean(errors_R**2))),
    }


def stops_by_num_gpus(resizes: list[Row]) -> dict[str, float]:
    """The longest median stop of a resize to so many workers, for any state."""
    by_num_gpus: dict[int, float] = {}
    for row in resizes:
        num_gpus = row["num_workers"]
        by_num_gpus[num_gpus] = max(row["stop_s"], by_num_gpus.get(num_gpus, 0.0))
    return {str(num_gpus): stop_s for num_gpus, stop_s in sorted(by_num_gpus.items())}

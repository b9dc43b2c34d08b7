"""How much of a curve to count on, so that a job is as fast with a given probability.

The logarithm of measured / curve is normal with a spread between jobs: at first that of the pool's settings around
0, then more and more that of the jobs of the same profile that ended, among which the setting counts as one. The job's
own reports narrow it: each is off by REPORT_SPREAD, and all of them together by STEADY_SPREAD, since speeds drift.
"""

from functools import lru_cache
from math import exp, floor, sqrt
from statistics import NormalDist

from shared.messages.cluster import PoolConfig
from shared.messages.speed import SpeedSeen

REPORT_SPREAD = 0.1
STEADY_SPREAD = 0.01
_STEPS = 512  # of the factor, rounded down: a curve is not made anew for less


def counted_on(config: PoolConfig, profile: SpeedSeen, own: SpeedSeen) -> float:
    """The factor of the curve that a promise counts on, at most 1: without a confidence, less a flat margin."""
    if config.confidence is None:
        return 1.0 - config.throughput_margin
    return _counted_on(config.confidence, config.speed_spread, profile, own)


@lru_cache(maxsize=4096)
def _counted_on(confidence: float, spread: float, profile: SpeedSeen, own: SpeedSeen) -> float:
    """exp(mean - z * deviation), z the quantile of the confidence.

    Before a job has run, from J jobs of its profile and the setting as one more at 0 with its spread:
    mean = sum / (J + 1), variance = (spread^2 + scatter of all J + 1) / (J + 1). Then the product of that normal with
    the one of its n reports, of variance REPORT_SPREAD^2 / n around their mean.
    """
    num_jobs = profile.count + 1
    mean = profile.count * profile.mean / num_jobs
    scatter = profile.scatter + profile.mean**2 * profile.count / num_jobs
    precision = num_jobs / (spread**2 + scatter)
    own_precision = own.count / REPORT_SPREAD**2
    mean = (precision * mean + own_precision * own.mean) / (precision + own_precision)
    deviation = sqrt(1.0 / (precision + own_precision) + STEADY_SPREAD**2)
    factor = exp(mean - NormalDist().inv_cdf(confidence) * deviation)
    return max(floor(min(factor, 1.0) * _STEPS), 1) / _STEPS

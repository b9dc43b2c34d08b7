"""Confidence: the part of a scaling curve that a promise counts on, so that the job is as fast with a given
probability.

ln(measured / curve) is normal with a spread between jobs. The prior is the setting of the pool, centred on 0; ended
jobs of the same profile shift and narrow it, and the setting counts as one job. Reports of the job itself narrow it
further: each is off by REPORT_SPREAD, and all of them together by STEADY_SPREAD, because speeds drift.
"""

from math import exp, floor, sqrt
from statistics import NormalDist

from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import SpeedStatistics

REPORT_SPREAD = 0.1
STEADY_SPREAD = 0.01
_STEPS = 512  # of the factor, rounded down, so that few distinct curves exist


def confidence_factor(config: PoolConfig, profile: SpeedStatistics, own: SpeedStatistics) -> float:
    """The factor of the curve that a promise counts on, at most 1; without a confidence, 1 less the margin."""
    if config.confidence is None:
        return 1.0 - config.throughput_margin
    return _confidence_factor(config.confidence, config.speed_spread, profile, own)


def _confidence_factor(confidence: float, spread: float, profile: SpeedStatistics, own: SpeedStatistics) -> float:
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

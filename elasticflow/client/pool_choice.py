"""The pool of several that gets a job: the order in which a front asks them, from what they have quoted. Pure.

The front of `eflow submit --pools` and the simulated cells (`benchmarks/scheduling/cells.py`) share it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from elasticflow.shared.messages.commands import DeadlineQuoted
from elasticflow.shared.messages.job_spec import JobClass, JobSpec

ANY_DEADLINE_S = 10 * 86_400.0


def as_promised(spec: JobSpec) -> JobSpec:
    """The same job as one that could be promised a deadline: so pools quote it. A quote ignores the deadline itself."""
    if spec.job_class is JobClass.SLO:
        return spec
    return replace(spec, job_class=JobClass.SLO, deadline_s=None, deadline_in_s=ANY_DEADLINE_S)


def keeps_deadline(quoted: DeadlineQuoted, spec: JobSpec) -> bool:
    """Whether the pool would promise the deadline of the job; without a deadline, whether it could promise any.

    A relative deadline counts from the quote, as it counts from the decision.
    """
    if quoted.earliest_deadline_s is None:
        return False
    deadline_s = spec.resolved_deadline_s(quoted.at_s)
    return deadline_s is None or quoted.earliest_deadline_s <= deadline_s


def pools_in_order(quotes: Mapping[str, DeadlineQuoted], spec: JobSpec) -> tuple[str, ...]:
    """The pools to which the job is submitted, one after another until one does not reject it.

    First those that would keep its deadline, the earliest completion first. Then those with GPUs for it, but without a
    quote: they may have to measure the job before they know. At last the earliest of those that are too late, for its
    counteroffers. If there are none of these, the first pool of all. quotes: by pool, in the order of the user.
    """
    ranked = sorted(quotes, key=lambda pool: _rank(quotes[pool]))
    keeping = [pool for pool in ranked if keeps_deadline(quotes[pool], spec)]
    unknown = [pool for pool, quoted in quotes.items() if quoted.earliest_deadline_s is None and quoted.num_gpus]
    late = [pool for pool in ranked if pool not in keeping and quotes[pool].earliest_deadline_s is not None]
    return (*keeping, *unknown, *late[:1]) or tuple(quotes)[:1]


def _rank(quoted: DeadlineQuoted) -> tuple[float, float]:
    """Seconds to the earliest deadline, and how long the job would hold the whole pool.

    Seconds from the quote, because the clocks of pools differ; whole ones, because equal pools answer at different
    instants.
    """
    if quoted.earliest_deadline_s is None:
        return math.inf, math.inf
    needed = math.inf if quoted.gpu_seconds is None else quoted.gpu_seconds
    return math.ceil(quoted.earliest_deadline_s - quoted.at_s), needed / max(quoted.num_gpus, 1)

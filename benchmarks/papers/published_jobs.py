"""Jobs of the generator that ElasticFlow's authors published; its parameters are data (claims.toml, generator).

Its random numbers are those of Python's library. With the authors' seed they give the authors' jobs: the recorded logs
of Figure 10 have the same submissions, GPUs and deadlines. In other figures the deadlines have no seed.
"""

import math
from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from random import Random  # noqa: TID251 - the published program's own random numbers

from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.trace import Setting, settings_at
from elasticflow.simulator.workload.workload import TraceJob, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """A duration is 60 s times 10 to a uniform exponent: of the first range with short_share, else of the second.

    pairs: models and batch sizes, of equal weight, in the order of the published table: chance chooses a position.
    tightness: range of deadline over duration.
    """

    short_share: float
    short_exponents: tuple[float, float]
    long_exponents: tuple[float, float]
    num_gpus_weights: Mapping[int, float]
    pairs: tuple[tuple[str, int], ...]
    tightness: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """jobs: the published seed, of all but the deadlines. deadlines: any; the authors' deadlines have none."""

    jobs: int
    deadlines: int


def published_jobs(
    settings: GeneratorSettings, tables: Throughputs, *, num_jobs: int, mean_gap_s: float, seeds: Seeds
) -> Workload:
    """Arrivals are a Poisson process. Tables that have none of the pairs give all of theirs."""
    jobs = _jobs(settings, tables, num_jobs, mean_gap_s, seeds)
    return Workload.of(f"generated, {num_jobs} jobs, seed {seeds.jobs}, deadlines {seeds.deadlines}", jobs)


def _jobs(
    settings: GeneratorSettings, tables: Throughputs, num_jobs: int, mean_gap_s: float, seeds: Seeds
) -> Iterator[TraceJob]:
    """The published program draws models, gaps, durations and GPUs with a seed each, and writes whole seconds."""
    models, gaps, durations, sizes = (Random(seeds.jobs + number) for number in range(4))
    deadlines = Random(f"deadlines {seeds.deadlines}")  # no whole number: those are the seeds of the others
    counts, limits = list(settings.num_gpus_weights), list(accumulate(settings.num_gpus_weights.values()))
    runnable = {count: _runnable(settings, tables, count) for count in counts}
    at_s = 0.0
    for number in range(num_jobs):
        count = counts[min(bisect(limits, sizes.random()), len(counts) - 1)]
        num_gpus, choices = runnable[count]
        setting = models.choice(choices)
        is_short = durations.random() < settings.short_share
        exponent = durations.uniform(*(settings.short_exponents if is_short else settings.long_exponents))
        duration_s = 60.0 * 10.0**exponent
        at_s -= math.log(1.0 - gaps.random()) * mean_gap_s if number else 0.0
        deadline_s = at_s + int(deadlines.uniform(*settings.tightness) * duration_s)
        yield setting.completed_job(
            job_id=f"job-{number + 1:06d}",
            submitted_at_s=float(int(at_s)),
            duration_s=float(int(duration_s)),
            num_gpus=num_gpus,
            deadline_s=float(int(deadline_s)),
        )


def _runnable(settings: GeneratorSettings, tables: Throughputs, num_gpus: int) -> tuple[int, tuple[Setting, ...]]:
    """The most GPUs up to num_gpus on which anything runs, and the pairs that do."""
    while num_gpus:
        runnable = settings_at(tables, num_gpus)
        by_pair = {(one.model_name, one.global_batch_size): one for one in runnable}
        if runnable:
            return num_gpus, tuple(by_pair[pair] for pair in settings.pairs if pair in by_pair) or runnable
        num_gpus //= 2
    raise BadSettings((f"no model of {tables.source} runs on as few GPUs as generated jobs ask for",))

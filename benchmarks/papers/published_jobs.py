"""Jobs of the generator that ElasticFlow's authors published; its parameters are data (claims.toml, generator)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.workload.raw_trace import Setting, completed_job, settings_at
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.workload import TraceJob, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """A duration is 60 s times 10 to a uniform exponent: of the first range with short_share, else of the second.

    pairs: models and batch sizes, of equal weight. tightness: range of deadline over duration.
    """

    short_share: float
    short_exponents: tuple[float, float]
    long_exponents: tuple[float, float]
    num_gpus_weights: Mapping[int, float]
    pairs: tuple[tuple[str, int], ...]
    tightness: tuple[float, float]


def published_jobs(
    settings: GeneratorSettings, tables: Throughputs, *, num_jobs: int, mean_gap_s: float, seed: int
) -> Workload:
    """Arrivals are a Poisson process. Tables that have none of the pairs give all of theirs."""
    chance = np.random.default_rng(seed)
    counts = list(settings.num_gpus_weights)
    weights = np.array(list(settings.num_gpus_weights.values()))
    runnable = {count: _runnable(settings, tables, count) for count in counts}
    at_s, jobs = 0.0, list[TraceJob]()
    for number in range(num_jobs):
        at_s += chance.exponential(mean_gap_s)
        is_short = chance.random() < settings.short_share
        low, high = settings.short_exponents if is_short else settings.long_exponents
        duration_s = 60.0 * 10.0 ** chance.uniform(low, high)
        num_gpus, choices = runnable[int(chance.choice(counts, p=weights / weights.sum()))]
        jobs.append(
            completed_job(
                job_id=f"job-{number + 1:06d}",
                submitted_at_s=at_s,
                duration_s=duration_s,
                num_gpus=num_gpus,
                setting=choices[chance.integers(len(choices))],
                deadline_s=at_s + duration_s * chance.uniform(*settings.tightness),
            )
        )
    return Workload.of(f"generated, {num_jobs} jobs, seed {seed}", jobs)


def _runnable(settings: GeneratorSettings, tables: Throughputs, num_gpus: int) -> tuple[int, tuple[Setting, ...]]:
    """The most GPUs up to num_gpus on which anything runs, and the pairs that do."""
    while num_gpus:
        runnable = settings_at(tables, num_gpus)
        published = tuple(one for one in runnable if (one.model_name, one.global_batch_size) in settings.pairs)
        if runnable:
            return num_gpus, published or runnable
        num_gpus //= 2
    raise BadSettings((f"no model of {tables.source} runs on as few GPUs as generated jobs ask for",))

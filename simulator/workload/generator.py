"""Workloads from a seed: arrivals, sizes of jobs, tightness of deadlines, load of the cluster.

Axis: J = jobs. Sizes are GPU-hours from a lognormal distribution, as in the traces of shared clusters: many small
jobs, few very large ones. Models and iterations follow raw_trace.py (ElasticFlow, section 6.1).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.trace import MAX_DURATION_S, TIGHTNESS, Setting, settings_at
from elasticflow.simulator.workload.workload import TraceJob, Workload

FloatArray = NDArray[np.float64]

DAY_S = 86_400.0
DIURNAL_SWING = 0.8  # the rate of arrivals goes from 0.2 to 1.8 of its mean each day
POINTS_PER_DAY = 288  # at which the diurnal rate is tabulated
MAX_SPAN_S = 1e9  # thirty years, as for a duration
MAX_TIGHTNESS = 50.0


class Arrivals(StrEnum):
    """The arrival process; all spread over the same span, which the load sets."""

    POISSON = "poisson"
    BURSTY = "bursty"  # many jobs in one second, then none for a long time
    DIURNAL = "diurnal"  # a Poisson process whose rate follows the day


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The parameters of a generated workload.

    load: GPU-seconds of the jobs on their requested GPUs, over those of the cluster while jobs arrive.
    num_gpus_weights: weight of each requested number of GPUs (powers of two). model_weights: weight of each model
    among those that run on that number; empty: equal weights. tightness: range of deadline over duration.
    """

    num_jobs: int = 100
    cluster_gpus: int = 64
    load: float = 1.0
    arrivals: Arrivals = Arrivals.POISSON
    jobs_per_burst: float = 20.0
    median_gpu_hours: float = 2.0
    gpu_hours_sigma: float = 1.5  # of the logarithm; 0: all jobs have one size
    num_gpus_weights: Mapping[int, float] = field(default_factory=lambda: {1: 0.5, 2: 0.15, 4: 0.15, 8: 0.15, 16: 0.05})
    model_weights: Mapping[str, float] = field(default_factory=dict[str, float])
    tightness: tuple[float, float] = TIGHTNESS
    best_effort_share: float = 0.0
    soft_share: float = 0.0

    def __post_init__(self) -> None:
        counts = self.num_gpus_weights
        weights = (*counts.values(), *self.model_weights.values())
        are_powers = all(count > 0 and count.bit_count() == 1 for count in counts)
        rises = 0 < self.tightness[0] <= self.tightness[1] <= MAX_TIGHTNESS
        shares = (self.best_effort_share, self.soft_share)
        rules = {
            "num_jobs must be 1 or more": self.num_jobs >= 1,
            "cluster_gpus must be 1 or more": self.cluster_gpus >= 1,
            "load must be more than 0": 0 < self.load < math.inf,
            "jobs_per_burst must be 1 or more": 1 <= self.jobs_per_burst < math.inf,
            "median_gpu_hours must be more than 0": 0 < self.median_gpu_hours < math.inf,
            "gpu_hours_sigma must be 0 to 10": 0 <= self.gpu_hours_sigma <= 10,
            "num_gpus_weights must name a number of GPUs": bool(counts),
            "numbers of GPUs must be powers of two": are_powers,
            "weights must be more than 0": all(0 < weight < math.inf for weight in weights),
            f"tightness must rise, above 0 and up to {MAX_TIGHTNESS:g}": rises,
            "shares must be 0 or more, and at most 1 together": min(shares) >= 0 and sum(shares) <= 1,
        }
        if problems := tuple(rule for rule, holds in rules.items() if not holds):
            raise BadSettings(problems)


def generate(recipe: Recipe, throughputs: Throughputs, seed: int, name: str = "generated") -> Workload:
    """The same recipe, tables and seed give the same jobs; times are whole seconds from 0 on."""
    chance = np.random.default_rng(seed)
    num_jobs = recipe.num_jobs
    num_gpus_J = chance.choice(list(recipe.num_gpus_weights), num_jobs, p=_shares(recipe.num_gpus_weights))
    gpu_hours_J = recipe.median_gpu_hours * chance.lognormal(0.0, recipe.gpu_hours_sigma, num_jobs)
    duration_s_J = np.clip(np.rint(gpu_hours_J * 3600 / num_gpus_J), 1, MAX_DURATION_S)
    span_s = float(num_gpus_J @ duration_s_J) / (recipe.load * recipe.cluster_gpus)
    if span_s > MAX_SPAN_S:
        raise BadSettings((f"these jobs would arrive over {span_s:.3g} s; raise the load, or make the jobs smaller",))
    submitted_s_J = np.sort(np.floor(_arrivals_s(recipe, span_s, chance)))
    allowed_s_J = np.ceil(duration_s_J * chance.uniform(*recipe.tightness, num_jobs))
    class_share_J = chance.random(num_jobs)
    settings = {count: _weighted(recipe, throughputs, count) for count in recipe.num_gpus_weights}
    jobs = list[TraceJob]()
    for job in range(num_jobs):
        job_class = _job_class(recipe, class_share_J[job])
        submitted_at_s, num_gpus = float(submitted_s_J[job]), int(num_gpus_J[job])
        has_deadline = job_class is not JobClass.BEST_EFFORT
        choices, shares = settings[num_gpus]
        setting = choices[chance.choice(len(choices), p=shares)]
        jobs.append(
            setting.completed_job(
                job_id=f"job-{job + 1:06d}",
                submitted_at_s=submitted_at_s,
                duration_s=float(duration_s_J[job]),
                num_gpus=num_gpus,
                deadline_s=submitted_at_s + float(allowed_s_J[job]) if has_deadline else None,
                job_class=job_class,
            )
        )
    return Workload.of(name, jobs)


def _shares(weights: Mapping[int, float]) -> FloatArray:
    values = np.array(list(weights.values()))
    return values / values.sum()


def _arrivals_s(recipe: Recipe, span_s: float, chance: np.random.Generator) -> FloatArray:
    """Instants in [0, span_s), in any order; those of a Poisson process of a known number are uniform."""
    uniform_J = chance.random(recipe.num_jobs)
    match recipe.arrivals:
        case Arrivals.POISSON:
            return span_s * uniform_J
        case Arrivals.BURSTY:
            num_bursts = math.ceil(recipe.num_jobs / recipe.jobs_per_burst)
            burst_s = span_s * chance.random(num_bursts)
            return burst_s[(uniform_J * num_bursts).astype(int)]
        case Arrivals.DIURNAL:
            at_s = np.linspace(0.0, span_s, 2 + math.ceil(span_s / DAY_S * POINTS_PER_DAY))
            turn = 2 * math.pi / DAY_S
            expected = at_s + DIURNAL_SWING / turn * (1 - np.cos(turn * at_s))  # arrivals until then, scaled
            return np.interp(uniform_J * expected[-1], expected, at_s)


def _weighted(recipe: Recipe, throughputs: Throughputs, num_gpus: int) -> tuple[tuple[Setting, ...], FloatArray]:
    """Settings that run on num_gpus GPUs, and their weights: by model, equal among its batch sizes."""
    weights = recipe.model_weights or dict.fromkeys(throughputs.models, 1.0)
    if unknown := sorted(weights.keys() - set(throughputs.models)):
        raise BadSettings((f"{throughputs.source} has no table of {', '.join(unknown)}",))
    found = tuple(setting for setting in settings_at(throughputs, num_gpus) if weights.get(setting.model_name))
    if not found:
        raise BadSettings((f"none of the models of {throughputs.source} runs on {num_gpus} GPUs",))
    names = [setting.model_name for setting in found]
    shares = np.array([weights[name] / names.count(name) for name in names])
    return found, shares / shares.sum()


def _job_class(recipe: Recipe, share: float) -> JobClass:
    """share: uniform in [0, 1)."""
    if share < recipe.best_effort_share:
        return JobClass.BEST_EFFORT
    if share < recipe.best_effort_share + recipe.soft_share:
        return JobClass.SOFT
    return JobClass.SLO

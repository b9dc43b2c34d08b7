"""Jobs for a pool of several GPU types, from a seed: Poisson arrivals, models of a table, sizes in GPU time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from elasticflow.simulator.heterogeneous.throughput_table import ThroughputTable

SIZE_CLASSES = ("small", "medium", "large")  # thirds of the range of sizes, on a logarithmic scale


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedJob:
    """levels: numbers of GPUs that it may take of one type. deadline_s: infinite if it has none."""

    job_id: str
    model: str
    num_iterations: float
    arrived_at_s: float
    levels: tuple[int, ...]
    size_class: str = SIZE_CLASSES[0]
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The parameters of generated jobs.

    gpu_minutes: range of the time on one GPU of `reference_type`, uniform on a logarithmic scale.
    level_weights: weight of each set of numbers of GPUs that a job may take of one type.
    deadline_factors: range of the time until the deadline, over the time on one GPU of `reference_type`.
    """

    num_jobs: int
    jobs_per_hour: float
    reference_type: str = "V100"
    gpu_minutes: tuple[float, float] = (10.0, 100.0)
    level_weights: Mapping[tuple[int, ...], float] = field(default_factory=lambda: {(1, 2, 4, 8): 1.0})
    deadline_factors: tuple[float, float] | None = None


def arriving_jobs(recipe: Recipe, table: ThroughputTable, *, seed: int) -> tuple[TypedJob, ...]:
    """The jobs in order of arrival; the same for the same seed."""
    chance = np.random.default_rng(seed)
    arrived_s_J = np.cumsum(chance.exponential(3600.0 / recipe.jobs_per_hour, recipe.num_jobs))
    size_J = chance.random(recipe.num_jobs)
    model_J = chance.integers(len(table.models), size=recipe.num_jobs)
    weights = np.array(list(recipe.level_weights.values()))
    level_J = chance.choice(len(weights), size=recipe.num_jobs, p=weights / weights.sum())
    factor_J = np.full(recipe.num_jobs, math.inf)
    if recipe.deadline_factors:
        factor_J = chance.uniform(*recipe.deadline_factors, recipe.num_jobs)
    least_minutes, most_minutes = recipe.gpu_minutes
    jobs = list[TypedJob]()
    for j in range(recipe.num_jobs):
        model = table.models[model_J[j]]
        gpu_s = 60.0 * least_minutes * (most_minutes / least_minutes) ** size_J[j]
        jobs.append(
            TypedJob(
                job_id=f"job-{j + 1:04d}",
                model=model,
                num_iterations=gpu_s * table.throughput_per_gpu(model, recipe.reference_type),
                arrived_at_s=float(arrived_s_J[j]),
                levels=tuple(recipe.level_weights)[level_J[j]],
                size_class=SIZE_CLASSES[int(size_J[j] * len(SIZE_CLASSES))],
                deadline_s=float(arrived_s_J[j] + factor_J[j] * gpu_s),
            )
        )
    return tuple(jobs)

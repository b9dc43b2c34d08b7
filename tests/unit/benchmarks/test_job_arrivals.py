import numpy as np

from benchmarks.heterogeneous.rounds import SIZE_CLASSES, Recipe, arriving_jobs, gavel_throughputs

TABLE = gavel_throughputs()


def test_a_seed_gives_the_same_jobs_and_another_seed_others() -> None:
    recipe = Recipe(num_jobs=50, jobs_per_hour=8.0, deadline_factors=(1.0, 2.0))
    assert arriving_jobs(recipe, TABLE, seed=3) == arriving_jobs(recipe, TABLE, seed=3)
    assert arriving_jobs(recipe, TABLE, seed=3) != arriving_jobs(recipe, TABLE, seed=4)


def test_jobs_follow_the_recipe() -> None:
    recipe = Recipe(
        num_jobs=4000,
        jobs_per_hour=8.0,
        gpu_minutes=(10.0, 1000.0),
        level_weights={(1,): 3.0, (2, 4): 1.0},
        deadline_factors=(1.0, 2.0),
    )
    jobs = arriving_jobs(recipe, TABLE, seed=0)
    arrived_s = np.array([job.arrived_at_s for job in jobs])
    gpu_s = np.array([job.num_iterations / TABLE.throughput_per_gpu(job.model, "V100") for job in jobs])
    factors = (np.array([job.deadline_s for job in jobs]) - arrived_s) / gpu_s
    assert np.diff(arrived_s).min() > 0
    assert abs(np.diff(arrived_s).mean() - 450.0) < 30.0
    assert (gpu_s.min() >= 599.0, gpu_s.max() <= 60_001.0) == (True, True)
    assert (factors.min() >= 0.999, factors.max() <= 2.001) == (True, True)
    assert abs(np.mean([job.levels == (1,) for job in jobs]) - 0.75) < 0.03
    assert {job.model for job in jobs} == set(TABLE.models)
    limits_s = dict[str, float](zip(SIZE_CLASSES, 600.0 * 100 ** (np.arange(1, 4) / 3), strict=True))
    assert all(size <= limits_s[job.size_class] * 1.001 for job, size in zip(jobs, gpu_s, strict=True))


def test_jobs_have_no_deadlines_unless_the_recipe_gives_them() -> None:
    assert all(np.isinf(job.deadline_s) for job in arriving_jobs(Recipe(num_jobs=9, jobs_per_hour=1), TABLE, seed=0))

from dataclasses import replace

import numpy as np
import pytest

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.workload.generator import DAY_S, Arrivals, Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs, read_throughputs
from elasticflow.simulator.workload.workload import bundled_throughputs

MANY = Recipe(num_jobs=4000, cluster_gpus=128, load=0.7)


@pytest.fixture(scope="module")
def throughputs() -> Throughputs:
    return read_throughputs(bundled_throughputs())


def test_a_bursty_workload_has_many_jobs_in_one_second(throughputs: Throughputs) -> None:
    jobs = generate(replace(MANY, arrivals=Arrivals.BURSTY, jobs_per_burst=50), throughputs, seed=3).jobs
    assert len({job.submitted_at_s for job in jobs}) == 80


def test_a_poisson_workload_has_gaps_of_an_exponential_distribution(throughputs: Throughputs) -> None:
    jobs = generate(MANY, throughputs, seed=3).jobs
    gaps_s = np.diff([job.submitted_at_s for job in jobs])
    assert np.std(gaps_s) == pytest.approx(np.mean(gaps_s), rel=0.1)
    work_gpu_s = sum(job.num_gpus * job.duration_s for job in jobs)
    assert work_gpu_s / (128 * jobs[-1].submitted_at_s) == pytest.approx(0.7, rel=0.01)


def test_a_diurnal_workload_has_most_jobs_while_the_sine_is_up(throughputs: Throughputs) -> None:
    def share_of_first_half_day(arrivals: Arrivals) -> float:
        jobs = generate(replace(MANY, arrivals=arrivals, median_gpu_hours=10), throughputs, seed=3).jobs
        return float(np.mean([job.submitted_at_s % DAY_S < DAY_S / 2 for job in jobs]))

    assert share_of_first_half_day(Arrivals.DIURNAL) == pytest.approx(0.5 + 0.8 / np.pi, abs=0.04)
    assert share_of_first_half_day(Arrivals.POISSON) == pytest.approx(0.5, abs=0.04)


def test_shares_and_weights_are_kept(throughputs: Throughputs) -> None:
    recipe = replace(
        MANY,
        best_effort_share=0.3,
        soft_share=0.2,
        num_gpus_weights={2: 3.0, 8: 1.0},
        model_weights={"resnet50": 1.0, "bert_base": 4.0},
    )
    jobs = generate(recipe, throughputs, seed=5).jobs
    classes = [job.job_class for job in jobs]
    assert classes.count(JobClass.BEST_EFFORT) / len(jobs) == pytest.approx(0.3, abs=0.03)
    assert classes.count(JobClass.SOFT) / len(jobs) == pytest.approx(0.2, abs=0.03)
    assert np.mean([job.num_gpus == 2 for job in jobs]) == pytest.approx(0.75, abs=0.03)
    assert np.mean([job.model_name == "bert_base" for job in jobs]) == pytest.approx(0.8, abs=0.03)
    assert {job.model_name for job in jobs} == {"resnet50", "bert_base"}


def test_sizes_are_lognormal_in_gpu_hours(throughputs: Throughputs) -> None:
    jobs = generate(replace(MANY, median_gpu_hours=4.0, gpu_hours_sigma=1.2), throughputs, seed=5).jobs
    log_hours = np.log([job.num_gpus * job.duration_s / 3600 for job in jobs])
    assert np.mean(log_hours) == pytest.approx(np.log(4.0), abs=0.08)
    assert np.std(log_hours) == pytest.approx(1.2, rel=0.05)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_jobs": 0}, "num_jobs must be 1 or more"),
        ({"load": 0.0}, "load must be more than 0"),
        ({"tightness": (1.5, 0.5)}, "tightness must rise"),
        ({"num_gpus_weights": {3: 1.0}}, "powers of two"),
        ({"num_gpus_weights": {}}, "must name a number of GPUs"),
        ({"model_weights": {"resnet50": -1.0}}, "weights must be more than 0"),
        ({"best_effort_share": 0.7, "soft_share": 0.4}, "at most 1 together"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        replace(MANY, **change)  # pyright: ignore[reportArgumentType]


def test_a_recipe_that_the_tables_cannot_serve_is_refused(throughputs: Throughputs) -> None:
    with pytest.raises(BadSettings, match="has no table of resnt50"):
        generate(replace(MANY, model_weights={"resnt50": 1.0}), throughputs, seed=0)
    with pytest.raises(BadSettings, match="runs on 128 GPUs"):
        generate(replace(MANY, num_gpus_weights={128: 1.0}), throughputs, seed=0)
    with pytest.raises(BadSettings, match="raise the load"):
        generate(replace(MANY, load=1e-6), throughputs, seed=0)

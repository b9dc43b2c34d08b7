"""What a person reads of a simulation: each number that it has, none that it lacks."""

from typing import Any

from elasticflow.simulator.trace.result import result_table

NUMBERS: dict[str, Any] = {
    "trace": "small",
    "num_gpus": 16,
    "overhead": "none",
    "policy": "edf",
    "partial": False,
    "jobs": 1_000,
    "admitted": 9,
    "rejected": 1,
    "unfinished": 0,
    "met": 8,
    "late": 1,
    "soft_met": 0,
    "soft_late": 0,
    "deadline_satisfactory_ratio": 0.8,
    "cluster_efficiency": 0.5,
    "makespan_s": 3_600.0,
    "gpu_hours": 4.0,
    "resizes": 3,
    "migrations": 2,
    "outages": 0,
    "utilization": None,
    "scheduling_interval_s": None,
    **{f"{kind}_{key}_s": None for kind in ("mean", "median") for key in ("jct", "jct_small", "jct_medium")},
    **{f"{kind}_{key}_s": None for kind in ("mean", "median") for key in ("jct_large", "queueing")},
    "mean_jct_best_effort_s": None,
    "bound": None,
    "certificates_checked": None,
    "wall_s": 0.1,
    "peak_rss_mb": 9.0,
}


def shown(**more: Any) -> dict[str, str]:
    made = result_table(NUMBERS | more)
    assert made.row_count <= 25
    names, answers = (map(str, column.cells) for column in made.columns)
    return dict(zip(names, answers, strict=True))


def test_questions_without_an_answer_have_no_row() -> None:
    assert list(shown()) == ["run", "jobs", "deadlines", "makespan", "GPUs", "changes", "computed in"]
    assert shown()["jobs"] == "1,000 submitted: 9 admitted, 1 rejected"
    assert shown()["deadlines"] == "8 met, 1 promised and missed; 80.0% of all, with rejected jobs"


def test_each_further_number_has_its_words() -> None:
    bound = {"bound": 9.0, "bound_exact": False, "bound_gpu_hours": 3.0, "feasible_alone": 7, "fraction_of_bound": 0.9}
    idle = {"idle_gpu_hours": 1.5, "idle_gpu_hours_no_demand": 1.5, "idle_gpu_hours_reserve": 0.0}
    windows = {"idle_windows": 2, "idle_window_p10_s": 1.0, "idle_window_p50_s": 90.0, "idle_window_p90_s": None}
    rows = shown(**bound, **idle, **windows, mean_jct_s=60.0, median_jct_s=30.0, partial=True)
    assert rows["any scheduler"] == "meets at most 9 or fewer deadlines, in 3.0 GPU-hours; this run met 90.0% of that"
    assert rows["idle"] == "1.5 GPU-hours: 1.5 no demand"
    assert rows["idle windows"] == "2; their percentiles 10, 50 and 90: 1.0s, 1m 30s, -"
    assert rows["a job takes"] == "1m 00s (median 30.0s)"
    assert rows["run"].endswith("interrupted: the numbers so far")

import json
from pathlib import Path

import pytest

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.timing.overhead import overhead_model
from elasticflow.simulator.workload.csv_table import BadInput
from elasticflow.simulator.workload.workload import TraceJob


def test_none_and_a_number_are_the_same_for_any_number_of_gpus() -> None:
    assert [overhead_model("none", 64).by_num_gpus.seconds(n) for n in (0, 1, 64)] == [0, 0, 0]
    assert [overhead_model("4.5", 64).by_num_gpus.seconds(n) for n in (0, 1, 64)] == [0, 4.5, 4.5]


def test_the_reference_grows_by_two_seconds_a_doubling_and_is_higher_in_large_clusters() -> None:
    assert [overhead_model("reference", 255).by_num_gpus.seconds(n) for n in (0, 1, 2, 8, 64)] == [
        0,
        4,
        6,
        10,
        16,
    ]
    assert [overhead_model("reference", 256).by_num_gpus.seconds(n) for n in (0, 1, 2, 8, 256)] == [
        0,
        9,
        11,
        15,
        25,
    ]
    assert overhead_model("reference", 1).by_num_gpus.seconds(1) == 4


@pytest.mark.parametrize("separator", [" ", ":"])
def test_a_measured_cost_holds_up_to_the_next_number_of_gpus(tmp_path: Path, separator: str) -> None:
    file = tmp_path / "measured costs.json"
    file.write_text('{"seconds_by_num_gpus": {"4": 0.5, "1": 0.02, "2": 0}, "machine": "one"}')
    cost = overhead_model(f"measured{separator}{file}", 64).by_num_gpus
    assert [cost.seconds(n) for n in (1, 2, 3, 4, 64)] == [0.02, 0.0, 0.0, 0.5, 0.5]


def test_a_job_of_known_state_pays_what_the_fitted_model_says_and_planners_the_most(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    model = {"seconds": 0.01, "seconds_per_byte": 1e-9, "seconds_per_doubling": 0.001}
    file.write_text(json.dumps({"seconds_by_num_gpus": {"2": 0.5}, "stop_model": model}))
    overhead = overhead_model(f"measured {file}", 8)
    small, large, unknown = (trace_job(job_id, num) for job_id, num in (("s", 10**7), ("l", 10**8), ("u", 0)))
    assert overhead.of(small).num_gpus_C == (1, 2, 4, 8)
    assert overhead.of(small).seconds_C == pytest.approx((0.02, 0.021, 0.022, 0.023))
    assert overhead.of(unknown) == overhead.by_num_gpus
    assert overhead.by_job([small, large, unknown]).keys() == {"s", "l"}
    assert overhead.most([small, large]).seconds_C == pytest.approx((0.11, 0.111, 0.112, 0.113))
    assert overhead.most([small, large, unknown]).seconds_C == pytest.approx((0.5, 0.5, 0.5, 0.5))
    assert overhead.least([small, large, unknown]).seconds_C == pytest.approx((0.02, 0.021, 0.022, 0.023))


def trace_job(job_id: str, state_bytes: int) -> TraceJob:
    return TraceJob(
        job_id=job_id,
        submitted_at_s=0.0,
        num_iterations=10,
        model_name="m",
        global_batch_size=8,
        deadline_s=None,
        job_class=JobClass.BEST_EFFORT,
        state_bytes=state_bytes,
        curve=ScalingCurve((1, 2, 4, 8), (1.0, 1.9, 3.0, 4.0)),
    )


@pytest.mark.parametrize("name", ["", "fast", "-1", "nan", "inf", "1e9", "measured"])
def test_an_unknown_model_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(BadSettings, match="must be none, a number of seconds, reference, or measured FILE"):
        overhead_model(name, 64)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "expected {"),
        ('{"seconds_by_num_gpus": {}}', "expected {"),
        ('{"seconds_by_num_gpus": {"one": 1}}', "num_gpus 'one': must be a whole number"),
        ('{"seconds_by_num_gpus": {"0": 1}}', "num_gpus '0': must be a whole number"),
        ('{"seconds_by_num_gpus": {"1.5": 1}}', "num_gpus '1.5': must be a whole number"),
        ('{"seconds_by_num_gpus": {"1": -1}}', "seconds '-1': must be 0 to 1e+06 seconds, on 1 GPUs"),
        ('{"seconds_by_num_gpus": {"1": NaN}}', "seconds 'NaN': must be"),
        ('{"seconds_by_num_gpus": {"1": "2"}}', "seconds '\"2\"': must be"),
        ('{"seconds_by_num_gpus": {"1": true}}', "seconds 'true': must be"),
        (
            '{"seconds_by_num_gpus": {"1": 1}, "stop_model": 3}',
            "stop_model: expected seconds, seconds_per_byte",
        ),
        (
            '{"seconds_by_num_gpus": {"1": 1}, "stop_model": {"seconds": 1}}',
            "1e+06 seconds, seconds_per_byte",
        ),
        ('{"seconds_by_num_gpus": {"1": 1, "01": 2}}', "the same number of GPUs twice"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "cost.json"
    file.write_text(text)
    with pytest.raises(BadInput) as refused:
        overhead_model(f"measured {file}", 64)
    assert str(file) in str(refused.value)
    assert words in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone\.json: cannot be read: No such file"):
        overhead_model(f"measured {tmp_path / 'gone.json'}", 64)

from pathlib import Path

import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.workload.csv_table import BadInput
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.trace import read_trace

TABLES = Throughputs(
    source="tables",
    curves={
        "small": {64: ScalingCurve((1, 2), (2.0, 3.0))},
        "large": {256: ScalingCurve((4, 8), (1.0, 1.5)), 512: ScalingCurve((8,), (0.5,))},
    },
)


def raw_trace(tmp_path: Path, *rows: str, header: str = "job_id,submission_time,duration,num_gpu") -> Path:
    file = tmp_path / "raw.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    return file


def test_iterations_and_deadline_follow_from_duration_and_throughput(tmp_path: Path) -> None:
    rows = [f"j{number:03d},{number},100.5,8" for number in range(200)]
    jobs = read_trace(raw_trace(tmp_path, *rows), TABLES).jobs
    assert {(job.model_name, job.global_batch_size, job.num_iterations) for job in jobs} == {
        ("large", 256, 150),
        ("large", 512, 50),
    }
    tightness = [(job.deadline_s or 0) - job.submitted_at_s for job in jobs]
    assert 0.5 * 100.5 <= min(tightness) < 0.6 * 100.5
    assert 1.4 * 100.5 < max(tightness) <= 1.5 * 100.5
    assert {(job.job_class, job.num_gpus, job.duration_s) for job in jobs} == {(JobClass.SLO, 8, 100.5)}


def test_the_seed_decides_what_is_drawn(tmp_path: Path) -> None:
    file = raw_trace(tmp_path, *(f"j{number},{number},1000,8" for number in range(20)))
    assert read_trace(file, TABLES, seed=7) == read_trace(file, TABLES, seed=7)
    assert read_trace(file, TABLES, seed=7) != read_trace(file, TABLES, seed=8)


def test_the_other_spelling_without_ids_is_raw_too(tmp_path: Path) -> None:
    (job,) = read_trace(raw_trace(tmp_path, "5,10,1", header="submit_time,duration,num_gpu"), TABLES).jobs
    assert (job.job_id, job.submitted_at_s, job.model_name) == ("job-000002", 5.0, "small")


def test_a_class_comes_from_its_column_and_does_not_change_the_draws_of_other_jobs(tmp_path: Path) -> None:
    rows = [f"j{number},{number},1000,8" for number in range(6)]
    plain = read_trace(raw_trace(tmp_path, *rows), TABLES).jobs
    marks = ("", "1,,", ",1,", ",,1", "0,0,0", "")
    header = "job_id,submission_time,duration,num_gpu,best_effort,soft_deadline,padding"
    marked = [f"{row},{mark or ',,'}" for row, mark in zip(rows, marks, strict=True)]
    jobs = read_trace(raw_trace(tmp_path, *marked, header=header), TABLES).jobs
    slo = JobClass.SLO
    classes = [slo, JobClass.BEST_EFFORT, JobClass.SOFT, JobClass.PADDING, slo, slo]
    assert [job.job_class for job in jobs] == classes
    assert [job.deadline_s for job in jobs] == [
        before.deadline_s if job.job_class.has_deadline else None for job, before in zip(jobs, plain, strict=True)
    ]


def test_a_number_of_gpus_between_two_powers_is_rounded_up(tmp_path: Path) -> None:
    (job,) = read_trace(raw_trace(tmp_path, "a,0,100,3"), TABLES).jobs
    assert (job.num_gpus, job.model_name, job.num_iterations) == (4, "large", 100)


def test_a_job_shorter_than_an_iteration_has_one(tmp_path: Path) -> None:
    (job,) = read_trace(raw_trace(tmp_path, "a,0,0.1,4"), TABLES).jobs
    assert job.num_iterations == 1


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("b,0,0,1", "duration '0': must be 0.001 to 1e+09"),
        ("b,0,-5,1", "duration '-5': must be"),
        ("b,0,1e12,1", "duration '1e12': must be"),
        ("b,-1,10,1", "submission_time '-1': must be"),
        ("b,0,10,0", "num_gpu '0': must be 1 to"),
        ("b,0,10,1.5", "num_gpu '1.5': must be a whole number"),
        ("b,0,10,", "num_gpu '': is missing"),
        ("b,0,10,16", "num_gpu '16': no model of tables runs on 16 GPUs"),
        ("a,0,10,1", "job_id 'a': is in line 2 already"),
    ],
)
def test_a_bad_row_is_named_or_skipped(tmp_path: Path, row: str, words: str) -> None:
    file = raw_trace(tmp_path, "a,0,10,1", row)
    with pytest.raises(BadInput) as refused:
        read_trace(file, TABLES)
    assert f"{file}:3: {words}" in str(refused.value)
    workload = read_trace(file, TABLES, skip_bad=True)
    assert ([job.job_id for job in workload.jobs], len(workload.skipped)) == (["a"], 1)

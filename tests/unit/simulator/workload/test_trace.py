from pathlib import Path

import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.workload.csv_table import BadInput
from elasticflow.simulator.workload.throughput_tables import Throughputs, read_throughputs
from elasticflow.simulator.workload.trace import COLUMNS, read_trace, write_trace
from elasticflow.simulator.workload.workload import bundled_throughputs, bundled_trace, bundled_traces

CURVE = ScalingCurve((1, 2), (1.0, 1.5))
TABLES = Throughputs(source="tables/A100", curves={"bert": {64: CURVE, 128: CURVE}, "gpt2": {64: CURVE}})
HEADER = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"
GOOD = "a,10,500,bert,900,64,2,300"
LATER = "b,20,5,gpt2,90,64,1,30"


def trace_of(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "trace.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_each_row_is_a_job_in_the_order_of_submission(tmp_path: Path) -> None:
    workload = read_trace(trace_of(tmp_path, HEADER, LATER, GOOD), TABLES)
    assert workload.name == "trace"
    assert [job.job_id for job in workload.jobs] == ["a", "b"]
    job = workload.jobs[0]
    assert (job.submitted_at_s, job.deadline_s, job.num_iterations) == (10.0, 900.0, 500)
    assert (job.model_name, job.global_batch_size, job.curve) == ("bert", 64, CURVE)
    assert (job.num_gpus, job.duration_s, job.job_class) == (2, 300.0, JobClass.SLO)
    assert workload.skipped == ()


def test_the_other_spellings_mean_the_same(tmp_path: Path) -> None:
    other = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration"
    expected = read_trace(trace_of(tmp_path, HEADER, GOOD, LATER), TABLES).jobs
    assert read_trace(trace_of(tmp_path, other, GOOD, LATER), TABLES).jobs == expected


def test_a_byte_order_mark_blank_lines_and_blanks_around_values_are_ignored(tmp_path: Path) -> None:
    expected = read_trace(trace_of(tmp_path, HEADER, GOOD), TABLES).jobs
    spaced = trace_of(tmp_path, "\ufeff" + HEADER.replace(",", " , "), "", GOOD.replace(",", " ,"), "")
    assert read_trace(spaced, TABLES).jobs == expected


def test_ids_gpus_and_duration_may_be_missing(tmp_path: Path) -> None:
    header = "submission_time,num_iteration,model_name,deadline,batch_size"
    (job,) = read_trace(trace_of(tmp_path, header, "10,500,bert,900,64"), TABLES).jobs
    assert (job.job_id, job.num_gpus, job.duration_s) == ("job-000002", 0, 0.0)
    (job,) = read_trace(trace_of(tmp_path, HEADER, "a,10,500,bert,900,64,,"), TABLES).jobs
    assert (job.num_gpus, job.duration_s) == (0, 0.0)


def test_flags_make_best_effort_and_soft_jobs(tmp_path: Path) -> None:
    file = trace_of(
        tmp_path,
        f"{HEADER},best_effort,soft_deadline",
        "a,10,500,bert,,64,1,10,1,0",
        "b,10,500,bert,5,64,1,10,1.0,",  # its deadline is ignored
        "c,10,500,bert,900,64,1,10,0,1",
        "d,10,500,bert,900,64,1,10,,",
    )
    classes = [(job.job_class, job.deadline_s) for job in read_trace(file, TABLES).jobs]
    assert classes == [
        (JobClass.BEST_EFFORT, None),
        (JobClass.BEST_EFFORT, None),
        (JobClass.SOFT, 900.0),
        (JobClass.SLO, 900.0),
    ]


def test_an_invalid_flag_and_two_flags_at_once_are_refused(tmp_path: Path) -> None:
    header = f"{HEADER},best_effort,soft_deadline"
    with pytest.raises(BadInput, match="soft_deadline '1': cannot be 1 beside best_effort; choose one"):
        read_trace(trace_of(tmp_path, header, f"{GOOD},1,1"), TABLES)
    with pytest.raises(BadInput, match="best_effort 'yes': must be 1"):
        read_trace(trace_of(tmp_path, header, f"{GOOD},yes,0"), TABLES)


def test_jobs_of_one_second_are_in_the_order_of_their_ids(tmp_path: Path) -> None:
    rows = [GOOD.replace("a,", f"{name},", 1) for name in "cab"]
    jobs = read_trace(trace_of(tmp_path, HEADER, *rows), TABLES).jobs
    assert [job.job_id for job in jobs] == ["a", "b", "c"]


BAD_ROWS = [
    ("a,-1,500,bert,900,64,1,10", "submission_time '-1': must be 0 to 1e+11"),
    ("a,soon,500,bert,900,64,1,10", "submission_time 'soon': is not a number"),
    ("a,nan,500,bert,900,64,1,10", "submission_time 'nan': is not a number"),
    ("a,1_0,500,bert,900,64,1,10", "submission_time '1_0': is not a number"),
    ("a,١٢,500,bert,900,64,1,10", "submission_time '١٢': is not a number"),
    ("a,,500,bert,900,64,1,10", "submission_time '': is missing"),
    ("a,10,0,bert,900,64,1,10", "num_iteration '0': must be 1 to"),
    ("a,10,2.5,bert,900,64,1,10", "num_iteration '2.5': must be a whole number"),
    ("a,10,1e30,bert,900,64,1,10", "num_iteration '1e30': must be 1 to"),
    ("a,10,inf,bert,900,64,1,10", "num_iteration 'inf': must be 1 to"),
    (
        "a,10,1099511627776,bert,900,64,1,10",
        "num_iteration '1099511627776': takes 7.33e+11 s at its fastest, more than 1e+09 s",
    ),
    ("a,10,500,,900,64,1,10", "model_name '': is missing"),
    (
        "a,10,500,llama,900,64,1,10",
        "model_name 'llama': has no throughput table; tables/A100 knows bert, gpt2",
    ),
    ("a,10,500,bert,900,65,1,10", "batch_size '65': is not in the table of bert, which knows 64, 128"),
    ("a,10,500,bert,900,0,1,10", "batch_size '0': must be 1 to"),
    ("a,10,500,bert,10,64,1,10", "deadline '10': must come after the submission at 10 s"),
    ("a,10,500,bert,-5,64,1,10", "deadline '-5': must be 0 to 1e+11"),
    ("a,10,500,bert,,64,1,10", "deadline '': is missing; give one, or mark the job with best_effort 1"),
    ("a,10,500,bert,900,64,0,10", "num_gpu '0': must be 1 to"),
    ("a,10,500,bert,900,64,1,-10", "duration '-10': must be 0 to 1e+09"),
    (",10,500,bert,900,64,1,10", "job_id '': is missing"),
    ("b,10,500,bert,900,64,1,10", "job_id 'b': is in line 2 already; every job needs its own"),
    ("a,10,500,bert,900,64,1", "has 7 cells where the header has 8"),
    (f"{'a' * 201},10,500,bert,900,64,1,10", "job_id"),
]


@pytest.mark.parametrize(("row", "words"), BAD_ROWS)
def test_a_bad_row_is_named_by_file_line_column_and_value(tmp_path: Path, row: str, words: str) -> None:
    file = trace_of(tmp_path, HEADER, LATER, row)
    with pytest.raises(BadInput) as refused:
        read_trace(file, TABLES)
    assert f"{file}:3: {words}" in str(refused.value)
    assert "--skip-bad" in str(refused.value)


@pytest.mark.parametrize(("row", "words"), BAD_ROWS)
def test_a_bad_row_can_be_skipped(tmp_path: Path, row: str, words: str) -> None:
    workload = read_trace(trace_of(tmp_path, HEADER, LATER, row), TABLES, skip_bad=True)
    assert [job.job_id for job in workload.jobs] == ["b"]
    assert [problem.line for problem in workload.skipped] == [3]
    assert words in str(workload.skipped[0])


def test_all_bad_rows_are_named_in_one_error_up_to_twenty(tmp_path: Path) -> None:
    rows = [f"j{number},-1,500,bert,900,64,1,10" for number in range(30)]
    with pytest.raises(BadInput) as refused:
        read_trace(trace_of(tmp_path, HEADER, GOOD, *rows), TABLES)
    lines = str(refused.value).splitlines()
    assert len(refused.value.problems) == 30
    assert len(lines) == 22
    assert ":22: submission_time" in lines[19]
    assert lines[20] == "... and 10 more such rows"


def test_a_trace_without_a_valid_row_is_an_error_even_with_skip_bad(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no row is valid"):
        read_trace(trace_of(tmp_path, HEADER, "a,-1,500,bert,900,64,1,10"), TABLES, skip_bad=True)
    with pytest.raises(BadInput, match="has a header, but no job below it"):
        read_trace(trace_of(tmp_path, HEADER), TABLES, skip_bad=True)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("job_id,submission_time,model_name,batch_size", "no column num_iteration, deadline; a trace has"),
        ("job_id,submission_time,duration", "no column num_gpu; a trace has"),
        ("a,b,c", "no column submission_time, num_gpu, duration"),
        ("submission_time,duration,num_gpu,model_name", "no column num_iteration, deadline, batch_size"),
        ("submission_time,duration,num_gpu,deadline", "no column num_iteration, model_name, batch_size"),
        (f"{HEADER},ddl", "two columns mean 'deadline'"),
        (f"{HEADER},best_efort", "unknown column 'best_efort'; is it 'best_effort'?"),
    ],
)
def test_a_header_that_cannot_be_read_is_refused(tmp_path: Path, header: str, words: str) -> None:
    file = trace_of(tmp_path, header, GOOD)
    with pytest.raises(BadInput) as refused:
        read_trace(file, TABLES)
    assert f"{file}:1: {words}" in str(refused.value)


def test_one_error_names_all_wrong_columns_and_the_known_ones(tmp_path: Path) -> None:
    file = trace_of(tmp_path, f"{HEADER},best_efort,paddin,ddl,mine", GOOD)
    with pytest.raises(BadInput) as refused:
        read_trace(file, TABLES)
    assert str(refused.value).splitlines() == [
        f"{file}:1: two columns mean 'deadline'; keep one of them",
        f"{file}:1: unknown column 'best_efort'; is it 'best_effort'?",
        f"{file}:1: unknown column 'paddin'; is it 'padding'?",
        f"the known columns are {', '.join(COLUMNS)}",
    ]
    with pytest.raises(BadInput, match="unknown here: a, b, c"):
        read_trace(trace_of(tmp_path, "a,b,c", GOOD), TABLES)


def test_unknown_columns_are_ignored_and_named(tmp_path: Path) -> None:
    file = trace_of(tmp_path, f"{HEADER},user,real_duration,real_iteration", f"{GOOD},alice,301,502")
    workload = read_trace(file, TABLES)
    (job,) = workload.jobs
    assert (job.duration_s, job.num_iterations) == (300, 500)
    assert workload.other_columns == ("user", "real_duration", "real_iteration")


def test_files_that_are_not_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"missing\.csv: cannot be read: No such file"):
        read_trace(tmp_path / "missing.csv", TABLES)
    with pytest.raises(BadInput, match="cannot be read"):
        read_trace(tmp_path, TABLES)
    (tmp_path / "empty.csv").write_text("\n")
    with pytest.raises(BadInput, match="is empty"):
        read_trace(tmp_path / "empty.csv", TABLES)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="is not a text file in UTF-8"):
        read_trace(tmp_path / "binary.csv", TABLES)
    with pytest.raises(BadInput, match="is not a CSV file"):
        read_trace(trace_of(tmp_path, HEADER, '"a,10'), TABLES)


def test_the_bundled_traces_have_no_bad_row() -> None:
    tables = read_throughputs(bundled_throughputs())
    workloads = {name: read_trace(bundled_trace(name), tables) for name in bundled_traces()}
    assert {name: len(workload.jobs) for name, workload in workloads.items()} == {"bursty": 150, "small": 100}
    assert {job.job_class for job in workloads["small"].jobs} == set(JobClass) - {JobClass.PADDING}
    assert len({job.submitted_at_s for job in workloads["bursty"].jobs}) == 10
    with pytest.raises(BadInput, match="is not a bundled trace; choose one of bursty, small"):
        bundled_trace("large")


def test_a_trace_may_give_the_bytes_of_a_jobs_state(tmp_path: Path) -> None:
    rows = ("a,10,500,bert,900,64,2,300,880000000", "b,10,500,bert,900,64,2,300,")
    jobs = read_trace(trace_of(tmp_path, f"{HEADER},state_bytes", *rows), TABLES).jobs
    assert [job.state_bytes for job in jobs] == [880_000_000, 0]


def test_a_trace_may_give_priorities(tmp_path: Path) -> None:
    rows = ("a,10,500,bert,900,64,2,300,2.5", "b,10,500,bert,900,64,2,300,")
    workload = read_trace(trace_of(tmp_path, f"{HEADER},priority", *rows), TABLES)
    assert [job.priority for job in workload.jobs] == [2.5, None]
    write_trace(workload, tmp_path / "written.csv")
    assert read_trace(tmp_path / "written.csv", TABLES).jobs == workload.jobs
    with pytest.raises(BadInput, match=r"priority.*must be 0\.001 to 1e\+06"):
        read_trace(trace_of(tmp_path, f"{HEADER},priority", "a,10,500,bert,900,64,2,300,0"), TABLES)


def test_a_range_of_gpus_is_the_part_of_the_curve_where_the_job_may_run(tmp_path: Path) -> None:
    header = f"{HEADER},min_gpus,max_gpus"
    rows = ("a,10,500,bert,900,64,2,300,2,2", "b,10,500,bert,900,64,2,300,,", "c,10,500,bert,900,64,,,,3")
    jobs = read_trace(trace_of(tmp_path, header, *rows), TABLES).jobs
    assert [job.curve.rate_by_num_gpus for job in jobs] == [{2: 1.5}, {1: 1.0, 2: 1.5}, {1: 1.0, 2: 1.5}]
    assert [job.measured for job in jobs] == [CURVE, None, None]
    assert [(job.min_gpus, job.max_gpus) for job in jobs] == [(2, 2), (1, None), (1, 3)]


@pytest.mark.parametrize(
    ("least", "most", "words"),
    [
        ("3", "3", "min_gpus '3': 3 is none of the numbers of GPUs that a job gets"),
        ("4", "", "min_gpus '4': .* it does on 1, 2"),
        ("2", "1", "min_gpus '2': 2 is more than the most, 1"),
    ],
)
def test_a_range_in_which_the_model_does_not_run_is_refused(tmp_path: Path, least: str, most: str, words: str) -> None:
    file = trace_of(tmp_path, f"{HEADER},min_gpus,max_gpus", f"{GOOD},{least},{most}")
    with pytest.raises(BadInput, match=words):
        read_trace(file, TABLES)


def test_a_trace_may_give_the_gpus_of_a_replica(tmp_path: Path) -> None:
    rows = ("a,10,500,bert,900,64,2,300,2", "b,10,500,bert,900,64,2,300,")
    workload = read_trace(trace_of(tmp_path, f"{HEADER},gpus_per_replica", *rows), TABLES)
    assert [job.gpus_per_replica for job in workload.jobs] == [2, 1]
    assert [job.curve.rate_by_num_gpus for job in workload.jobs] == [{2: 1.5}, {1: 1.0, 2: 1.5}]
    assert [(job.gpus_per_replica, job.min_gpus) for job in (workload.jobs[0].without_gangs(),)] == [(1, 2)]
    write_trace(workload, tmp_path / "written.csv")
    assert read_trace(tmp_path / "written.csv", TABLES).jobs == workload.jobs
    alone = read_trace(trace_of(tmp_path, HEADER, GOOD), TABLES)
    write_trace(alone, tmp_path / "written.csv")
    assert "gpus_per_replica" not in (tmp_path / "written.csv").read_text()


@pytest.mark.parametrize(
    ("header", "values", "words"),
    [
        ("", "3", "gpus_per_replica '3': must be 1, 2, 4, 8, ..., not 3"),
        ("", "4", "gpus_per_replica '4': .* it does on 1, 2"),
        (",max_gpus", "2,1", "max_gpus: 1 is no multiple of gpus_per_replica, 2"),
    ],
)
def test_replicas_on_which_the_model_does_not_run_are_refused(
    tmp_path: Path, header: str, values: str, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        read_trace(trace_of(tmp_path, f"{HEADER},gpus_per_replica{header}", f"{GOOD},{values}"), TABLES)


def test_a_range_without_a_size_is_refused_by_its_column(tmp_path: Path) -> None:
    large = Throughputs(source="tables", curves={"bert": {64: ScalingCurve((4,), (3.0,))}})
    with pytest.raises(BadInput, match=r"max_gpus '2': leaves no number of GPUs .* it does on 4"):
        read_trace(trace_of(tmp_path, f"{HEADER},max_gpus", f"{GOOD},2"), large)

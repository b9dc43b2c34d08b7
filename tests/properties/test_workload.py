"""Any generated workload is valid, keeps its recipe, and is unchanged after a file."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages.gpus import GpuRange
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.limits import MAX_ITERATIONS
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.workload.csv_table import BadInput
from elasticflow.simulator.workload.generator import Arrivals, Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import COLUMNS, MAX_DURATION_S, read_trace, write_trace
from elasticflow.simulator.workload.workload import TraceJob, Workload, bundled_throughputs

TABLES = read_throughputs(bundled_throughputs())


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """From all alike to extreme, and any mix of classes."""
    best_effort_share = draw(st.floats(0, 1))
    return Recipe(
        num_jobs=draw(st.integers(1, 60)),
        cluster_gpus=draw(st.sampled_from([8, 48, 1024])),
        load=draw(st.floats(0.1, 100.0)),
        arrivals=draw(st.sampled_from(Arrivals)),
        jobs_per_burst=draw(st.floats(1, 100)),
        median_gpu_hours=draw(st.floats(0.001, 10.0)),
        gpu_hours_sigma=draw(st.floats(0, 1.5)),
        num_gpus_weights=draw(
            st.dictionaries(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.floats(0.1, 10), min_size=1)
        ),
        tightness=draw(st.tuples(st.floats(0.01, 2), st.floats(2, 40))),
        best_effort_share=best_effort_share,
        soft_share=draw(st.sampled_from([0.0, (1 - best_effort_share) / 2])),
    )


seeds = st.integers(0, 2**32)


@given(recipes(), seeds)
def test_generated_jobs_keep_the_recipe(recipe: Recipe, seed: int) -> None:
    workload = generate(recipe, TABLES, seed)
    assert len(workload.jobs) == recipe.num_jobs
    assert workload == generate(recipe, TABLES, seed)
    for job in workload.jobs:
        assert job.num_gpus in recipe.num_gpus_weights
        done = job.duration_s * job.curve.throughput(job.num_gpus)
        assert done > 0
        assert max(done - 1, 1) <= job.num_iterations <= max(done, 1)
        if job.deadline_s is not None:
            allowed_s = job.deadline_s - job.submitted_at_s
            assert recipe.tightness[0] * job.duration_s <= allowed_s
            assert allowed_s < recipe.tightness[1] * job.duration_s + 1


@given(recipes(), seeds)
def test_the_load_is_the_work_over_what_the_cluster_has_while_jobs_come(recipe: Recipe, seed: int) -> None:
    jobs = generate(recipe, TABLES, seed).jobs
    work_gpu_s = sum(job.num_gpus * job.duration_s for job in jobs)
    span_s = work_gpu_s / (recipe.load * recipe.cluster_gpus)
    assert 0 <= jobs[0].submitted_at_s <= jobs[-1].submitted_at_s <= span_s * (1 + 1e-9)


@given(recipes(), seeds)
def test_a_written_workload_reads_back_the_same(recipe: Recipe, seed: int) -> None:
    workload = generate(recipe, TABLES, seed)
    assert read_back(workload) == workload


ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda text: text.isprintable() and text == text.strip() and not text.startswith("\ufeff")
)
times_s = st.floats(0, 1e9)


@st.composite
def trace_jobs(draw: st.DrawFn) -> TraceJob:
    """Any job that a trace may hold, with fractions of seconds and odd ids."""
    model_name = draw(st.sampled_from(TABLES.models))
    batch_size = draw(st.sampled_from(TABLES.batch_sizes(model_name)))
    job_class = draw(st.sampled_from(JobClass))
    submitted_at_s = draw(times_s)
    measured = TABLES.curve(model_name, batch_size)
    min_gpus, max_gpus = draw(st.sampled_from(((1, None), (1, 1), (2, 2), (2, None), (1, 3))))
    rates = [
        (level, rate)
        for level, rate in measured.rate_by_num_gpus.items()
        if GpuRange.of(min_gpus, max_gpus).allows(level)
    ]
    if not rates:
        (min_gpus, max_gpus), rates = (1, None), list(measured.rate_by_num_gpus.items())
    curve = ScalingCurve(*zip(*rates, strict=True))
    most = min(MAX_ITERATIONS, int(0.99 * MAX_DURATION_S * max(curve.iterations_per_s_L)))
    return TraceJob(
        job_id=draw(ids),
        submitted_at_s=submitted_at_s,
        num_iterations=draw(st.integers(1, most)),
        model_name=model_name,
        global_batch_size=batch_size,
        deadline_s=submitted_at_s + draw(st.floats(1e-3, 1e9)) if job_class.has_deadline else None,
        job_class=job_class,
        num_gpus=draw(st.integers(0, 1000)),
        duration_s=draw(times_s),
        curve=curve,
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        measured=None if curve == measured else measured,
    )


@given(st.lists(trace_jobs(), min_size=1, max_size=5, unique_by=lambda job: job.job_id))
def test_odd_jobs_survive_being_written(jobs: list[TraceJob]) -> None:
    workload = Workload.of("generated", jobs)
    assert read_back(workload) == workload


def read_back(workload: Workload) -> Workload:
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{workload.name}.csv"
        write_trace(workload, file)
        return read_trace(file, TABLES)


cells = st.one_of(
    st.sampled_from(["", "0", "1", "-1", "64", "nan", "inf", "1e400", "resnet50", "dlrm", '"', "1,1", "\x00"]),
    st.text(max_size=5),
    st.floats().map(str),
    st.integers().map(str),
)
bad_rows = st.lists(st.lists(cells, min_size=len(COLUMNS), max_size=len(COLUMNS)), max_size=5)


@given(bad_rows, st.sampled_from([COLUMNS, ("submission_time", "duration", "num_gpu")]), st.booleans())
def test_any_text_is_read_or_refused_never_a_crash(
    rows: list[list[str]], columns: tuple[str, ...], skip_bad: bool
) -> None:
    text = "\n".join([",".join(columns), *(",".join(row[: len(columns)]) for row in rows)])
    with TemporaryDirectory() as folder:
        file = Path(folder) / "fuzzed.csv"
        file.write_text(text, encoding="utf-8", errors="replace")
        try:
            is_answered = bool(read_trace(file, TABLES, skip_bad).jobs)
        except BadInput as error:
            is_answered = str(error).startswith(str(file))
    assert is_answered


@given(st.lists(st.lists(cells, min_size=3, max_size=3), max_size=4), st.booleans())
def test_any_table_is_read_or_refused_never_a_crash(rows: list[list[str]], has_header: bool) -> None:
    header = ["global_batch_size,1,2"] if has_header else []
    with TemporaryDirectory() as folder:
        file = Path(folder) / "fuzzed.csv"
        text = "\n".join([*header, *(",".join(row) for row in rows)])
        file.write_text(text, encoding="utf-8", errors="replace")
        try:
            is_answered = bool(read_throughputs(Path(folder)).batch_sizes("fuzzed"))
        except BadInput as error:
            is_answered = str(error).startswith(str(file))
    assert is_answered


def test_jobs_out_of_order_or_with_one_id_are_no_workload() -> None:
    jobs = generate(Recipe(num_jobs=3), TABLES, seed=0).jobs
    with pytest.raises(ValueError, match="ordered by submission"):
        Workload(name="reversed", jobs=jobs[::-1])
    with pytest.raises(ValueError, match="same id"):
        Workload(name="twice", jobs=(jobs[0], jobs[0]))

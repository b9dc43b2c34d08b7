"""Jobs of the published generator, the numbers of a run, stored runs, and the rows of traces that no paper has."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers.claims import Contestant, Figure, chosen, share_with_time_enough
from benchmarks.papers.claims_file import read_claims
from benchmarks.papers.execution import LIKE, Inputs, Store, alone, csv_files, execute_run, further_figures
from benchmarks.papers.published_jobs import GeneratorSettings, Seeds, published_jobs
from benchmarks.papers.report import markdown
from benchmarks.papers.rows import sections
from benchmarks.papers.runs import Jobs, Run, all_runs
from benchmarks.papers.verdicts import Verdict
from benchmarks.scheduling.workloads import cluster_of
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.trace.cluster_state import Occupancy
from elasticflow.simulator.trace.result import Fate, Result
from elasticflow.simulator.trace.simulated_run import completion_numbers
from elasticflow.simulator.workload.throughput_tables import Throughputs, read_throughputs
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload, bundled_throughputs

# --- published jobs ------------------------------------------------------------------------------------


CURVE = ScalingCurve((1, 2, 4), (1.0, 1.8, 3.0))
TABLES = Throughputs(source="tables", curves={"resnet50": {64: CURVE}, "other": {8: CURVE}})
SETTINGS = GeneratorSettings(
    short_share=0.5,
    short_exponents=(0.0, 1.0),
    long_exponents=(2.0, 3.0),
    num_gpus_weights={1: 0.5, 16: 0.5},
    pairs=(("resnet50", 64),),
    tightness=(2.0, 3.0),
)


def generated(seed: int, deadlines: int = 1) -> Workload:
    seeds = Seeds(jobs=seed, deadlines=deadlines)
    return published_jobs(SETTINGS, TABLES, num_jobs=400, mean_gap_s=100.0, seeds=seeds)


def test_the_command_for_one_figure_names_the_folders_that_were_given() -> None:
    assert Inputs(None, None, SETTINGS).in_words == ""
    assert Inputs(Path("my traces"), Path("tables"), SETTINGS).in_words == "--traces 'my traces' --throughputs tables "
    slower = Inputs(None, None, SETTINGS, slowdown_apart=1.5)
    assert slower.in_words == "--slowdown-apart 1.5 "


def test_the_report_says_what_it_assumes_about_places() -> None:
    counted, equal = Inputs(None, None, SETTINGS), Inputs(None, None, SETTINGS, slowdown_apart=1.0)
    assert "takes 2.17 times as long" in counted.places_in_words
    assert equal.places_in_words == "all places are equally fast"
    assert counted.digest() != equal.digest()  # so that --resume mixes no runs of both


def test_jobs_of_a_baseline_that_are_spread_over_nodes_are_slower_in_its_runs() -> None:
    jobs = Jobs(num_jobs=30, mean_gap_s=200.0, seed=1, deadline_seed=1)
    run = Run(jobs=jobs, num_gpus=16, contestant=Contestant(policy="tiresias"))
    generator, makespans_h = read_claims().generator, list[float]()
    for slowdown in (1.0, 100.0):
        numbers = execute_run(run, Inputs(None, None, generator, slowdown_apart=slowdown))["numbers"]
        assert isinstance(numbers, dict)
        makespans_h.append(numbers["makespan_h"])
    assert makespans_h[0] < makespans_h[1]


def test_generated_jobs_follow_the_settings() -> None:
    jobs = generated(1).jobs
    assert {job.num_gpus for job in jobs} == {1, 4}  # no model runs on 16
    assert {job.model_name for job in jobs} == {"resnet50"}
    assert all(60.0 <= job.duration_s <= 600.0 or 6_000.0 <= job.duration_s <= 60_000.0 for job in jobs)
    assert 100 < sum(job.duration_s <= 600.0 for job in jobs) < 300
    assert jobs[-1].submitted_at_s == pytest.approx(40_000.0, rel=0.2)
    assert share_with_time_enough(generated(1)) == 1.0


def test_each_seed_gives_its_own_jobs_always() -> None:
    assert generated(1) == generated(1)
    assert generated(1) != generated(2)


def test_a_seed_of_deadlines_changes_the_deadlines_alone() -> None:
    first, second = (
        [replace(job, deadline_s=None, job_class=JobClass.BEST_EFFORT) for job in generated(1, deadlines).jobs]
        for deadlines in (1, 2)
    )
    assert first == second
    assert generated(1, 1) != generated(1, 2)


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_deadlines_do_not_follow_the_gpus_or_the_durations(seed: int) -> None:
    """Although seeds of deadlines have the same numbers as those of the other draws."""
    jobs = generated(1, deadlines=seed).jobs
    durations_s = np.array([job.duration_s for job in jobs])
    factors = np.array([(job.deadline_s or 0.0) - job.submitted_at_s for job in jobs]) / durations_s
    for other in ([job.num_gpus for job in jobs], durations_s):
        assert abs(np.corrcoef(factors, other)[0, 1]) < 0.2


def test_the_published_seed_gives_the_jobs_of_figure_10_in_the_recorded_logs() -> None:
    """Submission, GPUs and deadline as in plot_figure/logs/figure10 of the authors; deadlines are 1.5 durations."""
    settings = replace(read_claims().generator, tightness=(1.5, 1.5))
    tables = read_throughputs(bundled_throughputs())
    seeds = Seeds(jobs=1, deadlines=1)
    jobs = published_jobs(settings, tables, num_jobs=100, mean_gap_s=1500.0, seeds=seeds).jobs
    recorded = {0: (0, 1, 5896), 5: (12043, 1, 156466), 15: (24137, 8, 45808), 54: (103518, 16, 106064)}
    recorded |= {39: (69046, 2, 71868), 93: (166596, 8, 1026822), 99: (175378, 1, 176516)}
    assert {at: (jobs[at].submitted_at_s, jobs[at].num_gpus, jobs[at].deadline_s) for at in recorded} == recorded


def test_the_generator_of_the_claims_makes_jobs_of_other_tables_too() -> None:
    settings = read_claims().generator
    other = Throughputs(source="tables", curves={"other": {8: CURVE}})
    workload = published_jobs(settings, other, num_jobs=20, mean_gap_s=1.0, seeds=Seeds(jobs=1, deadlines=1))
    assert {job.model_name for job in workload.jobs} == {"other"}
    assert 0.0 < (share_with_time_enough(workload) or 0.0) < 1.0


def test_times_and_classes_of_a_result() -> None:
    """Two jobs on a pool of four GPUs: a small one that waits 10 s, and a large one."""
    small, large = _fate("small", 0.0, 10.0, 110.0, duration_s=100.0), _fate("large", 5.0, 5.0, 205.0, duration_s=2e6)
    result = Result(
        workload=Workload.of("two", [small.job, large.job]),
        cluster=ClusterShape(num_nodes=1, gpus_per_node=4),
        fates=(small, large),
        outages=(),
        num_migrations=0,
        ended_at_s=205.0,
        partial=False,
    )
    numbers = completion_numbers(result)
    assert (numbers["mean_jct_s"], numbers["median_jct_s"]) == (155.0, 155.0)
    assert (numbers["mean_jct_small_s"], numbers["mean_jct_large_s"]) == (110.0, 200.0)
    assert numbers["mean_jct_medium_s"] is None
    assert numbers["mean_jct_best_effort_s"] is None
    assert (numbers["mean_queueing_s"], numbers["scheduling_interval_s"]) == (5.0, 5.0)
    assert numbers["utilization"] == pytest.approx((100.0 + 200.0) / (4 * 205.0))


def _fate(job_id: str, submitted_at_s: float, placed_at_s: float, finished_at_s: float, *, duration_s: float) -> Fate:
    """A job on one GPU."""
    job = TraceJob(
        job_id=job_id,
        submitted_at_s=submitted_at_s,
        num_iterations=100,
        model_name="resnet50",
        global_batch_size=64,
        deadline_s=submitted_at_s + 9e6,
        job_class=JobClass.SLO,
        num_gpus=1,
        duration_s=duration_s,
        curve=CURVE,
    )
    stay = Occupancy(job_id, 1, {"": 1}, placed_at_s, placed_at_s, finished_at_s, 100.0, 1.0, stops_s=placed_at_s)
    return Fate(
        job=job,
        admitted=True,
        admitted_on="",
        rejection=None,
        decided_at_s=submitted_at_s,
        finished_at_s=finished_at_s,
        occupancies=(stay,),
    )


# --- stored runs ---------------------------------------------------------------------------------------


ONE, OTHER = Run(jobs=Jobs(trace="one")), Run(jobs=Jobs(trace="other"))


def stored(folder: Path) -> None:
    store = Store(folder, "inputs", (ONE, OTHER), resume=False)
    for run in (ONE, OTHER):
        store.keep(run, {"numbers": {"jobs": 1.0}, "cpu_s": 0.5})


def known(store: Store) -> list[Run]:
    return [run for run in (ONE, OTHER) if store.numbers(run) is not None]


def test_without_resume_only_the_runs_of_this_report_are_deleted(tmp_path: Path) -> None:
    stored(tmp_path)
    assert known(Store(tmp_path, "inputs", (ONE,), resume=True)) == [ONE, OTHER]
    assert known(Store(tmp_path, "inputs", (ONE,), resume=False)) == [OTHER]


def test_runs_of_other_inputs_or_code_are_never_kept(tmp_path: Path) -> None:
    stored(tmp_path)
    with pytest.raises(BadSettings, match="other traces, throughputs or code; leave out --resume"):
        Store(tmp_path, "changed", (ONE,), resume=True)
    assert known(Store(tmp_path, "changed", (ONE,), resume=False)) == []


def test_a_command_for_one_figure_writes_a_report_of_its_own() -> None:
    assert alone("EF-F9-64") == "--only EF-F9-64 --out report-EF-F9-64"
    assert alone("trace-my june") == "--only 'trace-my june' --out 'report-trace-my june'"


def test_a_folder_named_like_a_trace_is_none(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "trace.csv").touch()
    assert [file.name for file in csv_files(tmp_path)] == ["trace.csv"]


@pytest.mark.parametrize(
    ("num_gpus", "shape"), [(6, (1, 6)), (8, (1, 8)), (12, (3, 4)), (100, (25, 4)), (128, (16, 8))]
)
def test_a_cluster_has_all_gpus_that_were_asked_for(num_gpus: int, shape: tuple[int, int]) -> None:
    cluster = cluster_of(num_gpus)
    assert (cluster.num_nodes, cluster.gpus_per_node) == shape


# --- figures of other traces ---------------------------------------------------------------------------


CLAIMS = read_claims()


def figures_of(folder: Path, *names: str) -> tuple[Figure, ...]:
    for name in names:
        (folder / f"{name}.csv").write_text("a trace")
    return further_figures(CLAIMS.figures, folder, num_gpus=64)


def test_files_that_no_claim_names_have_rows_of_their_own(tmp_path: Path) -> None:
    june, may = figures_of(tmp_path, "may", "june", "itp_cluster01")
    assert (june.figure_id, may.figure_id) == ("trace-june", "trace-may")
    like = next(figure for figure in CLAIMS.figures if figure.figure_id == LIKE)
    assert [(claim.name, claim.contestant) for claim in june.claims] == [
        (claim.name, claim.contestant) for claim in like.claims
    ]
    runs = all_runs(iter(june.claims))
    assert {(run.jobs.trace, run.num_gpus) for run in runs} == {("june", 64)}
    assert "bound" in {run.contestant.policy for run in runs if run.contestant is not None}
    assert chosen((*CLAIMS.figures, june, may), ("trace-june",)) == (june,)


def test_a_folder_of_published_traces_has_none_and_so_has_no_folder(tmp_path: Path) -> None:
    assert figures_of(tmp_path, "itp_195job", "philly_103959") == ()
    assert further_figures(CLAIMS.figures, None, num_gpus=64) == ()


def test_the_rows_are_measured_and_not_judged(tmp_path: Path) -> None:
    def numbers_of(run: Run) -> dict[str, float | None]:
        return {"deadline_satisfactory_ratio": 0.75 if run.contestant and run.contestant.policy == "selective" else 0.5}

    figures = figures_of(tmp_path, "june")
    shown = sections(figures, Inputs(tmp_path, None, CLAIMS.generator), numbers_of, {})
    assert {row.verdict for section in shown for row in section.rows} == {Verdict.NO_VALUE}
    text = markdown(shown, (), {})
    assert "No paper has this trace" in text
    row = "| elasticflow | no number | elasticflow-algorithms | 0.5 |  | 0.75 | 0.5 | no published value |"
    assert row in text


def test_jobs_that_are_left_out_are_said(tmp_path: Path) -> None:
    def numbers_of(run: Run) -> dict[str, float | None]:
        return {"deadline_satisfactory_ratio": 0.5, "jobs": 37, "skipped": 158}

    tables = Inputs(tmp_path, tmp_path, CLAIMS.generator)
    (june,) = sections(figures_of(tmp_path, "june"), tables, numbers_of, {})
    said = "158 of 195 jobs of june are left out: wrong rows, or models without a table"
    assert f"- {said}" in markdown((june,), (), {})
    published = chosen(CLAIMS.figures, ("F8b-01",))
    (figure,) = sections(published, tables, numbers_of, {})
    assert {row.claim.stands_in for row in figure.rows} == {said.replace("june", "itp_cluster01")}
    assert Verdict.REPRODUCED not in {row.verdict for row in figure.rows}

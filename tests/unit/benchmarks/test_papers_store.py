"""Stored runs: which are kept, and which are deleted."""

from pathlib import Path

import pytest

from benchmarks.papers.execution import alone, csv_files
from benchmarks.papers.runs import Jobs, Run
from benchmarks.papers.store import Store
from benchmarks.scheduling.workloads import cluster_of
from elasticflow.shared.errors import BadSettings

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

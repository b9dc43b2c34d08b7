"""The published traces and tables, where they lie beside the repository."""

from pathlib import Path

import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.workload.throughput_tables import Throughputs, read_throughputs
from elasticflow.simulator.workload.trace import read_trace

SHARED = Path(__file__).parents[5] / "shared"
TRACES, TABLES = SHARED / "traces", SHARED / "throughputs" / "A100"

pytestmark = pytest.mark.skipif(
    not (TRACES.is_dir() and TABLES.is_dir()), reason="no published traces beside the repository"
)


@pytest.fixture(scope="module")
def throughputs() -> Throughputs:
    return read_throughputs(TABLES)


@pytest.mark.parametrize(
    ("name", "num_jobs"), [("cluster10", 260), ("cluster01", 1595), ("cluster06", 2396), ("cluster03", 3011)]
)
def test_every_job_does_what_its_duration_allows_at_its_gpus(
    throughputs: Throughputs, name: str, num_jobs: int
) -> None:
    jobs = read_trace(TRACES / f"itp_{name}.csv", throughputs).jobs
    assert len(jobs) == num_jobs
    assert {job.job_class for job in jobs} == {JobClass.SLO}
    for job in jobs:
        expected = job.duration_s * job.curve.throughput(job.num_gpus)
        assert expected - 1.001 < job.num_iterations < expected + 0.001
        assert job.deadline_s is not None
        assert 0.49 < (job.deadline_s - job.submitted_at_s) / job.duration_s < 1.51


def test_zeros_in_a_table_end_the_curve(throughputs: Throughputs) -> None:
    assert throughputs.curve("resnet50_cifar10", 64).num_gpus_L == (1, 2, 4, 8)
    assert throughputs.curve("deepspeech2", 32).num_gpus_L == (1, 2, 4, 8, 16, 32)

"""A small workload on a real pool calibrates the simulator, and is compared with itself. No time is asserted."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulator_fidelity import workload
from benchmarks.simulator_fidelity.__main__ import measure, rows
from benchmarks.simulator_fidelity.workload import CONTROL, arrivals
from elasticflow.simulator.workload.workload import ClusterShape


@pytest.mark.nightly("a benchmark; unit/benchmarks/test_simulator_fidelity.py has its arithmetic")
async def test_a_workload_calibrates_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "_WARM_UP_S", 0.0)
    monkeypatch.setattr(workload, "NUM_NODES", 1)
    monkeypatch.setattr(workload, "CLUSTER", ClusterShape(num_nodes=1, gpus_per_node=2))
    monkeypatch.delenv("NATS_URL", raising=False)
    jobs = tuple(replace(job, num_iterations=12) for job in arrivals(1, 2))
    ledger = tmp_path / "run.eflow"
    await workload.record(jobs, ledger)
    measured = measure(ledger, (ledger,), jobs)
    (run,) = measured["runs"]
    assert (run["control_change"], run["void"]) == (0.0, False)
    assert measured["num_changes"]["first_start"]
    assert {1} <= measured["rates"][CONTROL].keys()
    assert run["placements"]["errors"].keys() == {job.job_id for job in jobs}
    assert len(list(rows(measured))) == 4

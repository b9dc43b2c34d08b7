"""Two executors of one machine with different shares of a core: a real pool of two GPU types."""

from pathlib import Path

import pytest

from elasticflow.shared.messages.events import JobAdmitted, JobRejected, PlacementDecided, PlanDecided
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.pool import num_gpus_by_type
from elasticflow.simulator.replay.recorded_ledger import Entry
from testbed.command_line import CommandLinePool
from testbed.real_pool import POOL, RunningPool, job, running_pool
from tests.support.executor_process import executor_process

CONFIG = PoolConfig(resize_cost_s=1.0, throughput_margin=0.5)
PROFILE = "profiled"
FAST, SLOW = "cpu-1", "cpu-0.25"


def spec(**changes: object) -> JobSpec:
    return job(model_name=PROFILE, max_iterations=20, **changes)


def placed_on(entries: tuple[Entry, ...], job_id: str) -> set[str]:
    """The nodes of all its generations after its admission."""
    nodes, admitted = set[str](), False
    for event in (e for entry in entries if isinstance(entry.message, PlanDecided) for e in entry.message.events):
        admitted = admitted or (isinstance(event, JobAdmitted) and event.job_id == job_id)
        if admitted and isinstance(event, PlacementDecided):
            nodes |= {gpu.node_id for each in event.placements if each.job_id == job_id for gpu in each.gpus}
    return nodes


async def decided(pool: RunningPool, job_id: str, spec: JobSpec) -> JobAdmitted:
    decision = await pool.client.submit(spec, job_id=job_id)
    assert isinstance(decision, JobAdmitted)
    return decision


@pytest.mark.nightly("simulation/test_profiles_by_type.py has the decisions, test_move_between_types.py a real pool")
async def test_jobs_are_profiled_on_both_types_and_each_trains_on_one(tmp_path: Path) -> None:
    async with running_pool(tmp_path, num_nodes=0, replicas={}, config=CONFIG) as pool:
        with (
            executor_process(pool.url, POOL, pool.data_dir, "fast", slots=2, cpu_share="1"),
            executor_process(pool.url, POOL, pool.data_dir, "slow", slots=4, cpu_share="0.25"),
        ):
            state = await pool.when(lambda state: state.num_gpus == 6, "both nodes joined")
            assert num_gpus_by_type(state) == {SLOW: 4, FAST: 2}
            first = await decided(pool, "first", spec())
            wide = await decided(pool, "wide", spec(job_class=JobClass.BEST_EFFORT, min_gpus=4))
            named = await decided(pool, "named", spec(gpu_type=FAST))
            lacking = await pool.client.submit(spec(gpu_type="H100"), job_id="lacking")
            state = await pool.ended(["first", "wide", "named"])
            shown = await CommandLinePool(pool.url, pool.bus, tmp_path).eflow(
                "profile", "first", "--types", "--json", "--pool", POOL
            )
        entries = await pool.ledger()
    node_of = {
        "" if state.gpu_types[0] == FAST else FAST: {"fast"},
        "" if state.gpu_types[0] == SLOW else SLOW: {"slow"},
    }
    measured = [key for key, curve in state.curves.items() if f"/{PROFILE}/b8" in key and curve.complete]
    assert len([key for key in measured if "[" not in key]) == 2
    assert placed_on(entries, "first") == node_of[first.gpu_type]
    assert placed_on(entries, "wide") == node_of[wide.gpu_type] == {"slow"}
    assert placed_on(entries, "named") == node_of[named.gpu_type] == {"fast"}
    steps = {each["gpu_type"]: each["steps"] for each in shown.value["types"]}
    assert set(steps) == {FAST, SLOW}
    assert all([point["num_virtual_nodes"] for point in points] == [1, 2, 3, 4, 6, 8] for points in steps.values())
    assert all(point["measured"] for points in steps.values() for point in points)
    assert set(shown.value["split"]["alone_s"]) == {FAST, SLOW}
    assert isinstance(lacking, JobRejected)
    assert lacking.reason == "unrunnable"
    assert {state.ended_jobs[name].phase.value for name in ("first", "wide", "named")} == {"finished"}

"""A decision depends on the ledger alone: not on hashes of names, nor on what a cache has kept."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from elasticflow.services.admission import policy as admission
from elasticflow.services.allocator import policy as allocator
from elasticflow.services.placement import policy as placement
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.jobs.live_jobs import LiveJobRows
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from testbed.histories import NOW_S, History, best_effort, pool, spec
from tests.support.worker_events import admitted

ROOT = Path(__file__).parents[3]
SAME_CHECKSUM = ("train-1c6b50bf-69", "train-315c9d5e-12")  # zlib.crc32


def submit(job_id: str, of: JobSpec) -> SubmitJob:
    return SubmitJob(job_id=job_id, tenant="lab", spec=of)


def joined(node_id: str, num_gpus: int, **changes: object) -> events.NodeJoined:
    return events.NodeJoined(
        node_id=node_id,
        incarnation=f"i-{node_id}",
        num_gpus=num_gpus,
        device="cuda",
        at_s=NOW_S,
        **changes,  # pyright: ignore[reportArgumentType]
    )


def same_with_and_without(cache: PlanningCache, history: History, now_s: float, submissions: Sequence[JobSpec]) -> None:
    for each in submissions:
        command = submit("new", each)
        kept = admission.decide(history.state, (command,), now_s, cache)
        assert kept == admission.decide(history.state, (command,), now_s, PlanningCache())


def test_a_kept_row_follows_a_job_that_leaves_a_gpu_out() -> None:
    """The allocation changes its share before it is placed again: it holds the GPUs on which it trains."""
    history = pool(4, resize_cost_s=2.0, stop_free=True)
    history.decided(admission.POLICY, submit("a", spec(max_iterations=1_000, deadline_s=NOW_S + 400.0)))
    history.decided(allocator.POLICY)
    history.decided(placement.POLICY)
    history.started("a", at_s=NOW_S + 2.0)
    lagged = events.WorkerLagged(
        job_id="a", generation=1, rank=3, slowdown=3.0, num_virtual_nodes=0, at_s=NOW_S + 20.0, node_id="node-0"
    )
    history.then(lagged).decided(placement.POLICY, now_s=NOW_S + 70.0)
    history.started("a", iteration=240, at_s=NOW_S + 70.5)
    assert history.state.live_jobs["a"].reserved_gpus
    cache = PlanningCache()
    admission.decide(history.state, (submit("probe", spec(deadline_s=NOW_S + 71.5)),), NOW_S + 71.0, cache)
    history.then(events.AllocationDecided(num_gpus_by_job={"a": 2}, valid_until_s=None, planned={}, at_s=NOW_S + 75.0))
    asked = [spec(max_iterations=each, deadline_s=NOW_S + 400.0) for each in (300, 340, 400, 500)]
    same_with_and_without(cache, history, NOW_S + 80.0, asked)


def test_a_kept_row_follows_the_distances_of_the_pool() -> None:
    """One node of three GPUs becomes two: as many GPUs, and blocks that are connected alike."""
    history = History().configured(resize_cost_s=20.0).then(joined("n0", 3))
    history.decided(admission.POLICY, submit("a", spec(max_iterations=100, deadline_s=NOW_S + 2_000.0)))
    cache = PlanningCache()
    admission.decide(history.state, (submit("x", spec(deadline_s=NOW_S + 1_000.0)),), NOW_S + 1.0, cache)
    lost = events.NodeLost(node_id="n0", incarnation="i-n0", reason="left", at_s=NOW_S + 3.0)
    history.then(joined("n1", 2), lost, joined("n2", 1))
    asked = [spec(max_iterations=each, deadline_s=NOW_S + 150.0) for each in range(150, 240, 10)]
    same_with_and_without(cache, history, NOW_S + 5.0, asked)


def test_jobs_of_one_deadline_and_checksum_have_one_order() -> None:
    """The map of jobs has them in the order of their hashes: both orders, in turn, give the same rows."""
    promised = [admitted(name, spec=spec(deadline_s=NOW_S + 250.0), deadline_s=NOW_S + 250.0) for name in SAME_CHECKSUM]
    history = pool(2).then(*promised)
    table = LiveJobRows().table(history.state, NOW_S).table
    again = LiveJobRows()
    for job_id in reversed(table.job_ids):
        again._add(history.state.live_jobs[job_id])  # pyright: ignore[reportPrivateUsage]
    assert again.table(history.state, NOW_S).table.job_ids == table.job_ids
    ties = again._ties[:2]  # pyright: ignore[reportPrivateUsage]
    assert len(np.unique(ties)) == 2


CHOOSES_A_TYPE = """
from elasticflow.services.admission.policy import POLICY
from tests.unit.services.test_decisions_of_any_process import two_types, submit, best_effort, NOW_S
(event,) = POLICY.decide(two_types().state, (submit("new", best_effort()),), NOW_S + 1.0)
print(event.gpu_type)
"""


def two_types() -> History:
    """Two types with the same jobs, in another order by the hashes of their names."""
    rates = (0.7, 1.3, 0.9, 1.1, 2.3, 0.37, 1.7)
    curves = {f"m{n}/b64{name}": {1: rate, 2: 2 * rate} for n, rate in enumerate(rates) for name in ("", "@P100")}
    history = History().configured(curves=curves | {f"linear/b64{name}": {1: 1.0, 2: 2.0} for name in ("", "@P100")})
    history.then(joined("node-0", 4, gpu_type="V100"), joined("node-1", 4, gpu_type="P100"))
    for number in range(28):
        for gpu_type in ("V100", "P100"):
            iterations = 1_000 + 37 * number + number**3 % 101
            job = best_effort(model_name=f"m{number % 7}", gpu_type=gpu_type, max_iterations=iterations)
            history.decided(admission.POLICY, submit(f"job-{gpu_type}-{number}", job))
    return history


@pytest.mark.parametrize("seeds", [("0", "1")])
def test_the_type_of_a_job_does_not_depend_on_hashes(seeds: tuple[str, ...]) -> None:
    chosen = [
        subprocess.run(
            [sys.executable, "-c", CHOOSES_A_TYPE],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in seeds
    ]
    assert len(set(chosen)) == 1, chosen


def test_a_rejection_names_the_most_memory_of_a_type() -> None:
    gib = 2**30
    history = History().configured()
    for number, memory in enumerate((12, 16, 12)):
        history.then(joined(f"node-{number}", 4, gpu_type="P100", gpu_memory_bytes=memory * gib))
    (rejected,) = history.decided(admission.POLICY, submit("a", spec(gpu_memory_bytes=40 * gib, gpu_type="P100")))
    assert isinstance(rejected, events.JobRejected)
    assert "16 GiB" in rejected.explanation

"""A decision depends on the ledger alone: not on hashes of names, nor on what a cache has kept."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticflow.services.admission import policy as admission
from elasticflow.services.allocator import policy as allocator
from elasticflow.services.placement import policy as placement
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.scheduling.jobs.live_jobs import LiveJobRows
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from testbed.histories import NOW_S, History, best_effort, pool, spec, submit
from tests.support.worker_events import admitted, joined

ROOT = Path(__file__).parents[3]
SAME_CHECKSUM = ("train-1c6b50bf-69", "train-315c9d5e-12")  # zlib.crc32


def same_with_and_without(cache: PlanningCache, history: History, now_s: float, commands: Sequence[SubmitJob]) -> None:
    for command in commands:
        kept = admission.decide(history.state, (command,), now_s, cache)
        assert kept == admission.decide(history.state, (command,), now_s, PlanningCache())


def test_a_kept_row_follows_a_job_that_leaves_a_gpu_out() -> None:
    """The allocation changes its share before it is placed again: it holds the GPUs on which it trains."""
    history = pool(4, resize_cost_s=2.0, stop_free=True)
    history.decided(admission.POLICY, submit("a", max_iterations=1_000, deadline_s=NOW_S + 400.0))
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
    admission.decide(history.state, (submit("probe", deadline_s=NOW_S + 71.5),), NOW_S + 71.0, cache)
    history.then(events.AllocationDecided(num_gpus_by_job={"a": 2}, valid_until_s=None, planned={}, at_s=NOW_S + 75.0))
    asked = [submit("new", max_iterations=each, deadline_s=NOW_S + 400.0) for each in (300, 340, 400, 500)]
    same_with_and_without(cache, history, NOW_S + 80.0, asked)


def test_a_kept_row_follows_the_distances_of_the_pool() -> None:
    """One node of three GPUs becomes two: as many GPUs, and blocks that are connected alike."""
    history = History().configured(resize_cost_s=20.0).then(joined("i-n0", "n0", 3))
    history.decided(admission.POLICY, submit("a", max_iterations=100, deadline_s=NOW_S + 2_000.0))
    cache = PlanningCache()
    admission.decide(history.state, (submit("x", deadline_s=NOW_S + 1_000.0),), NOW_S + 1.0, cache)
    lost = events.NodeLost(node_id="n0", incarnation="i-n0", reason="left", at_s=NOW_S + 3.0)
    history.then(joined("i-n1", "n1", 2), lost, joined("i-n2", "n2", 1))
    asked = [submit("new", max_iterations=each, deadline_s=NOW_S + 150.0) for each in range(150, 240, 10)]
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
from tests.unit.services.test_decisions_of_any_process import NOW_S, best_effort_job, equal_types
(event,) = POLICY.decide(equal_types().state, (best_effort_job("new"),), NOW_S + 1.0)
print(event.gpu_type)
"""


def best_effort_job(job_id: str, **changes: Any) -> SubmitJob:
    return SubmitJob(job_id=job_id, tenant="lab", spec=best_effort(**changes))


def equal_types() -> History:
    """Two types with the same jobs, in another order by the hashes of their names."""
    rates = (0.7, 1.3, 0.9, 1.1, 2.3, 0.37, 1.7)
    curves = {f"m{n}/b64{name}": {1: rate, 2: 2 * rate} for n, rate in enumerate(rates) for name in ("", "@P100")}
    history = History().configured(curves=curves | {f"linear/b64{name}": {1: 1.0, 2: 2.0} for name in ("", "@P100")})
    history.then(joined("one", "node-0", gpu_type="V100"), joined("two", "node-1", gpu_type="P100"))
    for number in range(28):
        for gpu_type in ("V100", "P100"):
            iterations = 1_000 + 37 * number + number**3 % 101
            changes = {"model_name": f"m{number % 7}", "gpu_type": gpu_type, "max_iterations": iterations}
            history.decided(admission.POLICY, best_effort_job(f"job-{gpu_type}-{number}", **changes))
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
        node = joined(f"i-{number}", f"node-{number}", gpu_type="P100")
        history.then(replace(node, gpu_memory_bytes=memory * gib))
    (rejected,) = history.decided(admission.POLICY, submit("a", gpu_memory_bytes=40 * gib, gpu_type="P100"))
    assert isinstance(rejected, events.JobRejected)
    assert "16 GiB" in rejected.explanation

"""`python -m benchmarks.placement`: the time of one placement decision in large pools, beside its goals.

It is CPU time, because the machine is shared; a decision waits for nothing.
"""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from benchmarks.report import machine, show
from elasticflow.services.placement.policy import decide, pool_topology
from elasticflow.shared.messages.events import PlacementDecided
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.scheduling.placement.buddy_blocks import LastPositions
from elasticflow.shared.scheduling.placement.placement import any_spread
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import NodeState, PoolState

GOALS_MS = {  # of the larger pool: placement's part of a planning cycle of 1 s
    "everything anew": 200.0,
    "3 jobs change": 20.0,
    "nothing to do": 2.0,
    "a node is lost": 500.0,
}


def main(
    quick: Annotated[bool, typer.Option(help="Few repetitions: to see that it runs, not to quote.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure placement decisions on this machine, on one core."""
    num_changes = 20 if quick else 300
    result = {
        "machine": machine(),
        "pools": [
            measure_pool(num_nodes=256, num_jobs=400, share_unpromised=0.0, num_changes=num_changes),
            measure_pool(num_nodes=256, num_jobs=400, share_unpromised=0.5, num_changes=num_changes),
            measure_pool(num_nodes=2048, num_jobs=10_000, share_unpromised=0.0, num_changes=num_changes),
            measure_pool(num_nodes=2048, num_jobs=10_000, share_unpromised=0.5, num_changes=num_changes),
        ],
    }
    show(_table(result), result, as_json=as_json, out=out)


def _table(result: dict[str, Any]) -> Table:
    table = Table(title=f"One placement decision, {result['machine']}; median, ms of CPU time (99th percentile)")
    table.add_column("pool")
    for what, goal_ms in GOALS_MS.items():
        table.add_column(f"{what}\n(<= {goal_ms:g} ms)", justify="right")
    table.add_column("in pieces", justify="right")
    table.add_column("migrations", justify="right")
    for pool in result["pools"]:
        cells = (pool["cpu_ms"][what] for what in GOALS_MS)
        table.add_row(
            f"{pool['num_gpus']:,} GPUs, {pool['num_jobs']:,} jobs, {pool['share_unpromised']:.0%} unpromised",
            *(f"{cell['p50']:.3g} ({cell['p99']:.3g})" for cell in cells),
            f"{pool['share_in_pieces']:.1%}",
            str(pool["migrations"]),
        )
    return table


# --- measuring: a full pool with many changes of three shares each -------------------------------------


PROFILE = "on-paper/b256"
NOW_S = 1_800_000_000.0
GPUS_PER_NODE = 8
NODES_PER_RACK, RACKS_PER_ROW = 16, 16
LEAVES_FREE = 0.05  # of the GPUs: a full pool is where placement is hard


def measure_pool(*, num_nodes: int, num_jobs: int, share_unpromised: float, num_changes: int) -> dict[str, Any]:
    """Milliseconds of CPU time of each kind of decision, median and 99th percentile."""
    chance = np.random.default_rng(0)
    fresh = _pool(num_nodes, num_jobs, share_unpromised, chance)
    cache = PlanningCache()
    decide(fresh, (), NOW_S, cache)  # builds the blocks
    anew_ms = [_timed(fresh, cache)[0] for _ in range(5)]
    state = _placed(fresh, _timed(fresh, cache)[1])
    changed_ms, idle_ms, migrations = list[float](), list[float](), 0
    for _ in range(num_changes):
        state = _three_changes(state, chance)
        took_ms, decided = _timed(state, cache)
        changed_ms.append(took_ms)
        migrations += sum(len(decision.migrated) for decision in decided)
        state = _placed(state, decided)
        idle_ms.append(_timed(state, cache)[0])
    lost_ms = [_timed(_without_node(state, node_id), cache)[0] for node_id in sorted(state.nodes)[:3]]
    return {
        "num_gpus": num_nodes * GPUS_PER_NODE,
        "num_jobs": len(state.live_jobs),
        "share_unpromised": share_unpromised,
        "changes": num_changes,
        "migrations": migrations,
        "share_in_pieces": _share_in_pieces(state),
        "cpu_ms": {
            "everything anew": _percentiles(anew_ms),
            "3 jobs change": _percentiles(changed_ms),
            "nothing to do": _percentiles(idle_ms),
            "a node is lost": _percentiles(lost_ms),
        },
    }


def _timed(state: PoolState, cache: PlanningCache) -> tuple[float, tuple[PlacementDecided, ...]]:
    started = time.process_time()
    decided = decide(state, (), NOW_S, cache)
    return (time.process_time() - started) * 1e3, decided


def _percentiles(times_ms: list[float]) -> dict[str, float]:
    return {"p50": float(np.percentile(times_ms, 50)), "p99": float(np.percentile(times_ms, 99))}


def _pool(num_nodes: int, num_jobs: int, share_unpromised: float, chance: np.random.Generator) -> PoolState:
    """A pool that is nearly full by number, in which no job has GPUs yet."""
    ids = [f"node-{share_unpromised}-{number}" for number in range(num_nodes)]  # of no other pool: nothing is cached
    nodes = {
        node_id: NodeState(
            node_id=node_id,
            incarnation="1",
            num_gpus=GPUS_PER_NODE,
            device="cuda",
            alive=True,
            since_s=NOW_S,
            sockets=2,
            rack=f"row-{number // (NODES_PER_RACK * RACKS_PER_ROW)}/rack-{number // NODES_PER_RACK}",
        )
        for number, node_id in enumerate(ids)
    }
    shares = [1] * num_jobs
    num_free = int(num_nodes * GPUS_PER_NODE * (1 - LEAVES_FREE)) - num_jobs
    while num_free > 0:  # doubled at random: sizes from one GPU to many
        chosen = int(chance.integers(num_jobs))
        num_free -= shares[chosen]
        shares[chosen] *= 2
    promised = chance.random(num_jobs) >= share_unpromised
    jobs = {
        f"job-{number:05d}": _job(f"job-{number:05d}", num_gpus, is_promised)
        for number, (num_gpus, is_promised) in enumerate(zip(shares, promised.tolist(), strict=True))
    }
    curve = MeasuredCurve(iterations_per_s={1 << k: 0.9**k * (1 << k) for k in range(14)}, probed_to=math.inf)
    curves = Map({PROFILE: curve})
    return PoolState(nodes=Map(nodes), live_jobs=Map(jobs), curves=curves, allocation_based_on=1)


def _job(job_id: str, num_gpus: int, is_promised: bool) -> Job:
    spec = JobSpec(
        training_function="benchmark:OnPaper",
        model_name=PROFILE.split("/")[0],
        global_batch_size=256,
        max_iterations=100_000,
        job_class=JobClass.SLO if is_promised else JobClass.BEST_EFFORT,
    )
    return Job(
        job_id=job_id,
        tenant="lab",
        spec=spec,
        phase=Phase.ADMITTED,
        decided_at_s=NOW_S,
        decided_sequence=1,
        num_gpus=num_gpus,
        planned_share=(NOW_S, NOW_S + 3600.0, float(num_gpus)) if is_promised else (),
    )


def _placed(state: PoolState, decided: tuple[PlacementDecided, ...]) -> PoolState:
    """The pool once all that was decided trains."""
    jobs = state.live_jobs
    for decision in decided:
        for placed in decision.placements:
            job = replace(jobs[placed.job_id], gpus=placed.gpus, generation=placed.generation, started_at_s=NOW_S)
            jobs = jobs.set(placed.job_id, job)
    return replace(state, live_jobs=jobs)


def _three_changes(state: PoolState, chance: np.random.Generator) -> PoolState:
    """Three jobs get twice their share or half of it, or are suspended, or resumed."""
    jobs, ids = state.live_jobs, sorted(state.live_jobs)
    num_free = state.num_gpus - sum(job.num_gpus for job in jobs.values())
    for chosen in chance.choice(len(ids), 3, replace=False).tolist():
        job = jobs[ids[chosen]]
        num_gpus = 1 if not job.num_gpus else job.num_gpus * 2 if chance.random() < 0.5 else job.num_gpus // 2
        if num_gpus - job.num_gpus <= num_free:
            num_free -= num_gpus - job.num_gpus
            plan = (NOW_S, NOW_S + 3600.0, float(num_gpus)) if job.promised else ()
            jobs = jobs.set(job.job_id, replace(job, num_gpus=num_gpus, planned_share=plan))
    return replace(state, live_jobs=jobs)


def _without_node(state: PoolState, node_id: str) -> PoolState:
    """The pool after the loss of one node; the jobs on it keep their share."""
    lost = state.nodes[node_id]
    jobs = state.live_jobs
    for job in jobs.values():
        if lost.node_id in job.nodes:
            jobs = jobs.set(job.job_id, replace(job, broken=True, started_at_s=None))
    nodes = state.nodes.set(lost.node_id, replace(lost, alive=False))
    return replace(state, nodes=nodes, live_jobs=jobs)


def _share_in_pieces(state: PoolState) -> float:
    """The share of the jobs on several GPUs that lie further apart than they need to."""
    last = LastPositions(pool_topology(state))
    held = {job_id: job.gpus for job_id, job in state.live_jobs.items() if len(job.gpus) > 1}
    return sum(any_spread(last, {job_id: gpus}) for job_id, gpus in held.items()) / max(len(held), 1)


if __name__ == "__main__":
    typer.run(main)

"""Pools that lose power in a phase of a job, by seed: no promise is broken, because time would still keep each.

`python -m testbed.power_losses 200` runs the first 200 seeds and prints a table.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from elasticflow.shared.messages.commands import RequestCheckpoint, SetGpuLimits, SubmitJob
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import Job, Phase
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.invariants import broken_promises
from elasticflow.simulator.pipeline.virtual_workers import TimingModel
from testbed.simulated_runs import CURVES, problems, services, settle

NODES = ("a", "b")
DEADLINE_S = 600.0  # alone, a job takes less than a minute
LONGEST_S = 900.0
KINDS = ("a node", "all nodes", "all nodes and services")
PHASES = ("profiling", "starting", "switching", "checkpointing", "ending")
STRUCK = "job-00"
STEP_S = 0.0005  # between two looks at the phase: writing a checkpoint may take two milliseconds


@dataclass(frozen=True, kw_only=True)
class PowerLosses:
    """What one seed does: strikes in a minute, each when the job is in the phase, or half a minute after the last."""

    seed: int
    kind: str
    phase: str
    num_strikes: int
    is_one_machine: bool
    stop_free: bool

    @classmethod
    def of_seed(cls, seed: int) -> "PowerLosses":
        """Each kind in each phase within 15 seeds; once or twice, on one machine or several, in turn."""
        number = seed // (len(KINDS) * len(PHASES))
        phase = PHASES[seed % len(PHASES)]
        return cls(
            seed=seed,
            kind=KINDS[seed // len(PHASES) % len(KINDS)],
            phase=phase,
            num_strikes=1 + number % 2,
            is_one_machine=number // 2 % 2 == 0,
            stop_free=phase == "switching" or number % 3 != 0,
        )


def run(losses: PowerLosses) -> VirtualCluster:
    """The pool at rest, after its power losses. Raises AssertionError if the job never was in the phase."""
    chance = np.random.default_rng([losses.seed, 17])
    with VirtualCluster(_scenario(losses), services, seed=losses.seed) as cluster:
        assert _reaches(cluster, losses.phase, within_s=60.0), losses
        cluster.run_for(float(chance.uniform(0.0, 0.3)))
        for number in range(losses.num_strikes):
            if number:
                _reaches(cluster, "starting", within_s=float(chance.uniform(1.0, 40.0)))
                cluster.run_for(float(chance.uniform(0.0, 0.5)))
            _strike(cluster, losses, outage_s=float(chance.choice([1.0, 4.0, 15.0])))
        settle(cluster, longest_s=LONGEST_S)
    return cluster


def broken(cluster: VirtualCluster) -> Iterator[str]:
    """What must not be: broken promises, and broken invariants."""
    yield from broken_promises(cluster.state)
    yield from problems(cluster)


def _strike(cluster: VirtualCluster, losses: PowerLosses, outage_s: float) -> None:
    if losses.kind == "a node" and losses.is_one_machine:
        cluster.nodes["b"].crash(outage_s)  # its executor is killed
    else:
        struck = NODES[1:] if losses.kind == "a node" else NODES
        cluster.lose_power(struck, outage_s, with_services=losses.kind == KINDS[-1])


def _scenario(losses: PowerLosses) -> Scenario:
    """A job on all GPUs, which writes a checkpoint on request; later it keeps half of them, and another one follows."""
    curves = {} if losses.phase == "profiling" else CURVES
    model = ("m0", "m1")[losses.seed % 2]
    spec = JobSpec(
        training_function="examples.digits:Digits",
        model_name=model,
        global_batch_size=256,
        max_iterations=600,
        job_class=JobClass.SLO,
        deadline_in_s=DEADLINE_S,
    )
    arrivals = (
        Arrival(at_s=1.0, command=SubmitJob(job_id=STRUCK, tenant="lab", spec=spec)),
        Arrival(at_s=7.0, command=RequestCheckpoint(job_id=STRUCK, tenant="lab")),
        Arrival(at_s=9.0, command=SetGpuLimits(job_id=STRUCK, tenant="lab", max_gpus=2)),
        Arrival(at_s=11.0, command=SubmitJob(job_id="job-01", tenant="lab", spec=replace(spec, max_iterations=200))),
    )
    return Scenario(
        num_gpus_by_node=dict.fromkeys(NODES, 2),
        config=PoolConfig(curves=curves, stop_free=losses.stop_free),
        timing_model=TimingModel(true_curves=CURVES),
        arrivals=arrivals,
        is_one_machine=losses.is_one_machine,
    )


def _starts(job: Job) -> bool:
    is_placed = bool(job.gpus) and not job.broken
    return is_placed and job.started_at_s is None and job.previous_generation is None


def _reaches(cluster: VirtualCluster, phase: str, *, within_s: float) -> bool:
    """Run until the job is in the phase; False if that takes longer."""
    end_s = cluster.loop.now_s + within_s
    while (job := cluster.state.live_jobs.get(STRUCK)) is None or not is_in_phase(job, phase):
        if cluster.loop.now_s >= end_s:
            return False
        cluster.run_for(STEP_S)
    return True


def is_in_phase(job: Job, phase: str) -> bool:
    """phase: of PHASES."""
    return _PREDICATES[phase](job)


def _ends(job: Job) -> bool:
    """Within seconds of its end, as far as the ledger knows: it has progress every few seconds only."""
    assert job.spec is not None
    return job.iteration > 0 and job.iteration + 4.0 * (job.iterations_per_s or 0.0) >= job.spec.max_iterations


_PREDICATES: Mapping[str, Callable[[Job], bool]] = {
    "profiling": lambda job: job.phase is Phase.PROFILING and bool(job.gpus),
    "starting": lambda job: job.phase is Phase.ADMITTED and _starts(job),
    "switching": lambda job: job.is_switching,
    "checkpointing": lambda job: job.checkpoint_request > 0,
    "ending": _ends,
}


def main(num_seeds: int) -> int:
    """Print a row for each kind and phase: seeds, and those in which something broke."""
    runs, failures = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for seed in range(num_seeds):
        losses = PowerLosses.of_seed(seed)
        row = (losses.kind, losses.phase)
        cluster = run(losses)
        found = list(broken(cluster))
        runs[row] += 1
        failures[row] += bool(found)
        if found:
            print(f"seed {seed}: {losses}", *found[:5], sep="\n  ", flush=True)
    print("| power loss of | phase | seeds | broken |\n|---|---|---|---|")
    for row in sorted(runs):
        print(f"| {row[0]} | {row[1]} | {runs[row]} | {failures[row]} |")
    return bool(failures.total())


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))

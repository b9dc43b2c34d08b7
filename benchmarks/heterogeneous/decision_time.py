"""The time of a decision in a large pool of four GPU types: submission, allocation and placement.

One job asks to come in after all others have reported their progress, exactly as planned. The pool was filled by the
services' own policies. Beside it stands one plain pass over the same jobs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import partial

from benchmarks.heterogeneous.deadlines import on_types
from benchmarks.report import Measured, Row
from benchmarks.scheduling.decisions import LOOSE, TIGHT, recipe_of
from benchmarks.scheduling.pools import SEED, all_reported, arriving_jobs, decided, loaded, plain_pass, submitted
from benchmarks.timing import Took, spreads, timed
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.runtime.service.run_service import keep_what_is_loaded
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.shared.state.pool import PoolState, spec_of
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.trace.simulated_pool import submission
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import Throughputs, read_throughputs
from elasticflow.simulator.workload.workload import ClusterShape, TypedPool, bundled_throughputs

SPEEDS = {"H100": 1.0, "A100": 0.6, "V100": 0.3, "T4": 0.1}
GPUS_PER_NODE, APART_S = 8, 0.01
LOADS = {"with free GPUs": LOOSE, "saturated": TIGHT}


def measure_decision_time(*, num_gpus: int, num_live: int, count: int) -> Measured:
    """So many submissions, one after another, for each load. num_gpus: of all types together."""
    warm_up()
    keep_what_is_loaded()
    known = read_throughputs(bundled_throughputs())
    recipes = {name: recipe_of(num_gpus, num_live, tightness) for name, tightness in LOADS.items()}
    return {name: _decisions(recipe, known, num_live, count) for name, recipe in recipes.items()}


def _decisions(recipe: Recipe, known: Throughputs, num_live: int, count: int) -> Measured:
    workload = on_types(generate(recipe, known, SEED, "generated load"), SPEEDS)
    pool = TypedPool(tuple(SPEEDS), (recipe.cluster_gpus // len(SPEEDS),) * len(SPEEDS))
    simulation = loaded(SimulatedRun(workload=workload, cluster=ClusterShape.of_pool(pool, GPUS_PER_NODE)), num_live)
    state, now_s, times = simulation.state, simulation.now_s, defaultdict[str, list[Took]](list)
    policies = planners()
    for job in arriving_jobs(recipe, known, count):
        now_s += APART_S
        state = all_reported(state, now_s)
        times["plain pass"].append(timed(partial(plain_pass, state))[1])
        commands: tuple[Command, ...] = (submission(submitted(job, now_s)),)
        for service, policy in policies.items():
            events, took = timed(partial(policy.decide, state, commands, now_s))
            times[service].append(took)
            state, commands = decided(state, service, events, now_s), ()
    return {
        "num_gpus": recipe.cluster_gpus,
        "live_jobs": len(state.live_jobs),
        "live_jobs_by_type": _by_type(state),
        "submissions": count,
        **spreads(times),
    }


def _by_type(state: PoolState) -> Mapping[str, int]:
    return Counter(spec_of(job).gpu_type or next(iter(SPEEDS)) for job in state.live_jobs.values())


def rows(measured: Measured) -> Iterable[Row]:
    for name, numbers in measured.items():
        what = f"{numbers['live_jobs']:,} jobs on {numbers['num_gpus']:,} GPUs of {len(SPEEDS)} types, {name}"
        for service in ("admission", "allocator", "placement"):
            cpu_ms = numbers["cpu_ms"][service]
            yield Row(
                f"{what}: {service}",
                f"p50 {cpu_ms['p50']:.1f} ms, p99 {cpu_ms['p99']:.1f} ms of CPU time",
                "p99 <= 50 ms",
                f"plain pass {numbers['cpu_ms']['plain pass']['p50']:.2f} ms",
            )

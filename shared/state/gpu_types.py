"""The GPU types of a pool, and the part of the pool that has one type. Pure.

All GPUs of a job's share have one type. Planners decide on the parts one after another, each as on a pool of its own,
so a pool of one type is planned as if types did not exist (docs/adr/0047). What is idle then may join a job of another
type (docs/adr/0049).

In specs and events of the ledger "" stands for the first type of the pool, which is also that of nodes without a type:
so an older message means the same as before.
"""
# pyright: strict

from collections import Counter
from dataclasses import replace

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import Demand, PoolState, num_gpus_by_type, spec_of, with_nodes

CPU_SLOTS = "cpu-"  # begins the names of types of CPU slots; their share of a core follows


def type_name(state: PoolState, recorded: str) -> str:
    """The type as its nodes name it; "" if none does."""
    return recorded or next(iter(state.gpu_types), "")


def as_recorded(state: PoolState, gpu_type: str) -> str:
    """How specs and events name this type: "" for the first."""
    return "" if state.gpu_types[:1] == (gpu_type,) else gpu_type


def spec_on(state: PoolState, spec: JobSpec, gpu_type: str) -> JobSpec:
    """The spec of the same job on GPUs of this type. Its profile key names the curve there."""
    recorded = as_recorded(state, gpu_type)
    return spec if spec.gpu_type == recorded else replace(spec, gpu_type=recorded)


def submitted_spec(job: Job) -> JobSpec:
    """The user's."""
    return job.submitted_spec or spec_of(job)


def accepts(state: PoolState, spec: JobSpec, recorded: str) -> bool:
    """Whether the user of a submitted spec accepts this type."""
    return not spec.gpu_type or as_recorded(state, spec.gpu_type) == recorded


def num_recorded_gpus(state: PoolState) -> Counter[str]:
    """GPUs of the nodes that are alive, by recorded type."""
    num_gpus = Counter[str]()
    for gpu_type, count in num_gpus_by_type(state).items():
        num_gpus[as_recorded(state, gpu_type)] += count
    return num_gpus


def num_added_by_type(state: PoolState, job: Job) -> dict[str, int]:
    """GPUs of other types that joined a job, by the type as its nodes name it."""
    nodes = (state.nodes.get(gpu.node_id) for gpu in job.added_gpus)
    return dict(sorted(Counter(node.gpu_type for node in nodes if node is not None).items()))


def have_same_arithmetic(state: PoolState, *recorded: str) -> bool:
    """Whether GPUs of these types compute the same bits: all of them are one type, or CPU slots of any share."""
    names = {type_name(state, each) for each in recorded}
    return len(names) == 1 or all(name.startswith(CPU_SLOTS) for name in names)


def large_enough_types(state: PoolState, spec: JobSpec) -> list[str]:
    """The types with enough GPUs that the user of a submitted spec accepts, as recorded, the first type first."""
    num_gpus = num_recorded_gpus(state)
    known = [as_recorded(state, gpu_type) for gpu_type in state.gpu_types] or [""]
    return [each for each in known if accepts(state, spec, each) and num_gpus[each] >= spec.gpu_range.least]


def possible_types(state: PoolState, spec: JobSpec) -> list[str]:
    """The types on which a submitted spec may run: large enough, and no profiling run of it failed there."""
    large_enough = large_enough_types(state, spec)
    return [each for each in large_enough if not profiling_failure(state, spec, each)]


def profiling_failure(state: PoolState, spec: JobSpec, gpu_type: str) -> str:
    """Why a profiling run of a submitted spec failed on this type; "" if none did."""
    curve = state.curves.get(spec_on(state, spec, gpu_type).measured_key)
    return "" if curve is None else curve.failure


def may_run_elsewhere(state: PoolState, job: Job, gpu_type: str) -> bool:
    """Whether a profiling run that fails on this type, as recorded, leaves the job another one."""
    possible = possible_types(state, submitted_spec(job))
    return job.phase is Phase.PROFILING and any(each != gpu_type for each in possible)


def parts(state: PoolState) -> dict[str, PoolState]:
    """The part of each type, as recorded, the first type first; the pool itself if it has one type only."""
    if len(state.gpu_types) <= 1:
        return {"": state}
    return {as_recorded(state, gpu_type): part_of_type(state, gpu_type) for gpu_type in state.gpu_types}


def part_of_type(state: PoolState, gpu_type: str) -> PoolState:
    """The pool with the nodes, jobs, quote reservations and demand of one type only.

    Curves, ended jobs, quotas and loads are those of the whole pool.
    """
    if len(state.gpu_types) <= 1:
        return state
    recorded = as_recorded(state, gpu_type)
    nodes = state.nodes.mutate()
    for node in state.nodes.values():
        if as_recorded(state, node.gpu_type) != recorded:
            del nodes[node.node_id]
    live_jobs = state.live_jobs.mutate()
    for job in state.live_jobs.values():
        if spec_of(job).gpu_type != recorded:
            del live_jobs[job.job_id]
    quotes = state.quote_reservations.mutate()
    for quote in state.quote_reservations.values():
        if quote.spec.gpu_type != recorded:
            del quotes[quote.job_id]
    return fast_replace(
        with_nodes(state, nodes.finish()),
        live_jobs=live_jobs.finish(),
        quote_reservations=quotes.finish(),
        demand=state.demand_by_type.get(recorded, Demand()) if recorded else state.demand,
    )

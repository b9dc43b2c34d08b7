"""The GPU types of a pool, and the part of the pool that has one type. Pure.

All GPUs of a job's share have one type. Planners decide on the parts one after another, each as on a pool of its own,
so a pool of one type is planned as if types did not exist (docs/adr/0047). What is idle then may join a job of another
type (docs/adr/0049).

In specs and events of the ledger "" stands for the first type of the pool, which is also that of nodes without a type:
so an older message means the same as before.
"""

# pyright: strict

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from elasticflow.shared.frozen_values import fast_replace, memoize_last
from elasticflow.shared.messages.events import JobFailed, ProfilingFailed
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import Demand, NodeState, PoolState, num_gpus_in_gangs, spec_of, with_nodes
from elasticflow.shared.state.topology import Topology, pool_topology, topology_of_nodes

CPU_SLOTS = "cpu-"  # begins the names of types of CPU slots; their share of a core follows


def type_name(state: PoolState, recorded: str) -> str:
    """The type as its nodes name it; "" if none does."""
    return recorded or next(iter(state.gpu_types), "")


def shown_type(state: PoolState, recorded: str) -> str:
    """The name of the type where a pool has several; "" in a pool of one type."""
    return type_name(state, recorded) if len(state.gpu_types) > 1 else ""


def as_recorded(state: PoolState, gpu_type: str) -> str:
    """How specs and events name this type: "" for the first."""
    return _as_recorded(state.gpu_types, gpu_type)


def _as_recorded(gpu_types: tuple[str, ...], gpu_type: str) -> str:
    return "" if gpu_types[:1] == (gpu_type,) else gpu_type


def spec_on(state: PoolState, spec: JobSpec, gpu_type: str) -> JobSpec:
    """The spec of the same job on GPUs of this type. Its profile key names the curve there."""
    recorded = as_recorded(state, gpu_type)
    return spec if spec.gpu_type == recorded else replace(spec, gpu_type=recorded, other_gpu_types=())


def type_of_profile(profile_key: str) -> str:
    """The type in the key of a profile, as recorded: "P100" of "resnet50/b256@P100[2..8]"."""
    return profile_key.rpartition("/")[2].partition("[")[0].partition("@")[2]


def submitted_spec(job: Job) -> JobSpec:
    """The user's."""
    return job.submitted_spec or spec_of(job)


def accepts(state: PoolState, spec: JobSpec, recorded: str) -> bool:
    """Whether the user of a submitted spec accepts this type."""
    named = (spec.gpu_type, *spec.other_gpu_types) if spec.gpu_type else ()
    return not named or any(as_recorded(state, gpu_type) == recorded for gpu_type in named)


def accepted_types(state: PoolState, spec: JobSpec) -> list[str]:
    """The types of the pool that the user of a submitted spec accepts and that have the memory, as recorded, the first
    type first."""
    known = [as_recorded(state, gpu_type) for gpu_type in state.gpu_types] or [""]
    return [each for each in known if accepts(state, spec, each) and _has_memory(state, spec, each)]


def _has_memory(state: PoolState, spec: JobSpec, recorded: str) -> bool:
    """Whether each GPU of the type has the memory that the job needs, as far as it is known."""
    return not spec.gpu_memory_bytes or all(
        spec.gpu_memory_bytes <= node.gpu_memory_bytes
        for node in state.nodes.values()
        if node.takes_jobs and node.gpu_memory_bytes and as_recorded(state, node.gpu_type) == recorded
    )


def num_gpus_by_recorded_type(state: PoolState) -> Mapping[str, int]:
    """GPUs of the nodes that take jobs."""
    return _num_gpus_by_recorded_type(state.nodes, state.gpu_types)


@memoize_last  # each submission asks for it several times, and decisions change no nodes
def _num_gpus_by_recorded_type(nodes: Map[str, NodeState], gpu_types: tuple[str, ...]) -> Mapping[str, int]:
    num_gpus = Counter[str]()
    for node in nodes.values():
        if node.takes_jobs:
            num_gpus[_as_recorded(gpu_types, node.gpu_type)] += node.num_gpus
    return MappingProxyType(num_gpus)  # callers share it; types without nodes have 0


def large_enough_types(state: PoolState, spec: JobSpec) -> list[str]:
    """The accepted types that have enough GPUs now."""
    accepted, least = accepted_types(state, spec), spec.gpu_range.least
    if spec.gpus_per_replica > 1:
        return [each for each in accepted if _num_gpus_in_gangs(state, spec, each) >= least]
    num_gpus = num_gpus_by_recorded_type(state)
    return [each for each in accepted if num_gpus[each] >= least]


def nodes_of_type(state: PoolState, recorded: str) -> dict[str, NodeState]:
    """The nodes of this type that take jobs, by id."""
    return {
        node.node_id: node
        for node in state.nodes.values()
        if node.takes_jobs and as_recorded(state, node.gpu_type) == recorded
    }


def _num_gpus_in_gangs(state: PoolState, spec: JobSpec, recorded: str) -> int:
    return num_gpus_in_gangs(nodes_of_type(state, recorded), spec.gpus_per_replica)


def num_added_by_type(state: PoolState, job: Job) -> dict[str, int]:
    """GPUs of other types that joined a job, by the type as its nodes name it."""
    return count_by_type(state, job.added_gpus)


def count_by_type(state: PoolState, gpus: Iterable[GpuId]) -> dict[str, int]:
    """How many of these GPUs each type has, by name."""
    nodes = (state.nodes.get(gpu.node_id) for gpu in gpus)
    return dict(sorted(Counter(type_name(state, node.gpu_type) for node in nodes if node is not None).items()))


def have_same_arithmetic(state: PoolState, *recorded: str) -> bool:
    """Whether GPUs of these types compute the same bits: all of them are one type, or CPU slots of any share."""
    names = {type_name(state, each) for each in recorded}
    return len(names) == 1 or all(name.startswith(CPU_SLOTS) for name in names)


def possible_types(state: PoolState, spec: JobSpec) -> list[str]:
    """The types on which a submitted spec may run: large enough, and no profiling run of it failed there."""
    large_enough = large_enough_types(state, spec)
    return [each for each in large_enough if not profiling_failure(state, spec, each)]


def profiling_failure(state: PoolState, spec: JobSpec, gpu_type: str) -> str:
    """Why a profiling run of a submitted spec failed on this type; "" if none did."""
    curve = state.curves.get(spec_on(state, spec, gpu_type).measured_key)
    return "" if curve is None else curve.failure


def parts(state: PoolState) -> dict[str, PoolState]:
    """The part of each type, as recorded, the first type first; the pool itself if it has one type only."""
    if len(state.gpu_types) <= 1:
        return {"": state}
    return {as_recorded(state, gpu_type): part_of_type(state, gpu_type) for gpu_type in state.gpu_types}


def part_of_type(state: PoolState, gpu_type: str) -> PoolState:
    """The pool with the nodes, jobs, quote reservations and demand of one type only.

    Curves, ended jobs, quotas and loads are those of the whole pool, and so is the configuration, except that a type
    reserves one node less than it has at most: the reserve for its only node would be that node.
    """
    if len(state.gpu_types) <= 1:
        return state
    recorded = as_recorded(state, gpu_type)
    nodes = state.nodes.mutate()
    for node in state.nodes.values():
        if as_recorded(state, node.gpu_type) != recorded:
            del nodes[node.node_id]
    of_type = nodes.finish()
    live_jobs = state.live_jobs.mutate()
    for job in state.live_jobs.values():
        if spec_of(job).gpu_type != recorded:
            del live_jobs[job.job_id]
    quotes = state.quote_reservations.mutate()
    for quote in state.quote_reservations.values():
        if quote.spec.gpu_type != recorded:
            del quotes[quote.job_id]
    return fast_replace(
        with_nodes(state, of_type),
        config=_config(state, of_type),
        live_jobs=live_jobs.finish(),
        quote_reservations=quotes.finish(),
        demand=_demand(state, recorded),
    )


def topology_of(state: PoolState, gpus: Sequence[GpuId]) -> Topology:
    """The topology of the GPUs of the type that these GPUs have."""
    node = state.nodes.get(gpus[0].node_id) if gpus else None
    if node is None or len(state.gpu_types) <= 1:
        return pool_topology(state)
    return _topologies_by_type(state.nodes, state.config)[node.gpu_type]


def speed_at_place(state: PoolState, job: Job, curve: MeasuredCurve) -> float | None:
    """Iterations/s of the curve on GPUs that are connected like those of the job; None if it has none there."""
    topology, num_gpus = topology_of(state, job.own_gpus), len(job.own_gpus)
    level = topology.level_of(job.own_gpus)
    at_level = curve.at_level.get(level, {}).get(num_gpus)
    if at_level is not None or num_gpus in curve.bounded:
        return at_level
    counted_level = curve.counted_level.get(num_gpus, topology.block_level(num_gpus))
    return curve.iterations_per_s.get(num_gpus) if level == counted_level else None


@memoize_last  # the monitor asks for it of each job
def _topologies_by_type(nodes: Map[str, NodeState], config: PoolConfig) -> Mapping[str, Topology]:
    by_type = defaultdict[str, list[NodeState]](list)
    for node in nodes.values():
        by_type[node.gpu_type].append(node)
    return {gpu_type: topology_of_nodes(of_type, config) for gpu_type, of_type in by_type.items()}


def part_after(state: PoolState, part: PoolState, gpu_type: str, job_ids: Iterable[str]) -> PoolState:
    """The part of a type after decisions that concern these jobs alone, given the part before.

    Decisions change no nodes, so it equals `part_of_type`, in a time that does not grow with the pool.
    """
    if len(state.gpu_types) <= 1:
        return state
    live_jobs, quotes = part.live_jobs.mutate(), part.quote_reservations.mutate()
    for job_id in job_ids:
        job, quote = state.live_jobs.get(job_id), state.quote_reservations.get(job_id)
        live_jobs.pop(job_id, None)
        quotes.pop(job_id, None)
        if job is not None and spec_of(job).gpu_type == gpu_type:
            live_jobs[job_id] = job
        if quote is not None and quote.spec.gpu_type == gpu_type:
            quotes[job_id] = quote
    return fast_replace(
        state,
        nodes=part.nodes,
        num_gpus=part.num_gpus,
        draining=part.draining,
        config=part.config,
        live_jobs=live_jobs.finish(),
        quote_reservations=quotes.finish(),
        demand=_demand(state, gpu_type),
    )


def _config(state: PoolState, nodes: Map[str, NodeState]) -> PoolConfig:
    num_nodes = sum(not node.left for node in nodes.values())
    most = max(num_nodes - 1, 0)
    return state.config if state.config.reserve_nodes <= most else replace(state.config, reserve_nodes=most)


def _demand(state: PoolState, gpu_type: str) -> Demand:
    return state.demand_by_type.get(gpu_type, Demand()) if gpu_type else state.demand


# --- What a failure means for a job that is measured on one GPU type after another ---------------------


def failure_on_type(state: PoolState, job: Job, gpu_type: str, failed: JobFailed) -> JobFailed | ProfilingFailed:
    """The failure of the job; or only of its profiling run on this recorded type, if another type is left for it."""
    possible = possible_types(state, submitted_spec(job))
    if job.phase is not Phase.PROFILING or not any(each != gpu_type for each in possible):
        return failed
    return ProfilingFailed(
        job_id=failed.job_id,
        generation=failed.generation,
        gpu_type=gpu_type,
        error=failed.error,
        node_id=failed.node_id,
        incarnation=failed.incarnation,
        progressed_at_s=failed.progressed_at_s,
        at_s=failed.at_s,
    )


# --- placed mix ----------------------------------------------------------------------------------------
# The virtual nodes of a job on GPUs of several types, as placed. Pure (docs/adr/0049).


def placed_mix(state: PoolState, job: Job) -> Mapping[str, tuple[int, ...]]:
    """The virtual nodes of each of its GPUs by recorded type, its own type first; empty if it has one type only.

    Survivors on GPUs of other types count as 0.
    """
    if not job.num_added_gpus:
        return {}
    found = dict[str, tuple[int, ...]]()
    types = [spec_of(job).gpu_type] * len(job.own_gpus) + [recorded_type(state, gpu) for gpu in job.added_gpus]
    for gpu_type, count in zip(types, job.virtual_nodes_by_rank or (0,) * len(types), strict=True):
        found[gpu_type] = (*found.get(gpu_type, ()), count)
    return found


def recorded_type(state: PoolState, gpu: GpuId) -> str:
    """The type of a GPU; that of a node that is unknown by now is the first."""
    node = state.nodes.get(gpu.node_id)
    return "" if node is None else as_recorded(state, node.gpu_type)

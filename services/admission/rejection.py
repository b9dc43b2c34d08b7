"""Rejection texts: what is wrong with a command, and why a deadline cannot be promised, in sentences with numbers."""

import math
from collections.abc import Sequence
from dataclasses import replace

from elasticflow.shared.messages.close_names import did_you_mean
from elasticflow.shared.messages.event_summary import counted, gpus_counted, in_the_past, memory_in_words
from elasticflow.shared.messages.gpus import range_problem
from elasticflow.shared.messages.job_spec import TORCHRUN, JobClass, JobSpec, gang_problems
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.availability.fill import OUTAGE_S
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    PlannedTime,
    profile_known,
    promised_deadline_s,
    unmeasured_types,
)
from elasticflow.shared.state.fold.profiles import known_virtual_nodes, num_virtual_nodes
from elasticflow.shared.state.gpu_types import (
    accepted_types,
    large_enough_types,
    nodes_of_type,
    profiling_failure,
    type_name,
)
from elasticflow.shared.state.nodes import PromisableGpus, ending_nodes
from elasticflow.shared.state.pool import NodeState, PoolState, largest_level, num_gpus_by_type, num_gpus_in_gangs

_SPEED_UNKNOWN = (
    "its speed is not known yet: `eflow profile` measures it, and so does a submission before it is decided"
)


MAX_NODES_NAMED = 3
NO_OFFER_SOUGHT = "no later deadline was sought, because the sender does not wait; `eflow quote` finds the earliest"
_KEPT = "are kept in reserve for failures (reserve_nodes)"
RUNS_NOWHERE = "it runs on no number of GPUs that the pool has now"


def problems_of(state: PoolState, spec: JobSpec, now_s: float) -> list[str]:
    """What no schedule can repair, for all fields together."""
    problems = size_problems(state, spec)
    deadline_s = spec.resolved_deadline_s(now_s)
    if spec.deadline_s is not None and spec.deadline_in_s is not None:
        problems.append("deadline_s and deadline_in_s: give one of them")
    if spec.job_class is JobClass.SLO and deadline_s is None:
        problems.append("deadline_s: a job of class slo needs a deadline; without one choose best_effort")
    if deadline_s is not None and deadline_s <= now_s:
        problems.append(f"deadline: {in_the_past(deadline_s, now_s)}; choose a later one")
    return problems + timeout_problems(state.config, spec)


def timeout_problems(config: PoolConfig, spec: JobSpec) -> list[str]:
    """The declared time-outs that would count a lost node as a fault of the code, or hold GPUs for too long."""
    least_s, most_s = config.timeouts.least_patience_s, config.longest_job_timeout_s
    given = {"start_timeout_s": spec.start_timeout_s, "stall_timeout_s": spec.stall_timeout_s}
    return [
        f"{name}: must be {least_s:g} s, by which a lost node is known, to {most_s:g} s, max_job_timeout_s of the "
        f"pool, not {value_s:g}"
        for name, value_s in given.items()
        if value_s and not least_s <= value_s <= most_s
    ]


def continuation_problems(state: PoolState, spec: JobSpec, tenant: str) -> list[str]:
    """Why the job cannot begin from the checkpoint that it names; [] without one."""
    wanted = spec.continues
    if wanted is None:
        return []
    job = state.job(wanted.job_id)
    if job is None or job.tenant != tenant or job.identity != wanted.identity or job.spec is None:
        return [f"continues: {wanted.job_id}: {no_such_job(state, tenant, wanted.job_id)}"]
    if why := job.why_not_continued:
        return [f"continues: {why}"]
    problems, saved, before = list[str](), job.saved_iteration, job.spec
    if wanted.earlier != job.earlier_writers:
        problems.append(f"continues: the checkpoints of {job.job_id} are of other jobs than it says")
    if wanted.iteration > saved:
        problems.append(f"continues: the newest checkpoint of {job.job_id} is of iteration {saved}")
    if spec.max_iterations <= wanted.iteration:
        problems.append(
            f"max_iterations: {spec.max_iterations} are done already in the checkpoint of iteration "
            f"{wanted.iteration} of {job.job_id}; choose more"
        )
    if TORCHRUN in (spec.entry, before.entry):
        problems.append("continues: a torchrun script keeps its own snapshots; name them in its arguments")
    known = num_virtual_nodes(state, spec)
    if known and job.num_virtual_nodes and known != job.num_virtual_nodes:
        problems.append(
            f"virtual_nodes: {job.job_id} has {job.num_virtual_nodes}, and this job is measured with {known}: let its "
            f"code say virtual_nodes = {job.num_virtual_nodes}"
        )
    for name in ("global_batch_size", "seed", "shard_optimizer"):
        if (there := getattr(before, name)) != getattr(spec, name):
            problems.append(f"{name}: {job.job_id} has {there}, and a job that continues it must have the same")
    return problems


def no_such_job(pool: PoolState, tenant: str, job_id: str) -> str:
    """Names close jobs of this tenant alone: those of others are none of its business."""
    jobs = (*pool.live_jobs.values(), *pool.ended_jobs.values())
    meant = did_you_mean(job_id, (job.job_id for job in jobs if job.tenant == tenant)) or ";"
    return f"tenant {tenant} has no such job{meant} `eflow jobs --all` lists them"


def _measured_virtual_nodes(state: PoolState, spec: JobSpec) -> int:
    """0 if they are unknown, of the code, or the default."""
    known = known_virtual_nodes(state, spec)
    return known.count if known is not None and known.source == "measured" else 0


def size_problems(state: PoolState, spec: JobSpec) -> list[str]:
    problems, batch_size = list[str](), spec.global_batch_size
    if (wrong := range_problem(spec.min_gpus, spec.max_gpus)) is not None:
        problems.append(f"min_gpus: {wrong}")
    elif spec.gpu_range.least > spec.most_gpus:
        replicas = f" of {spec.most_gpus // batch_size} GPUs for each" if spec.most_gpus > batch_size else ""
        problems.append(
            f"min_gpus: {spec.gpu_range.least} GPUs are more than the batch's {batch_size} samples{replicas}; lower it"
        )
    elif 0 < (parts := _measured_virtual_nodes(state, spec)) < spec.gpu_range.least:
        problems.append(
            f"min_gpus: {spec.gpu_range.least} GPUs would do the work of {parts}, because jobs of this profile cut "
            f"their batch into {counted(parts, 'virtual node')}, as measured; lower it, or let the code say "
            f"virtual_nodes = {spec.gpu_range.least} (under another model_name, if the job has one)"
        )
    problems += gang_problems(spec)
    if spec.gpus_per_replica > 1 and not state.config.migration_budget:
        problems.append(
            "gpus_per_replica: this pool cannot keep the GPUs of a replica on one node, because it migrates no "
            "promised job; set migration_budget above 0"
        )
    measured = state.curves.get(spec.measured_key)
    if measured is not None and measured.dataset_size is not None and batch_size > measured.dataset_size:
        size = measured.dataset_size
        problems.append(f"global_batch_size: {batch_size} is more than the data set's {size} samples; lower it")
    return problems


def too_small(state: PoolState, spec: JobSpec) -> bool:
    """The pool has GPUs, but not as many as the job asks for."""
    return 0 < state.num_gpus < spec.gpu_range.least


def why_unquotable(state: PoolState, spec: JobSpec) -> str:
    """Why no scaling curve is known for the job."""
    if state.num_gpus and not profile_known(state, spec):
        return _SPEED_UNKNOWN
    return why_unrunnable(state, spec)


def why_unrunnable(state: PoolState, spec: JobSpec) -> str:
    """Why the job runs on no number of GPUs that the pool has."""
    if too_few := _why_no_gangs(state, spec):
        return too_few
    if too_small(state, spec):
        return f"min_gpus: it needs at least {spec.gpu_range.least} GPUs, and the pool has {state.num_gpus}"
    most = largest_level(state, spec)
    if not most:
        return "the pool has no GPUs now"
    least, most = spec.gpu_range.least, min(most, spec.gpu_range.most or most)
    sizes = gpus_counted(most) if least == most else f"{least} to {most} GPUs"
    return f"at this batch size it does not run on {sizes}"


def _why_no_gangs(state: PoolState, spec: JobSpec) -> str:
    """Why no node holds a whole replica of the job, or all nodes too few of them; "" if they hold enough."""
    gang, least = spec.gpus_per_replica, spec.gpu_range.least
    by_type = [nodes_of_type(state, each) for each in accepted_types(state, spec)] if gang > 1 else []
    nodes = [node for of_type in by_type for node in of_type.values()]
    if not nodes or large_enough_types(state, spec):
        return ""
    largest = max(nodes, key=lambda node: (node.num_gpus, node.node_id))
    if largest.num_gpus < gang:
        most = 1 << (largest.num_gpus.bit_length() - 1)
        choose = f"choose {gpus_counted(most)} for each replica, or" if most > 1 else "leave it out, or"
        return (
            f"gpus_per_replica: the {gang} GPUs of a replica are on one node, and the largest, {largest.node_id}, has "
            f"{gpus_counted(largest.num_gpus)}: {choose} add a node with {gang}"
        )
    most = max(num_gpus_in_gangs(of_type, gang) for of_type in by_type)
    return f"min_gpus: it needs at least {least} GPUs in replicas of {gang} on one node each, and the nodes hold {most}"


def why_no_type(state: PoolState, spec: JobSpec) -> str:
    """Why the job runs on no GPU type of the pool: none has enough GPUs, or its profiling runs failed."""
    if too_few := _why_no_gangs(state, spec):
        return too_few
    if failures := _profiling_failures(state, spec):
        return f"{'; '.join(failures)}; correct it and submit it, which measures it again"
    if len(state.gpu_types) <= 1 and not spec.gpu_type and not spec.gpu_memory_bytes:
        return why_unrunnable(state, spec)
    named = (spec.gpu_type, *spec.other_gpu_types)
    wanted = f"type {' or '.join(named)}" if spec.gpu_type else "one type"
    memory = f" with {memory_in_words(spec.gpu_memory_bytes)} of memory each" if spec.gpu_memory_bytes else ""
    lacks_memory = not accepted_types(state, spec) and accepted_types(state, replace(spec, gpu_memory_bytes=0))
    field = "gpu_memory_bytes" if lacks_memory else "gpu_type" if spec.gpu_type else "min_gpus"
    least = spec.gpu_range.least
    needed = f"at least {gpus_counted(least)} of {wanted}{memory}"
    return f"{field}: it needs {needed}, and the pool has {_gpus_there(state, with_memory=bool(memory))}"


def _gpus_there(state: PoolState, *, with_memory: bool) -> str:
    """The GPUs of the pool in words, as "4 of type P100 (16 GiB), 4 of no named type"."""
    alive = (node for node in state.nodes.values() if node.alive)
    nodes = sorted(alive, key=lambda node: node.gpu_memory_bytes)
    memory = {node.gpu_type: memory_in_words(node.gpu_memory_bytes) for node in nodes}  # the most of each type
    return (
        ", ".join(
            f"{num_gpus} {f'of type {gpu_type}' if gpu_type else 'of no named type'}"
            + (f" ({memory[gpu_type] or 'unknown memory'})" if with_memory else "")
            for gpu_type, num_gpus in num_gpus_by_type(state).items()
        )
        or "none"
    )


def why_not_elsewhere(state: PoolState, spec: JobSpec) -> list[str]:
    """Why a decision on a submitted spec does not count some types that have enough GPUs."""
    return [
        *_profiling_failures(state, spec),
        *(
            f"on {type_name(state, each)} no GPU could be lent to measure its speed"
            for each in unmeasured_types(state, spec)
        ),
    ]


def _profiling_failures(state: PoolState, spec: JobSpec) -> list[str]:
    return [
        f"on {type_name(state, each)} its profiling run failed: {failure}"
        for each in large_enough_types(state, spec)
        if (failure := profiling_failure(state, spec, each))
    ]


def why_late(
    state: PoolState,
    job: SchedulableJob,
    planned: PromisableGpus,
    offered: str,
    ending: Sequence[NodeState],
    now_s: float,
) -> str:
    """Why the deadline cannot be kept. planned: on which promises are. offered: the deadline instead. ending: nodes
    without whose announced ends it could be."""
    window_s = promised_deadline_s(state, PlannedTime(job.deadline_s)) - now_s
    most = job.curve.max_useful_gpus
    fastest = job.curve.throughput(most)
    iterations = round(job.remaining_iterations)
    alone_s = iterations / fastest + job.resize_cost.seconds(most)
    unfit = f"in {window_s:.0f} s do not fit" if window_s >= 1.0 else "do not fit, for no time is left"
    return (
        f"{iterations} iterations {unfit}: alone on {gpus_counted(most)} they take "
        f"{alone_s:.0f} s ({fastest:.3g}/s){_reserve_in_words(state, job.curve, planned)}; {offered}"
        f"{f'; it would fit if no node ended before that: {_ends_in_words(ending, now_s)}' if ending else ''}"
    )


def _reserve_in_words(state: PoolState, curve: ScalingCurve, planned: PromisableGpus) -> str:
    """That fewer GPUs are promised than the job could use; "" if it can use no more, or cannot run on so few."""
    if not curve.levels[0] <= planned.num_gpus < curve.max_useful_gpus:
        return ""
    return f"; {planned.num_gpus} of the {gpus_counted(state.num_gpus)} can be promised, the others {_KEPT}"


def _ends_in_words(ending: Sequence[NodeState], now_s: float) -> str:
    """The ends of these nodes in words, as "node-7 in 3600 s"."""
    first, others = ending[:MAX_NODES_NAMED], len(ending) - MAX_NODES_NAMED
    named = ", ".join(f"{node.node_id} in {node.until_s - now_s:.0f} s" for node in first if node.until_s is not None)
    more = f" and {others} more" if others > 0 else ""
    return f"{named}{more}"


def why_overpriced(gpu_seconds: float, limit: float, crowded: tuple[float, float], offered: str, now_s: float) -> str:
    """Why a job is rejected that would displace more than it is worth. crowded: when the displaced jobs are due.
    offered: the deadline instead."""
    from_s, until_s = (at_s - now_s for at_s in crowded)
    return (
        f"it needs {gpu_seconds:.0f} GPU-seconds in its window, and recent demand fills the pool with jobs of up to "
        f"{limit:.0f}: at this price of a GPU-second it displaces more than it is worth, mostly jobs due in "
        f"{from_s:.0f} to {until_s:.0f} s; {offered}"
    )


def offered_in_words(state: PoolState, earliest_s: PlannedTime, now_s: float) -> str:
    return f"a deadline in {math.ceil(promised_deadline_s(state, earliest_s) - now_s)} s would be met"


def no_deadline(state: PoolState, job: SchedulableJob, planned: PromisableGpus, now_s: float) -> str:
    """Why no deadline at all can be promised, and what to do. planned: on which promises are."""
    config, least = state.config, job.curve.levels[0]
    none = f"no deadline is possible on {gpus_counted(state.num_gpus)}"
    needed = f"{none}: it needs at least {gpus_counted(least)}, and"
    if planned.num_gpus < least:
        return f"{needed} {planned.num_gpus} can be promised, the others {_KEPT}; {_advice(job, planned.num_gpus)}"
    lasting = planned.num_gpus - sum(drop.num_gpus for drop in planned.drops)
    if lasting < least:
        ending = sorted(ending_nodes(state.nodes), key=lambda node: (node.until_s, node.node_id))
        ends = f"beyond the announced ends of nodes ({_ends_in_words(ending, now_s)})"
        return f"{needed} {lasting} can be promised {ends}; {_advice(job, lasting)}"
    stop_s = job.resize_cost.seconds(least) + config.heartbeat_timeout_s
    if config.reserve_nodes * stop_s >= OUTAGE_S:
        covered_s = OUTAGE_S / config.reserve_nodes
        covered = f"the reserve for failures (reserve_nodes) covers stops of less than {covered_s:.0f} s"
        return f"{none}: a stop takes {stop_s:.0f} s, and {covered}; submit it without a deadline"
    if job.gpus_per_replica > 1:
        return (
            f"{none}: beside the promises already made, no {job.gpus_per_replica} GPUs of one node are free together "
            "for long enough; submit it without a deadline, or add a node"
        )
    return none


def _advice(job: SchedulableJob, num_gpus: int) -> str:
    is_enough = num_gpus >= job.gpus_per_replica
    fewer = f"allow it {gpus_counted(1 << (num_gpus.bit_length() - 1))} (--gpus), " if is_enough else ""
    return f"{fewer}submit it without a deadline, or add a node"

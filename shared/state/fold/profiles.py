"""The fold of measured speeds. Part of `ledger_fold`.

The whole curve of a profile is stored under `JobSpec.measured_key`; its part within a GPU range under the
`profile_key` of the jobs with that range. So planning looks up one curve and ignores ranges: on sizes outside the
curve the job does not run.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from elasticflow.shared.frozen_values import fast_replace, memoize_last
from elasticflow.shared.messages import events
from elasticflow.shared.messages.gpus import GpuRange
from elasticflow.shared.messages.job_spec import TORCHRUN, JobSpec
from elasticflow.shared.messages.measurements import SingleGpuStepTimes, VirtualNodeCount
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.gpu_types import topology_of, type_of_profile
from elasticflow.shared.state.job import Job, has_workers_on
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import PoolState, spec_of
from elasticflow.shared.state.topology import GPU, LEVEL_BY_NAME, Level

# --- The fold of profiles that have owners -------------------------------------------------------------
# The curves without an owner are those of the pool's configuration, and those that older jobs measured. Where an
# owner's first job begins, its own curves equal these; from then on only its own jobs measure them. A new
# configuration sets the curves of all owners (docs/adr/0067).


def with_own_curves(state: PoolState, spec: JobSpec) -> PoolState:
    """The state with curves of the owner of this profile, on all GPU types."""
    owner, owners = spec.profile_owner, state.profile_owners.get(spec.profile_family, ())
    if not owner or owner in owners:
        return state
    curves, sizes = state.curves.mutate(), state.micro_batch_sizes.mutate()
    for key in _whole_keys(state, spec.profile_family):
        own = f"{owner}/{key}"
        if key in state.micro_batch_sizes and own not in state.micro_batch_sizes:
            sizes[own] = state.micro_batch_sizes[key]
        if key not in state.curves or own in state.curves:
            continue
        curve = replace(state.curves[key], failure="")  # of code of another owner
        curves[own] = curve
        for gpu_range in curve.parts:
            curves[gpu_range.profile_key(own)] = replace(state.curves[gpu_range.profile_key(key)], failure="")
    return fast_replace(
        state,
        curves=curves.finish(),
        micro_batch_sizes=sizes.finish(),
        profile_owners=state.profile_owners.set(spec.profile_family, (*owners, owner)),
    )


def configured_keys(state: PoolState, config: PoolConfig, key: str) -> Iterator[str]:
    """The curves that a curve of the configuration sets: that without an owner, and those of all owners for which the
    configuration has none of their own."""
    yield key
    owned = (f"{owner}/{key}" for owner in state.profile_owners.get(_family_of(key), ()))
    yield from (own for own in owned if own not in config.curves)


def readable_curves(state: PoolState, owner: str) -> dict[str, MeasuredCurve]:
    """The curves of this owner and, where it has none, those without an owner, by key without an owner."""
    by_owner = curves_by_owner(state.curves, state.profile_owners)
    own: Mapping[str, MeasuredCurve] = by_owner.get(owner, {}) if owner else {}
    return dict(by_owner.get("", {})) | {key.removeprefix(f"{owner}/"): curve for key, curve in own.items()}


@memoize_last
def curves_by_owner(
    curves: Mapping[str, MeasuredCurve], profile_owners: Mapping[str, tuple[str, ...]]
) -> Mapping[str, Mapping[str, MeasuredCurve]]:
    """The curves of each owner, by their whole keys; those without an owner under ""."""
    owner_of = {f"{each}/{family}": each for family, owners in profile_owners.items() for each in owners}
    found = dict[str, dict[str, MeasuredCurve]]()
    for key, curve in curves.items():
        found.setdefault(owner_of.get(_family_of(key), ""), {})[key] = curve
    return found


def _whole_keys(state: PoolState, family: str) -> Iterator[str]:
    """The keys without an owner, of a family, as far as curves may exist."""
    on_types = (family, *(f"{family}@{gpu_type}" for gpu_type in state.gpu_types))
    yield from dict.fromkeys((*on_types, *_configured_by_family(state.config.curves).get(family, ())))


@memoize_last
def _configured_by_family(curves: Mapping[str, object]) -> Mapping[str, list[str]]:
    found = dict[str, list[str]]()
    for key in curves:
        found.setdefault(_family_of(key), []).append(key)
    return found


def _family_of(profile_key: str) -> str:
    """The family as `JobSpec.profile_family` names it: "resnet50/b256" of "resnet50/b256@P100[2..8]"."""
    model, slash, batch = profile_key.rpartition("/")
    return f"{model}{slash}{batch.partition('[')[0].partition('@')[0]}"


# --- profiles ------------------------------------------------------------------------------------------

NO_CURVE = MeasuredCurve(iterations_per_s={})
NO_RATES: Mapping[int, float] = MappingProxyType({})


def configured_curves(state: PoolState, event: events.PoolConfigured) -> PoolState:
    for configured, table in event.config.curves.items():
        whole, level = _without_level(configured)
        for key in configured_keys(state, event.config, configured):
            profile_key = key.removesuffix(configured.removeprefix(whole))
            known = state.curves.get(profile_key, NO_CURVE)
            if level is not None:
                state = with_curve(state, profile_key, replace(known, at_level={**known.at_level, level: table}))
                continue
            at_s = {num_gpus: max(event.at_s, known.measured_at_s.get(num_gpus, 0.0)) for num_gpus in table}
            at_s = {**known.measured_at_s, **at_s}
            curve = replace(
                known,
                iterations_per_s=table,
                measured_at_s=at_s,
                failure="",
                probed_to=math.inf,
                bounded=(),
                counted_level={},
            )
            state = with_curve(state, profile_key, curve)
    return state


def _without_level(configured: str) -> tuple[str, Level | None]:
    """The key of a configured curve without its level, and the level; None if it names none."""
    whole, _, name = configured.rpartition("@")
    return (whole, LEVEL_BY_NAME[name]) if whole and name in LEVEL_BY_NAME else (configured, None)


def throughput_measured(state: PoolState, event: events.ThroughputMeasured, sequence: int) -> PoolState:
    if event.node_id is not None and not _measures_own_job(state, event, event.node_id):
        return state
    curve = state.curves.get(event.profile_key, NO_CURVE)
    if event.at_s <= curve.measured_at_s.get(event.num_gpus, -1.0):
        return state
    virtual_nodes = virtual_nodes_of_profile(state, event.profile_key)
    if event.virtual_nodes is not None and may_measure_virtual_nodes(state, event.profile_key):
        virtual_nodes = event.virtual_nodes
    curve = _at_place(state, event, curve)
    curve = replace(
        curve,
        virtual_nodes=virtual_nodes,
        measured_at_s={**curve.measured_at_s, event.num_gpus: event.at_s},
        dataset_size=curve.dataset_size if event.dataset_size is None else event.dataset_size,
        single_gpu=_usable(event.single_gpu, virtual_nodes) or curve.single_gpu,
        one_virtual_node_s=(
            curve.one_virtual_node_s
            if event.one_virtual_node_s is None
            else {**curve.one_virtual_node_s, event.num_gpus: event.one_virtual_node_s}
        ),
        failure="",
    )
    return fast_replace(with_curve(state, event.profile_key, curve), scheduling_event_sequence=sequence)


def virtual_nodes_of_profile(state: PoolState, measured_key: str) -> VirtualNodeCount | None:
    """Those of the profile on all GPU types: the type that was measured first has decided."""
    known = (curve.virtual_nodes for curve in _on_all_types(state, measured_key))
    return next((each for each in known if each is not None), None)


def may_measure_virtual_nodes(state: PoolState, measured_key: str) -> bool:
    """Whether no speed of the profile is known, on any type: the speeds of a curve are those of one number of virtual
    nodes, and jobs may train with it."""
    return not any(curve.iterations_per_s for curve in _on_all_types(state, measured_key))


def known_virtual_nodes(state: PoolState, spec: JobSpec) -> VirtualNodeCount | None:
    """Those of a new job whose code leaves them open; None: the default of its batch, or none in a torchrun script."""
    return None if spec.entry == TORCHRUN else virtual_nodes_of_profile(state, spec.measured_key)


def num_virtual_nodes(state: PoolState, spec: JobSpec) -> int:
    """Virtual nodes of a new job whose code leaves them open; 0: the default of its batch."""
    known = known_virtual_nodes(state, spec)
    return 0 if known is None else known.count


def on_first_type(measured_key: str) -> str:
    """The key of the same profile on the first GPU type, which names none."""
    recorded = type_of_profile(measured_key)
    return measured_key.removesuffix(f"@{recorded}") if recorded else measured_key


def _on_all_types(state: PoolState, measured_key: str) -> Iterator[MeasuredCurve]:
    on_first = on_first_type(measured_key)
    curves = (state.curves.get(key) for key in (on_first, *(f"{on_first}@{each}" for each in state.gpu_types)))
    return (curve for curve in curves if curve is not None)


def _usable(single_gpu: SingleGpuStepTimes | None, known: VirtualNodeCount | None) -> SingleGpuStepTimes | None:
    """Step times, unless they are of another number of virtual nodes than the jobs of the profile have: two types may
    be measured at once."""
    if single_gpu is None or known is None or single_gpu.reproducible == "fast":
        return single_gpu
    return single_gpu if single_gpu.num_virtual_nodes == known.count else None


def _at_place(state: PoolState, event: events.ThroughputMeasured, curve: MeasuredCurve) -> MeasuredCurve:
    """The curve with a speed at the place where the job trained.

    The table without a level holds for the worst buddy block of each number, which a promise counts on. A speed of GPUs
    that are connected worse does not lower it. Where only GPUs that are connected better were measured, also because
    the pool had other blocks then, it is bounded.
    """
    num_gpus, rate = event.num_gpus, event.iterations_per_s
    level, block_level = _levels(state, event)
    if level is None:
        counted = curve.iterations_per_s.get(num_gpus)
        if counted is None or not (num_gpus in curve.bounded or num_gpus in curve.counted_level):
            return _counted(curve, num_gpus, rate, None)
        return replace(curve, iterations_per_s={**curve.iterations_per_s, num_gpus: min(counted, rate)})
    known, known_level = curve.iterations_per_s.get(num_gpus), curve.counted_level.get(num_gpus, block_level)
    if num_gpus in curve.bounded:
        known = None
    elif known is not None and known_level != block_level:  # of the blocks that the pool had then
        curve = _with_place(curve, num_gpus, known_level, known)
        known = known if known_level > block_level else None
    if level != block_level or num_gpus in curve.at_level.get(level, NO_RATES):
        curve = _with_place(curve, num_gpus, level, rate)
    if level == block_level:
        curve = _counted(curve, num_gpus, rate, level)
    elif level > block_level:
        curve = _counted(curve, num_gpus, rate if known is None else max(known, rate), block_level)
    elif known is not None:
        kept_level = curve.counted_level.get(num_gpus)
        curve = _counted(curve, num_gpus, min(known, rate), None if kept_level is None else block_level)
    else:
        curve = _bounded(curve, num_gpus, block_level)
    half = num_gpus // 2
    return _bounded(curve, half, curve.counted_level[half]) if half in curve.bounded else curve


def _with_place(curve: MeasuredCurve, num_gpus: int, level: Level, rate: float) -> MeasuredCurve:
    of_level = {**curve.at_level.get(level, NO_RATES), num_gpus: rate}
    return replace(curve, at_level={**curve.at_level, level: of_level})


def _counted(curve: MeasuredCurve, num_gpus: int, rate: float, level: Level | None) -> MeasuredCurve:
    """The curve with the speed that promises count on for so many GPUs. level: of its block; None: it is configured."""
    levels = {each: known for each, known in curve.counted_level.items() if each != num_gpus}
    return replace(
        curve,
        iterations_per_s={**curve.iterations_per_s, num_gpus: rate},
        bounded=tuple(each for each in curve.bounded if each != num_gpus),
        counted_level=levels if level is None else {**levels, num_gpus: level},
    )


def _bounded(curve: MeasuredCurve, num_gpus: int, level: Level) -> MeasuredCurve:
    """The curve with the least speed of so many GPUs, of which only better places are known."""
    if not any(num_gpus in rates for rates in curve.at_level.values()):  # the configuration has replaced the table
        return curve
    twice = None if 2 * num_gpus in curve.bounded else curve.iterations_per_s.get(2 * num_gpus)
    least = curve.bound(num_gpus, curve.iterations_per_s.get(num_gpus // 2), twice)
    curve = _counted(curve, num_gpus, least, level)
    return replace(curve, bounded=(*curve.bounded, num_gpus))


def _levels(state: PoolState, event: events.ThroughputMeasured) -> tuple[Level | None, Level]:
    """What connects the GPUs of the measured job, and the worst buddy block of so many GPUs of its type. None if the
    job is elsewhere by now: its speed raises none that is known."""
    job = state.job(event.job_id)
    if job is None or job.generation != event.generation or len(job.own_gpus) != event.num_gpus:
        return None, GPU
    topology = topology_of(state, job.own_gpus)
    return topology.level_of(job.own_gpus), topology.block_level(event.num_gpus)


def _measures_own_job(state: PoolState, event: events.ThroughputMeasured, node_id: str) -> bool:
    """Whether a job that runs on this node has this profile, on any GPU type."""
    job = state.job(event.job_id)
    if job is None or not has_workers_on(job, node_id):
        return False
    own_key = replace(spec_of(job), gpu_type="", other_gpu_types=()).measured_key
    return event.profile_key == own_key or event.profile_key.startswith(f"{own_key}@")


def profile_completed(state: PoolState, event: events.ProfileCompleted) -> PoolState:
    """No scheduling event: the allocator's same decision contains an allocation based on this."""
    curve = state.curves.get(event.profile_key, NO_CURVE)
    probed_to = math.inf if event.measured_to is None else event.measured_to
    curve = replace(curve, iterations_per_s=event.iterations_per_s, probed_to=probed_to)
    return with_curve(state, event.profile_key, curve)


def probed(state: PoolState, job: Job, num_gpus: int, at_s: float) -> PoolState:
    """A job starts a scaling probe on a number of GPUs without a measurement. No job of the profile repeats it."""
    profile_key = spec_of(job).profile_key
    curve = state.curves.get(profile_key, NO_CURVE)
    return with_curve(state, profile_key, replace(curve, probed_to=num_gpus, probed_at_s=at_s))


def with_speed(state: PoolState, job: Job) -> PoolState:
    """Add the mean speed of an ended job to the statistics of its profile."""
    curve = state.curves.get(job.spec.measured_key) if job.spec is not None and job.speed.count else None
    if job.spec is None or curve is None:
        return state
    return with_curve(state, job.spec.measured_key, replace(curve, speed=curve.speed.with_log_ratio(job.speed.mean)))


def with_profile(state: PoolState, spec: JobSpec) -> PoolState:
    """The state with the curves of the spec's owner, and with one for its GPU range, if it has one.

    Admission needs them before its decision, too.
    """
    state = with_own_curves(state, spec)
    if spec.profile_key in state.curves or spec.profile_key == spec.measured_key:
        return state
    whole = state.curves.get(spec.measured_key, NO_CURVE)
    state = with_curve(state, spec.measured_key, replace(whole, parts=(*whole.parts, spec.gpu_range)))
    part = state.curves[spec.profile_key]
    wider = (wide.profile_key(spec.measured_key) for wide in whole.parts if wide.contains(spec.gpu_range))
    probed_to = max((state.curves[key].probed_to for key in wider), default=0.0)
    if part.iterations_per_s and probed_to:
        state = fast_replace(state, curves=state.curves.set(spec.profile_key, replace(part, probed_to=probed_to)))
    return state


def with_curve(state: PoolState, profile_key: str, curve: MeasuredCurve) -> PoolState:
    """The state with this curve for the profile, and with its parts updated."""
    curves = state.curves.set(profile_key, curve)
    for gpu_range in curve.parts:
        part_key = gpu_range.profile_key(profile_key)
        known = curves.get(part_key, NO_CURVE)
        curves = curves.set(part_key, _part(curve, gpu_range, known))
    return fast_replace(state, curves=curves)


def _part(whole: MeasuredCurve, gpu_range: GpuRange, known: MeasuredCurve) -> MeasuredCurve:
    """The part of a curve within a range. It may be complete before the whole is. If the whole ends below the range,
    the part is not measured."""
    rates = {num_gpus: rate for num_gpus, rate in whole.iterations_per_s.items() if gpu_range.allows(num_gpus)}
    return replace(
        whole,
        iterations_per_s=rates,
        probed_to=max(known.probed_to, whole.probed_to if rates else 0.0),
        probed_at_s=max(known.probed_at_s, whole.probed_at_s),
        parts=(),
    )

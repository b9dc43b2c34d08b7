"""Histories of a small pool: any events in any order, about so few jobs and nodes that they interact."""

from dataclasses import fields, replace
from functools import cache
from typing import Any, get_args

from hypothesis import strategies as st

from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import PlacedJob, PlanDecided
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.pool import PoolState
from testbed.histories import best_effort, spec
from tests.support.message_strategies import messages_of

JOBS, NODES, INCARNATIONS, PROFILES = ("a", "b"), ("n", "m"), ("1", "2", "3"), ("linear/b64", "other")
LOADS = ("load", "another-load")
PLAN_EVENTS: tuple[type[Any], ...] = get_args(events.PlanEvent)
REPORTED_EVENTS: tuple[type[Any], ...] = (
    *get_args(events.NodeEvent),
    *get_args(events.JobEvent),
    *get_args(events.LoadReport),
)
UNREADABLE = (ledger_fold.Unreadable(on_plan=False), ledger_fold.Unreadable(on_plan=True))
ENDS = (events.JobFinished, events.JobFailed, events.JobCancelled, events.JobRejected)
# Weighted, so that jobs live long enough to receive events.
KINDS = (
    *(*UNREADABLE, *PLAN_EVENTS, *REPORTED_EVENTS),
    *[kind for kind in REPORTED_EVENTS if kind not in ENDS] * 3,
    *[events.JobAdmitted] * 6,
    *[events.PlacementDecided] * 12,
)
CURVES = st.dictionaries(st.integers(1, 4), st.sampled_from((1.0, 2.0)), max_size=2)
WORDS = st.sampled_from(("", "word"))
GPU_TYPES = st.sampled_from(("", "V100", "P100"))
SMALL: dict[str, st.SearchStrategy[Any]] = {
    "job_id": st.sampled_from(JOBS),
    "load_id": st.sampled_from(LOADS),
    "tenant": st.just("lab"),
    "spec": st.sampled_from((spec(), best_effort(), spec(start_timeout_s=30.0))),
    "deadline_s": st.sampled_from((None, 100.0)),
    "minimum_satisfactory_share": st.just(()),
    "replanned": st.sampled_from(({}, {"a": ()})),
    "num_gpus_by_job": st.dictionaries(st.sampled_from(JOBS), st.integers(0, 4)),
    "config": st.builds(
        PoolConfig,
        curves=st.dictionaries(st.sampled_from(PROFILES), CURVES, max_size=1),
        stop_free=st.booleans(),
    ),
    "profiled_on": st.dictionaries(st.sampled_from(JOBS), GPU_TYPES),
    "virtual_nodes_by_type": st.dictionaries(
        st.sampled_from(JOBS), st.dictionaries(GPU_TYPES, st.lists(st.integers(0, 4), max_size=3).map(tuple))
    ),
    "lent_until_s": st.dictionaries(st.sampled_from(JOBS), st.integers(0, 20).map(float)),
    "gpu_type": GPU_TYPES,
    "node_id": st.sampled_from(NODES),
    "incarnation": st.sampled_from(INCARNATIONS),
    "profile_key": st.sampled_from(PROFILES),
    "num_gpus": st.integers(0, 4),
    "iteration": st.integers(0, 5),
    "checkpoint_iteration": st.integers(0, 5),
    "metrics": st.sampled_from(({}, {"loss": 1.0}, {"loss": 2.0})),
    "at_s": st.integers(0, 20).map(float),
    **dict.fromkeys(("explanation", "reason", "error", "traceback"), WORDS),
}
REASONS = {
    events.NodeLost: st.sampled_from(("silent", "left")),
    events.JobRejected: st.sampled_from(("deadline", "duplicate")),
}


def _plan(state: PoolState, service: str, *plan_events: Any) -> PlanDecided:
    return PlanDecided(service=service, based_on=state.sequence, now_s=1.0, events=plan_events)


JOINED = events.NodeJoined(node_id="n", incarnation="1", num_gpus=4, device="cpu", at_s=0.0)
PROMISED = events.JobAdmitted(
    job_id="a",
    tenant="lab",
    spec=spec(),
    deadline_s=100.0,
    minimum_satisfactory_share=(),
    gpu_seconds=1.0,
    at_s=0.0,
)
RUNNING = (
    JOINED,
    _plan(
        PoolState(),
        "admission",
        PROMISED,
        events.ProfileRequested(
            job_id="b", tenant="lab", spec=best_effort(start_timeout_s=30.0), deadline_s=None, at_s=0.0
        ),
    ),
    _plan(
        PoolState(),
        "placement",
        events.PlacementDecided(
            placements=tuple(PlacedJob(job_id=job, generation=1, gpus=(GpuId("n", 0),)) for job in JOBS),
            at_s=0.0,
        ),
    ),
    events.GenerationStarted(job_id="a", generation=1, num_gpus=1, iteration=0, at_s=1.0),
)
STOP_FREE = _plan(PoolState(), "operator", events.PoolConfigured(config=PoolConfig(stop_free=True), at_s=0.0))
BEGINNINGS = ((), RUNNING[:2], RUNNING, (STOP_FREE, *RUNNING))


@st.composite
def histories(draw: st.DrawFn, max_size: int = 30) -> tuple[Any, ...]:
    """Messages of a ledger. Generations are close to the current one, because the fold ignores others."""
    state, messages = PoolState(), list[Any]()
    for sequence, message in enumerate(draw(st.sampled_from(BEGINNINGS)), 1):
        messages.append(message)
        state = ledger_fold.evolve(state, message, sequence)
    for _ in range(draw(st.integers(0, max_size))):
        kind = draw(st.sampled_from(KINDS))
        message = kind if kind in UNREADABLE else _decision_or_fact(draw, kind, state)
        messages.append(message)
        state = ledger_fold.evolve(state, message, len(messages))
    return tuple(messages)


def _decision_or_fact(draw: st.DrawFn, kind: type[Any], state: PoolState) -> Any:
    event = draw(_small(kind))
    if kind is events.PlacementDecided:
        event = replace(event, placements=tuple(_around(draw, placed, state) for placed in event.placements))
    elif hasattr(event, "generation"):
        event = _around(draw, event, state)
    if kind in REPORTED_EVENTS:
        return event
    service = "allocator" if kind is events.AllocationDecided else "admission"
    return _plan(state, service, event)


@cache
def _small(kind: type[Any]) -> st.SearchStrategy[Any]:
    given = {f.name: SMALL[f.name] for f in fields(kind) if f.name in SMALL}
    if kind in REASONS:
        given["reason"] = REASONS[kind]
    if kind is events.LoadOpened:
        given["spec"] = st.just(LoadSpec(task_function="proteins:fold", task_s=1.0))
    if kind is events.QuoteReserved:
        given["deadline_s"] = st.just(100.0)
    if kind is events.ProfileCompleted:
        given["iterations_per_s"] = CURVES
    if kind is events.PlacementDecided:
        given["placements"] = st.lists(_small(PlacedJob), min_size=1, max_size=2).map(tuple)
    if kind is PlacedJob:
        gpus = st.builds(GpuId, st.sampled_from(NODES), st.integers(0, 3))
        given["gpus"] = st.sampled_from((0, 1, 1, 2)).flatmap(
            lambda size: st.lists(gpus, min_size=size, max_size=size).map(tuple)
        )
    return messages_of(kind, **given)


def _around(draw: st.DrawFn, message: Any, state: PoolState) -> Any:
    """The same message about the current, the previous or the next generation."""
    job = state.job(message.job_id)
    offset = draw(st.sampled_from((1, 1, 2, 0) if isinstance(message, PlacedJob) else (0, 0, 0, -1, 1)))
    return replace(message, generation=max(0, (job.generation if job else 0) + offset))

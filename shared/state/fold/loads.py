"""The fold of padding loads. None of its events is a scheduling event: no decision on jobs depends on loads."""

from dataclasses import replace

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import LoadEvent
from elasticflow.shared.messages.load_spec import IndexSet
from elasticflow.shared.state.job import identity_of
from elasticflow.shared.state.load import Load, LoadPhase
from elasticflow.shared.state.pool import PoolState

MAX_ENDED_LOADS = 1_000  # of all tenants, the newest; the ledger keeps all


def with_load_event(state: PoolState, event: LoadEvent, sequence: int) -> PoolState:
    """The state after an event of a load. A repeated one changes nothing."""
    load = state.loads.get(event.load_id)
    match event:
        case events.LoadOpened():
            return state if load is not None else _with_load(state, _opened(event, sequence))
        case events.LoadSealed():
            if load is None or load.phase is not LoadPhase.OPEN:
                return state
            return _with_load(
                state, replace(load, phase=LoadPhase.SEALED, num_tasks=event.num_tasks, sealed_at_s=event.at_s)
            )
        case events.LoadProgressed():
            if load is None or not load.live or event.num_results <= load.num_results:
                return state
            return _with_load(state, _progressed(load, event))
        case events.LoadFinished():
            if load is None or load.phase is not LoadPhase.SEALED:
                return state
            finished = replace(
                load, phase=LoadPhase.FINISHED, num_results=event.num_results, counted=(), ended_at_s=event.at_s
            )
            return _without_the_oldest(_with_load(state, finished))
        case events.LoadCancelled():
            if load is None or not load.live:
                return state
            cancelled = replace(
                load, phase=LoadPhase.CANCELLED, explanation=event.reason, counted=(), ended_at_s=event.at_s
            )
            return _without_the_oldest(_with_load(state, cancelled))
        case events.LoadRejected() | events.SealRejected() | events.CancelLoadRejected():
            return state


def _opened(event: events.LoadOpened, sequence: int) -> Load:
    return Load(
        load_id=event.load_id,
        identity=identity_of(event.tenant, event.load_id, sequence, event.at_s),
        tenant=event.tenant,
        spec=event.spec,
        phase=LoadPhase.OPEN,
        useful_share=event.useful_share,
        opened_at_s=event.at_s,
        by_identity=event.by_identity,
    )


def _progressed(load: Load, event: events.LoadProgressed) -> Load:
    """A report without ranges leaves those of an earlier one: a new monitor counts from there."""
    load = replace(load, num_results=event.num_results, progressed_at_s=event.at_s)
    if not event.counted:
        return load
    counted = IndexSet(load.counted)
    for first, last in event.counted:  # of a monitor that may not know all of an earlier one's
        counted.add(first, last)
    return replace(load, counted=counted.ranges, counted_to=max(load.counted_to, event.counted_to))


def _with_load(state: PoolState, load: Load) -> PoolState:
    return fast_replace(state, loads=state.loads.set(load.load_id, load))


def _without_the_oldest(state: PoolState) -> PoolState:
    """Forget the load that ended first, beyond the number that is kept."""
    ended = [load for load in state.loads.values() if not load.live]
    if len(ended) <= MAX_ENDED_LOADS:
        return state
    oldest = min(ended, key=lambda load: (load.ended_at_s or 0.0, load.load_id))
    return fast_replace(state, loads=state.loads.delete(oldest.load_id))

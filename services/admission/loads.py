"""Padding loads: opened where they pay, sealed, cancelled. They plan nothing, and no decision on jobs reads them.

Source: PaddingTorch, section 3.2: a load pays where the useful share of idle windows exceeds the price ratio.
"""

from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.messages.close_names import did_you_mean
from elasticflow.shared.messages.commands import CancelLoad, OpenLoad, SealLoad
from elasticflow.shared.messages.event_summary import memory_in_words
from elasticflow.shared.messages.events import (
    CancelLoadRejected,
    LoadCancelled,
    LoadOpened,
    LoadRejected,
    LoadRejectionReason,
    LoadSealed,
    SealRejected,
)
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.scheduling.padding.cost_model import TaskCost, highest_useful_share, useful_share
from elasticflow.shared.scheduling.padding.task_length import best_task_s_by_quantiles
from elasticflow.shared.state.load import LoadPhase
from elasticflow.shared.state.pool import PoolState

MAX_LIVE_LOADS = 64  # of one tenant at a time


def open_load(session: AdmissionSession, command: OpenLoad) -> AdmissionSession:
    """Open a load. One that was opened with the same specification gets no event: the host repeats the reply."""
    state, known = session.state, session.state.loads.get(command.load_id)
    if known is not None and (known.tenant, known.spec) == (command.tenant, command.spec):
        return session
    if known is not None:
        why = f"load_id: {command.load_id} names another load already; choose another"
        return _rejected(session, command, "duplicate", why)
    num_live = sum(load.live and load.tenant == command.tenant for load in state.loads.values())
    if num_live >= MAX_LIVE_LOADS:
        why = (
            f"tenant {command.tenant} has {num_live} open loads, which is the limit; wait until one ends, or cancel one"
        )
        return _rejected(session, command, "limit", why)
    spec = command.spec
    if (why := _missing_gpu(session.state, spec)) is not None:
        return _rejected(session, command, "needs", why)
    cost = TaskCost(task_s=spec.task_s, overhead_s=spec.overhead_s, start_stop_s=spec.start_stop_s)
    windows_s = state.idle_windows_at(session.now_s, least_open_s=cost.least_window_s)
    share = useful_share(windows_s, cost) if windows_s else None
    if (highest_useful_share(cost) if share is None else share) <= state.config.padding_price_ratio:
        return _rejected_share(session, command, share, windows_s)
    opened = LoadOpened(
        load_id=command.load_id,
        tenant=command.tenant,
        spec=spec,
        useful_share=share,
        at_s=session.now_s,
        by_identity=command.by_identity,
    )
    return session.with_event(opened)


def seal_load(session: AdmissionSession, command: SealLoad) -> AdmissionSession:
    """Seal an open load. One that is sealed with this number gets no event."""
    load, now_s = session.state.loads.get(command.load_id), session.now_s
    if load is None or load.tenant != command.tenant:
        why = _no_such_load(session.state, command.tenant, command.load_id)
    elif load.num_tasks == command.num_tasks:
        return session
    elif load.phase is LoadPhase.OPEN:
        return session.with_event(LoadSealed(load_id=load.load_id, num_tasks=command.num_tasks, at_s=now_s))
    else:
        why = f"it is {load.phase.value}" + (f" with {load.num_tasks:,} tasks" if load.num_tasks is not None else "")
    return session.with_event(SealRejected(load_id=command.load_id, tenant=command.tenant, explanation=why, at_s=now_s))


def cancel_load(session: AdmissionSession, command: CancelLoad) -> AdmissionSession:
    """Cancel a live load. One that is cancelled already gets no event."""
    load, now_s = session.state.loads.get(command.load_id), session.now_s
    if load is None or load.tenant != command.tenant:
        why = _no_such_load(session.state, command.tenant, command.load_id)
        return session.with_event(
            CancelLoadRejected(load_id=command.load_id, tenant=command.tenant, explanation=why, at_s=now_s)
        )
    if load.phase is LoadPhase.CANCELLED:
        return session
    if load.phase is LoadPhase.FINISHED:
        why = "it has finished already"
        return session.with_event(
            CancelLoadRejected(load_id=command.load_id, tenant=command.tenant, explanation=why, at_s=now_s)
        )
    return session.with_event(LoadCancelled(load_id=load.load_id, reason=command.reason, at_s=now_s))


def _missing_gpu(state: PoolState, spec: LoadSpec) -> str | None:
    """What no GPU has that is in the pool now; None if one fits, or if there is none to ask."""
    nodes = [node for node in state.nodes.values() if node.alive]
    if not nodes or any(spec.fits(node.gpu_type, node.gpu_memory_bytes) for node in nodes):
        return None
    kinds = {
        f"{node.gpu_type or 'unnamed'} ({memory_in_words(node.gpu_memory_bytes) or 'unknown memory'})" for node in nodes
    }
    of_type = f" of type {spec.gpu_type}" if spec.gpu_type else ""
    with_memory = f" with {memory_in_words(spec.memory_bytes)} of memory" if spec.memory_bytes else ""
    return f"its tasks need a GPU{of_type}{with_memory}, and the pool has {', '.join(sorted(kinds))}"


def _rejected_share(
    session: AdmissionSession, command: OpenLoad, share: float | None, windows_s: list[float]
) -> AdmissionSession:
    """share: None without windows, where not even an endless one would pay."""
    spec, ratio = command.spec, session.state.config.padding_price_ratio
    used = f"less than {ratio:.0%} of any" if share is None else f"{share:.1%} of the"
    best_s = _paying_task_s(windows_s, spec.overhead_s, spec.start_stop_s, ratio) if windows_s else None
    if best_s is not None:
        advice = f"tasks of {best_s:.3g} s would"
    elif share is None:
        advice = f"its overhead of {spec.overhead_s:g} s is too long for it: put more work into each task"
    else:
        advice = "with this overhead no length of a task would"
    why = (
        f"tasks of {spec.task_s:g} s would use {used} idle GPU time of this pool, and padding GPU time "
        f"costs {ratio:.0%} of ordinary GPU time, so it does not pay; {advice}"
    )
    return _rejected(session, command, "useful_share", why, share, best_s)


def _paying_task_s(windows_s: list[float], overhead_s: float, start_stop_s: float, price_ratio: float) -> float | None:
    """The best length of a task; None if not even that pays."""
    best_s = best_task_s_by_quantiles(windows_s, overhead_s, start_stop_s)
    if best_s is None:
        return None
    cost = TaskCost(task_s=best_s, overhead_s=overhead_s, start_stop_s=start_stop_s)
    return best_s if useful_share(windows_s, cost) > price_ratio else None


def _no_such_load(state: PoolState, tenant: str, load_id: str) -> str:
    loads = state.loads.values()
    meant = did_you_mean(load_id, (load.load_id for load in loads if load.tenant == tenant)) or ";"
    return f"tenant {tenant} has no such load{meant} `eflow loads --all` lists them"


def _rejected(
    session: AdmissionSession,
    command: OpenLoad,
    reason: LoadRejectionReason,
    why: str,
    share: float | None = None,
    best_s: float | None = None,
) -> AdmissionSession:
    rejected = LoadRejected(
        load_id=command.load_id,
        tenant=command.tenant,
        reason=reason,
        explanation=why,
        useful_share=share,
        best_task_s=best_s,
        at_s=session.now_s,
    )
    return session.with_event(rejected)

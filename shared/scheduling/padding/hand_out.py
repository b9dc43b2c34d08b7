"""Decides which load gets tasks onto an idle GPU, and how many.

`hand_out` decides; the functions `after_...` fold what happened into a new state. A padding load is many small atomic,
idempotent tasks of one tenant. They run on GPUs that no job uses, and may be preempted at any instant. The state counts
tasks; which task is the next one is the caller's concern.

Tenants share idle GPU-seconds by weight, as in start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996). A
tenant's virtual time is its GPU-seconds over its weight, and the least virtual time goes first. A tenant that had no
waiting task gets no credit for that time: when it returns, its virtual time rises to the least of its competitors'.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from elasticflow.shared.persistent_map import Map
from elasticflow.shared.scheduling.padding.cost_model import TaskCost, whole_tasks

TARGET_BUNDLE_S = 0.5  # long beside the message that hands out a bundle, short beside a minute of fair shares
SWITCH_SHARE = 0.1  # most of a slot's time that is spent on switches between loads
NEWEST_TASK_SHARE = 0.2  # of one measured task in the estimate of task seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNeeds:
    """What a task needs of its slot. gpu_type: "" for any."""

    gpu_type: str = ""
    gpu_memory_bytes: int = 0
    cpu_cores: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSlot:
    """One GPU that no job uses.

    seconds_left: until a job takes the GPU; None if there is no prediction.
    running_load_id, running_s: the load whose runner the GPU has, "" for none, and the seconds since that runner began.
    """

    gpu_type: str = ""
    gpu_memory_bytes: int = 0
    cpu_cores: float = 0.0
    seconds_left: float | None = None
    running_load_id: str = ""
    running_s: float = 0.0

    def meets(self, needs: TaskNeeds) -> bool:
        """Whether tasks with these needs can run here."""
        return (
            needs.gpu_type in ("", self.gpu_type)
            and needs.gpu_memory_bytes <= self.gpu_memory_bytes
            and needs.cpu_cores <= self.cpu_cores
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveLoad:
    """A load that is not closed. num_waiting: tasks that are neither done nor handed out.
    cost: the estimate; None until a first task was measured."""

    load_id: str
    tenant: str
    opened_at_s: float
    num_waiting: int
    needs: TaskNeeds = field(default_factory=TaskNeeds)
    cost: TaskCost | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """given_s: GPU-seconds given so far. virtual_s: those over the weight, raised at each return."""

    weight: float = 1.0
    given_s: float = 0.0
    virtual_s: float = 0.0

    def __post_init__(self) -> None:
        assert self.weight > 0, f"a tenant needs a positive weight, not {self.weight}"

    def charged(self, seconds: float) -> "TenantShare":
        """The share after so many more GPU-seconds; a negative number takes some back."""
        return replace(self, given_s=self.given_s + seconds, virtual_s=self.virtual_s + seconds / self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOutState:
    """virtual_s: the virtual time of the tenant that was served last, or more."""

    loads: Map[str, ActiveLoad] = field(default_factory=Map[str, ActiveLoad])
    tenants: Map[str, TenantShare] = field(default_factory=Map[str, TenantShare])
    virtual_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Tasks of one load for one slot. starts_runner: whether the slot has no runner of this load yet.
    charged_s: the GPU-seconds that its tenant is charged until the bundle is measured. They include the time for which
    the runner keeps its slot: else a tenant that is behind would get every slot that becomes idle meanwhile."""

    load_id: str
    tenant: str
    num_tasks: int
    starts_runner: bool
    charged_s: float


def hand_out(state: HandOutState, slot: IdleSlot) -> Bundle | None:
    """The bundle for this slot; None only if no waiting task fits it.

    A runner keeps its load until its start costs at most `SWITCH_SHARE` of its time. Then the least virtual time is
    first, and within a tenant the oldest load. Ties break by tenant and load id.
    """
    fitting = [load for load in state.loads.values() if load.num_waiting > 0 and _most_tasks(load, slot) > 0]
    if not fitting:
        return None
    load = min(fitting, key=lambda load: (not _keeps(slot, load), *_turn(state, load)))
    return _bundle(load, slot)


def _keeps(slot: IdleSlot, load: ActiveLoad) -> bool:
    return load.load_id == slot.running_load_id and slot.running_s < _runner_s(load)


def _runner_s(load: ActiveLoad) -> float:
    """How long a runner keeps its slot, unless the tasks or the window end."""
    return load.cost.start_stop_s / SWITCH_SHARE if load.cost is not None else 0.0


def _turn(state: HandOutState, load: ActiveLoad) -> tuple[float, str, float, str]:
    return state.tenants[load.tenant].virtual_s, load.tenant, load.opened_at_s, load.load_id


def _most_tasks(load: ActiveLoad, slot: IdleSlot) -> int:
    """The waiting tasks that fit the slot, by its properties and by the time that is left."""
    if not slot.meets(load.needs):
        return 0
    if slot.seconds_left is None or load.cost is None:
        return load.num_waiting
    if slot.seconds_left <= 0:
        return 0
    cost = load.cost if load.load_id != slot.running_load_id else replace(load.cost, start_stop_s=0.0)
    return min(load.num_waiting, whole_tasks(slot.seconds_left, cost))


def _bundle(load: ActiveLoad, slot: IdleSlot) -> Bundle:
    starts_runner = load.load_id != slot.running_load_id
    num_tasks, charged_s = 1, TARGET_BUNDLE_S
    if load.cost is not None:
        each_s = load.cost.with_overhead_s
        num_tasks = min(max(int(TARGET_BUNDLE_S / each_s), 1), _most_tasks(load, slot))
        expected_s = num_tasks * each_s + (load.cost.start_stop_s if starts_runner else 0.0)
        kept_s = _runner_s(load) - (0.0 if starts_runner else slot.running_s)
        charged_s = max(expected_s, kept_s if slot.seconds_left is None else min(kept_s, slot.seconds_left))
    return Bundle(
        load_id=load.load_id,
        tenant=load.tenant,
        num_tasks=num_tasks,
        starts_runner=starts_runner,
        charged_s=charged_s,
    )


def after_opening(state: HandOutState, load: ActiveLoad, weight: float) -> HandOutState:
    """A load was opened. weight: its tenant's from now on."""
    share = replace(state.tenants.get(load.tenant, TenantShare()), weight=weight)
    empty = replace(load, num_waiting=0)
    state = replace(state, loads=state.loads.set(load.load_id, empty), tenants=state.tenants.set(load.tenant, share))
    return after_adding(state, load.load_id, load.num_waiting)


def after_adding(state: HandOutState, load_id: str, num_tasks: int) -> HandOutState:
    """So many more tasks wait. A tenant that had none returns, and gets no credit for its absence."""
    load = state.loads[load_id]
    if num_tasks > 0 and load.tenant not in {other.tenant for other in _backlogged(state)}:
        state = _returned(state, load)
    return _with_load(state, replace(load, num_waiting=load.num_waiting + num_tasks))


def after_waiting(state: HandOutState, load_id: str, num_waiting: int) -> HandOutState:
    """So many tasks wait now, whatever the reason."""
    load = state.loads[load_id]
    if num_waiting > load.num_waiting:
        return after_adding(state, load_id, num_waiting - load.num_waiting)
    return _with_load(state, replace(load, num_waiting=num_waiting))


def after_hand_out(state: HandOutState, bundle: Bundle) -> HandOutState:
    """The bundle left the queue, and its tenant is charged for it."""
    load, share = state.loads[bundle.load_id], state.tenants[bundle.tenant]
    assert bundle.num_tasks <= load.num_waiting, f"{bundle} hands out more tasks than wait"
    return replace(
        _with_load(state, replace(load, num_waiting=load.num_waiting - bundle.num_tasks)),
        tenants=state.tenants.set(bundle.tenant, share.charged(bundle.charged_s)),
        virtual_s=max(state.virtual_s, share.virtual_s),
    )


def after_bundle(
    state: HandOutState, bundle: Bundle, *, num_done: int, held_s: float, cost: TaskCost | None
) -> HandOutState:
    """The bundle has ended or was preempted: tasks that are not done wait again.

    held_s: GPU-seconds from the hand-out to the end. cost: the mean of the tasks that are done; None if none is.
    """
    share = state.tenants[bundle.tenant].charged(held_s - bundle.charged_s)
    state = replace(state, tenants=state.tenants.set(bundle.tenant, share))
    load = state.loads.get(bundle.load_id)
    if load is None:  # closed while its tasks ran
        return state
    if cost is not None and num_done > 0:
        state = _with_load(state, replace(load, cost=_estimate(load.cost, cost, num_done)))
    return after_adding(state, bundle.load_id, bundle.num_tasks - num_done)


def after_use_elsewhere(state: HandOutState, tenant: str, gpu_s: float) -> HandOutState:
    """Another executor gave a tenant so many GPU-seconds, which count like those given here."""
    share = state.tenants.get(tenant, TenantShare()).charged(gpu_s)
    return replace(state, tenants=state.tenants.set(tenant, share))


def after_closing(state: HandOutState, load_id: str) -> HandOutState:
    """The load hands out no more tasks; its tenant's share stays."""
    return replace(state, loads=state.loads.delete(load_id))


def _estimate(old: TaskCost | None, measured: TaskCost, num_tasks: int) -> TaskCost:
    """The exponentially weighted means of the seconds of a task, after so many tasks with these means."""
    if old is None:
        return measured
    kept = (1.0 - NEWEST_TASK_SHARE) ** num_tasks
    return replace(  # sums of positive terms: a runner may report any times, and none must make an estimate of 0
        old,
        task_s=kept * old.task_s + (1.0 - kept) * measured.task_s,
        overhead_s=kept * old.overhead_s + (1.0 - kept) * measured.overhead_s,
    )


def _returned(state: HandOutState, load: ActiveLoad) -> HandOutState:
    """The virtual time of a tenant that had no waiting task rises to the least of its competitors'.

    Tenants that need other types of GPU do not compete: their virtual times may be far behind or ahead.
    """
    competing = [
        state.tenants[other.tenant].virtual_s
        for other in _backlogged(state)
        if "" in (load.needs.gpu_type, other.needs.gpu_type) or load.needs.gpu_type == other.needs.gpu_type
    ]
    share, least_s = state.tenants[load.tenant], min(competing, default=state.virtual_s)
    raised = replace(share, virtual_s=max(share.virtual_s, least_s))
    return replace(state, tenants=state.tenants.set(load.tenant, raised))


def _backlogged(state: HandOutState) -> Iterator[ActiveLoad]:
    return (load for load in state.loads.values() if load.num_waiting > 0)


def _with_load(state: HandOutState, load: ActiveLoad) -> HandOutState:
    return replace(state, loads=state.loads.set(load.load_id, load))

"""What must hold at every sequence of any ledger, checked from the outside: no policy's code is used here."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from elasticflow.shared.messages.commands import Command, id_of
from elasticflow.shared.messages.events import JobAdmitted, PlanDecided, QueuePosition
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.pool import CARRIES_A_JOB, PoolState
from elasticflow.simulator.pipeline.simulated_process import is_of_planner, is_of_upgraded
from elasticflow.simulator.replay.recorded_ledger import Entry

TOLERANCE_S = 1e-3
KNOWS_ITS_CLOCK_S = 2.0  # after its first decision: it comes back sooner, or no other is acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A command that has left the work queue. ledger_end: the last sequence of the ledger at that instant."""

    command: Command
    ledger_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSetting:
    """The clock of a process is ahead by offset_s from at_s on, until it is set again."""

    process: str
    at_s: float
    offset_s: float


def violations(entries: Iterable[Entry]) -> Iterator[str]:
    """What is wrong with the ledger, a sentence each, with the sequence."""
    state, decided, positions = PoolState(), dict[str, int](), dict[QueuePosition, int]()
    for entry in entries:
        before = state
        state = ledger_fold.evolve(state, entry.message, entry.sequence)
        of_messages = {
            "a decision rests on each earlier one": _unordered(before, entry),
            "a job is admitted once": _decided_twice(entry, decided),
            "a command is decided on once": _taken_twice(entry, positions),
            "an ended job stays ended": _risen(before, state),
        }
        for name, problems in of_messages.items():
            yield from (f"sequence {entry.sequence}: {name}: {problem}" for problem in problems)
        yield from (f"sequence {entry.sequence}: {problem}" for problem in state_violations(state))


def state_violations(state: PoolState) -> Iterator[str]:
    """What is wrong with the GPUs of jobs in one state, a sentence each."""
    of_states = {
        "a GPU has one job, and exists": _overcommitted(state),
        "a share has GPUs of one type": _of_two_types(state),
        "a GPU is idle if no job holds it": _wrongly_idle(state),
    }
    for name, problems in of_states.items():
        yield from (f"{name}: {problem}" for problem in problems)


def acknowledged_early(entries: Iterable[Entry], acknowledged: Iterable[Acknowledged]) -> Iterator[str]:
    """Commands that left the work queue before the ledger held a decision on them: a crash would have lost them."""
    decisions = [entry for entry in entries if isinstance(entry.message, PlanDecided)]
    for each in acknowledged:
        if not any(
            isinstance(entry.message, PlanDecided) and each.command in entry.message.commands
            for entry in decisions
            if entry.sequence <= each.ledger_end
        ):
            yield f"sequence {each.ledger_end}: {id_of(each.command)} is acknowledged before it is decided on"


def decided_on_wrong_clocks(
    stored: Iterable[tuple[LedgerRecord, Entry]], settings: Sequence[ClockSetting], *, tolerated_s: float
) -> Iterator[str]:
    """Decisions of a process whose clock is ahead, after an earlier one came back to it and showed that.

    No delay explains a decision that the server stored before its own time.
    """
    ahead = [
        (record.message_id, entry.message.now_s)
        for record, entry in stored
        if isinstance(entry.message, PlanDecided) and entry.message.now_s - entry.stored_at_s > tolerated_s
    ]
    for setting in settings:
        later_s = (each.at_s for each in settings if each.process == setting.process and each.at_s > setting.at_s)
        until_s, first_s = min(later_s, default=math.inf), dict[str, float]()
        for message_id, now_s in ahead:
            instance, at_s = message_id.split("-", 2)[-1].rpartition("-")[0], now_s - setting.offset_s
            if not instance.startswith(f"{setting.process}.") or not setting.at_s < at_s < until_s:
                continue
            if at_s > first_s.setdefault(instance, at_s) + KNOWS_ITS_CLOCK_S:
                yield f"{instance} decides at {now_s:.3f}, {setting.offset_s:.3f} s ahead"


def decided_over_unreadable(stored: Iterable[LedgerRecord]) -> Iterator[str]:
    """Decisions of a planner of the previous version after one of a newer planner, which it cannot read."""
    first = 0
    for record in stored:
        if is_of_upgraded(record):
            first = first or record.sequence
        elif first and is_of_planner(record):
            yield f"sequence {record.sequence}: {record.message_id} decides over the newer decision at {first}"


def broken_promises(state: PoolState) -> Iterator[str]:
    """Jobs whose deadline was guaranteed, and that missed it or never came to their end."""
    for job in (*state.live_jobs.values(), *state.ended_jobs.values()):
        promised = job.spec is not None and job.spec.job_class == "slo" and job.deadline_s is not None
        if not promised or job.phase in (Phase.REJECTED, Phase.CANCELLED, Phase.PROFILING):
            continue
        assert job.deadline_s is not None
        if job.phase is not Phase.FINISHED or job.ended_at_s is None:
            yield f"{job.job_id} was promised and is {job.phase.value}"
        elif job.ended_at_s > job.deadline_s + TOLERANCE_S:
            yield f"{job.job_id} was promised and is {job.ended_at_s - job.deadline_s:.3f} s late"


def _unordered(before: PoolState, entry: Entry) -> Iterator[str]:
    """Compare-and-set: a service has folded every earlier decision before it decides."""
    plan = entry.message
    if isinstance(plan, PlanDecided) and not before.plan_sequence <= plan.based_on < entry.sequence:
        yield f"{plan.service} decided on {plan.based_on}, behind the decision at {before.plan_sequence}"


def _decided_twice(entry: Entry, decided: dict[str, int]) -> Iterator[str]:
    if not isinstance(entry.message, PlanDecided):
        return
    for event in entry.message.events:
        if isinstance(event, JobAdmitted):
            if event.job_id in decided:
                yield f"{event.job_id} is admitted again, after {decided[event.job_id]}"
            decided[event.job_id] = entry.sequence


def _taken_twice(entry: Entry, positions: dict[QueuePosition, int]) -> Iterator[str]:
    """Each command of the work queue has one decision, however often it is delivered."""
    plan = entry.message
    for position in plan.queue_positions if isinstance(plan, PlanDecided) else ():
        if position in positions:
            yield f"command {position.sequence} is decided again, after {positions[position]}"
        positions[position] = entry.sequence


def _risen(before: PoolState, state: PoolState) -> Iterator[str]:
    """An ended job stays ended."""
    if state.live_jobs is not before.live_jobs:
        for job_id in state.live_jobs:
            if job_id in before.ended_jobs:
                yield f"{job_id} is live again after its end"


def _overcommitted(state: PoolState) -> Iterator[str]:
    holders: dict[GpuId, str] = {}
    for job in state.live_jobs.values():
        if job.gpus and len(set(job.gpus)) != len(job.gpus):
            yield f"{job.job_id} holds a GPU twice"
        if job.reserved_gpus and not (
            len(job.gpus) < len(job.reserved_gpus) and set(job.gpus) <= set(job.reserved_gpus)
        ):
            yield f"{job.job_id} holds {job.gpus}, which are not among its reserved GPUs {job.reserved_gpus}"
        for gpu in job.reserved_gpus or job.gpus:
            if gpu in holders:
                yield f"{gpu} is held by {holders[gpu]} and {job.job_id}"
            holders[gpu] = job.job_id
        for gpu in job.gpus:
            node = state.nodes.get(gpu.node_id)
            if node is None or gpu.gpu_index >= node.num_gpus:
                yield f"{job.job_id} holds {gpu}, which does not exist"
            elif not node.alive and not job.broken:
                yield f"{job.job_id} holds {gpu} of a lost node and is not broken"


def _of_two_types(state: PoolState) -> Iterator[str]:
    """All GPUs of a job's share have one type, and those that join it others; nodes without a type have the first."""
    unnamed = next(iter(state.gpu_types), "")

    def types_of(gpus: tuple[GpuId, ...]) -> set[str]:
        nodes = (state.nodes.get(gpu.node_id) for gpu in gpus)
        return {node.gpu_type or unnamed for node in nodes if node is not None}

    for job in state.live_jobs.values():
        own, added = types_of(job.own_gpus), types_of(job.added_gpus)
        if not job.broken and (len(own) > 1 or own & added):
            yield f"{job.job_id} holds GPUs of {' and '.join(sorted(own))}, joined by {' and '.join(sorted(added))}"


def _wrongly_idle(state: PoolState) -> Iterator[str]:
    """A GPU is idle if the placement of no job names it."""
    held = {gpu: job.broken for job in state.live_jobs.values() for gpu in job.gpus}
    for node_id, since_s_G in state.idle_since_s.items():
        for gpu in (GpuId(node_id, index) for index in range(len(since_s_G))):
            is_idle = since_s_G[gpu.gpu_index] < CARRIES_A_JOB
            if is_idle and held.get(gpu, True) is False:
                yield f"{gpu} is idle and held"
            if not is_idle and gpu not in held:
                yield f"{gpu} is not idle and no job holds it"

"""A recorded ledger, folded again: the state at any point of it, and every decision taken once more.

Reading files and printing are done elsewhere; this is a function of the records alone.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import zip_longest
from typing import Any

from shared.errors import TooLarge
from shared.messages import lifecycle
from shared.messages.codec import Undecodable
from shared.messages.events import PlanDecided
from shared.messages.export import LedgerRecord
from shared.messages.policy import LedgerMessage, Policy
from shared.messages.pool_state import PoolState
from shared.runtime.outbox import fitted, ledger_message, split

OPERATOR = "operator"  # what people set is given: nobody can take that decision again


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message of the ledger, read. message: None where nobody can read it; problems say why."""

    sequence: int
    stored_at_s: float
    message: LedgerMessage
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDifference:
    """One place at which the recorded decision and the one taken again differ."""

    path: str
    recorded: Any
    again: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first decision that does not follow from its history."""

    sequence: int
    service: str
    based_on: int
    now_s: float
    fields: tuple[FieldDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """num_given: decisions of people, which are not taken again."""

    num_verified: int
    num_given: int
    difference: Difference | None = None


def read_entries(records: Iterable[LedgerRecord]) -> tuple[Entry, ...]:
    """The messages in the records; like the services, a replay passes over what it cannot read."""
    return tuple(_entry(record) for record in records)


def folded(entries: Iterable[Entry], state: PoolState | None = None) -> PoolState:
    """The state after all entries."""
    state = state or PoolState()
    for entry in entries:
        state = lifecycle.evolve(state, entry.message, entry.sequence)
    return state


def up_to(
    entries: tuple[Entry, ...], *, sequence: int | None = None, at_s: float | None = None
) -> tuple[Entry, ...]:
    """The entries up to a sequence, or stored up to an instant."""
    if sequence is not None:
        entries = entries[:sequence]
    if at_s is not None:
        later = next((i for i, entry in enumerate(entries) if entry.stored_at_s > at_s), len(entries))
        entries = entries[:later]
    return entries


def verify(entries: Iterable[Entry], policies: Mapping[str, Policy[PoolState]]) -> Verification:
    """Take every decision of `policies` again, until one comes out differently.

    Facts may stand between the state that a decision rests on and the decision itself; other decisions may
    not (compare-and-set), so the states since the last decision are all that has to be kept.
    """
    state, since_plan = PoolState(), {0: PoolState()}
    num_verified = num_given = 0
    for entry in entries:
        plan = entry.message
        state = lifecycle.evolve(state, plan, entry.sequence)
        if not isinstance(plan, PlanDecided):
            since_plan[entry.sequence] = state
            continue
        if plan.service == OPERATOR:
            num_given += 1
        else:
            different = _taken_again(plan, since_plan, policies.get(plan.service))
            if different:
                return Verification(
                    num_verified=num_verified,
                    num_given=num_given,
                    difference=Difference(
                        sequence=entry.sequence,
                        service=plan.service,
                        based_on=plan.based_on,
                        now_s=plan.now_s,
                        fields=different,
                    ),
                )
            num_verified += 1
        since_plan = {entry.sequence: state}
    return Verification(num_verified=num_verified, num_given=num_given)


def differences(recorded: Any, again: Any, path: str = "") -> Iterator[FieldDifference]:
    """Where two values differ, as deep down as both have the same shape."""
    if recorded == again:
        return
    if is_dataclass(recorded) and type(recorded) is type(again):
        for field in fields(recorded):
            yield from differences(
                getattr(recorded, field.name), getattr(again, field.name), f"{path}.{field.name}"
            )
    elif isinstance(recorded, tuple) and isinstance(again, tuple):
        for index, (one, other) in enumerate(zip_longest(recorded, again)):
            yield from differences(one, other, f"{path}[{index}]")
    elif isinstance(recorded, Mapping) and isinstance(again, Mapping):
        for key in sorted(recorded.keys() | again.keys(), key=str):
            yield from differences(recorded.get(key), again.get(key), f"{path}[{key}]")
    else:
        yield FieldDifference(path=path, recorded=recorded, again=again)


def _taken_again(
    plan: PlanDecided, states: Mapping[int, PoolState], policy: Policy[PoolState] | None
) -> tuple[FieldDifference, ...]:
    if policy is None:
        return (FieldDifference(path="service", recorded=plan.service, again="no such planner"),)
    state = states.get(plan.based_on)
    if state is None:
        allowed = f"{min(states)} to {max(states)}"
        return (FieldDifference(path="based_on", recorded=plan.based_on, again=allowed),)
    again, _, _ = split(policy.decide(state, plan.commands, plan.now_s))
    if again != plan.events:
        with contextlib.suppress(TooLarge):  # then a part of it was said, as much as one message holds
            again = fitted(replace(plan, events=again), "")[0].events
    return tuple(differences(plan.events, again, "events"))


def _entry(record: LedgerRecord) -> Entry:
    try:
        message, problems = ledger_message(record.subject, record.data), ()
    except Undecodable as error:
        message, problems = None, error.problems
    return Entry(sequence=record.sequence, stored_at_s=record.stored_at_s, message=message, problems=problems)

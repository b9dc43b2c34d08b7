"""A recorded ledger: its messages, the state after any of them, all its jobs, and its exogenous events.

Reading files and printing are done elsewhere; everything here is a function of the records.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import (
    JobCancelled,
    JobFailed,
    JobFinished,
    JobRejected,
    NodeEndNoticed,
    NodeJoined,
    NodeLost,
    PlanDecided,
    PlanEvent,
    ProfileCompleted,
    ProfilingFailed,
    ThroughputMeasured,
)
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.ledger_chain import ChainBreak, LedgerChain
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.shared.state.pool import PoolState, spec_of

OPERATOR = "operator"  # the service of decisions that people make: a replay takes them as given


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message of the ledger."""

    sequence: int
    stored_at_s: float
    message: LedgerMessage


def read_entries(records: Iterable[LedgerRecord]) -> tuple[Entry, ...]:
    """The messages in the records; like the services, a replay skips messages that it cannot decode."""
    return tuple(_entry(record) for record in records)


def folded(entries: Iterable[Entry], state: PoolState | None = None) -> PoolState:
    """The state after all entries."""
    state = state or PoolState()
    for entry in entries:
        state = ledger_fold.evolve(state, entry.message, entry.sequence)
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCheck:
    """num_checked: decisions with a digest of the messages on which they rest. breaks: those that disagree."""

    num_checked: int
    breaks: tuple[ChainBreak, ...]


def checked_chain(records: Iterable[LedgerRecord]) -> ChainCheck:
    """Whether these are the messages on which the services decided."""
    chain, num_checked, breaks = LedgerChain(), 0, list[ChainBreak]()
    for record in records:
        message = read_message(record)
        num_checked += isinstance(message, PlanDecided) and bool(message.chain)
        if (found := chain.add(record, message)) is not None:
            breaks.append(found)
    return ChainCheck(num_checked=num_checked, breaks=tuple(breaks))


def up_to(entries: tuple[Entry, ...], *, sequence: int | None = None, at_s: float | None = None) -> tuple[Entry, ...]:
    """The entries up to a sequence, or stored up to an instant; both included."""
    if sequence is not None:
        entries = entries[:sequence]
    if at_s is not None:
        end = next((i for i, entry in enumerate(entries) if entry.stored_at_s > at_s), len(entries))
        entries = entries[:end]
    return entries


def _entry(record: LedgerRecord) -> Entry:
    return Entry(sequence=record.sequence, stored_at_s=record.stored_at_s, message=read_message(record))


# --- jobs -----------------------------------------------------------------------------------------------


class JobRegistry:
    """Every job of a history, live or ended; the folded state forgets jobs that ended long ago."""

    def __init__(self) -> None:
        self._ended: dict[str, Job] = {}
        self._state = PoolState()

    def record(self, message: LedgerMessage, state: PoolState) -> None:
        """state: after this message."""
        self._state = state
        for event in message.events if isinstance(message, PlanDecided) else (message,):
            if isinstance(event, JobRejected | JobCancelled | JobFinished | JobFailed):
                job = state.ended_jobs.get(event.job_id)
                if job is not None:
                    self._ended[job.job_id] = job

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The jobs by id."""
        return {**self._ended, **self._state.live_jobs}


def job_registry(entries: tuple[Entry, ...]) -> Mapping[str, Job]:
    """Every job of these messages, by id."""
    state, registry = PoolState(), JobRegistry()
    for entry in entries:
        state = ledger_fold.evolve(state, entry.message, entry.sequence)
        registry.record(entry.message, state)
    return registry.jobs


def iterations_taken(jobs: Mapping[str, Job], job: Job) -> int:
    """The iterations that the job took among these, where a metric may have ended it early; else its maximum.

    A later job may have taken its id.
    """
    recorded = jobs.get(job.job_id)
    is_same = recorded is not None and (recorded.submitted_spec or recorded.spec) == (job.submitted_spec or job.spec)
    if recorded is not None and is_same and recorded.phase is Phase.FINISHED:
        return recorded.iteration
    return spec_of(job).max_iterations


def completed_profiles(entries: tuple[Entry, ...], at_s: float) -> list[ProfileCompleted]:
    """Every profile that these messages complete, as known at one instant."""
    return [
        ProfileCompleted(profile_key=key, iterations_per_s=curve.iterations_per_s, at_s=at_s)
        for key, curve in sorted(folded(entries).curves.items())
        if curve.complete
    ]


def measured_step_times(entries: tuple[Entry, ...], at_s: float) -> list[ThroughputMeasured]:
    """The last step times of one GPU by profile, as known at one instant."""
    measured = (entry.message for entry in entries if isinstance(entry.message, ThroughputMeasured))
    return list({each.profile_key: replace(each, at_s=at_s) for each in measured if each.single_gpu}.values())


# --- exogenous events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExogenousEvent:
    """Commands, settings of the operator or one event: no decision of a policy could have changed them."""

    at_s: float
    commands: tuple[Command, ...] = ()
    settings: tuple[PlanEvent, ...] = ()
    event: NodeJoined | NodeEndNoticed | NodeLost | JobFailed | ProfilingFailed | None = None


def exogenous_events(entries: tuple[Entry, ...]) -> Iterator[ExogenousEvent]:
    """The exogenous events of these messages, in their order.

    Failures of jobs keep their instant, although a job that runs elsewhere might have failed at another one.
    """
    for entry in entries:
        match entry.message:
            case PlanDecided(service="admission", commands=commands, now_s=now_s) if commands:
                yield ExogenousEvent(at_s=now_s, commands=commands)
            case PlanDecided(service=service, events=events, now_s=now_s) if service == OPERATOR:
                yield ExogenousEvent(at_s=now_s, settings=events)
            case NodeJoined() | NodeEndNoticed() | NodeLost() | JobFailed() | ProfilingFailed() as event:
                yield ExogenousEvent(at_s=event.at_s, event=event)
            case _:
                pass

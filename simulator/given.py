"""What a record gives to other policies: the happenings that no decision of theirs could have changed.

Failures of jobs are taken at their instant, although a job that runs elsewhere might have failed at another.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from shared.messages import lifecycle
from shared.messages.commands import Command
from shared.messages.events import (
    GenerationStarted,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobRejected,
    NodeJoined,
    NodeLost,
    PlacementDecided,
    PlanDecided,
    PlanEvent,
)
from shared.messages.job_state import Job
from shared.messages.policy import LedgerMessage
from shared.messages.pool_state import PoolState
from simulator.replay import OPERATOR, Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Something that the record says happened at an instant, whatever was decided."""

    at_s: float
    commands: tuple[Command, ...] = ()
    settings: tuple[PlanEvent, ...] = ()
    fact: NodeJoined | NodeLost | JobFailed | None = None


def given(entries: tuple[Entry, ...]) -> Iterator[Given]:
    """What other policies are given of these messages."""
    for entry in entries:
        match entry.message:
            case PlanDecided(service="admission", commands=commands, now_s=now_s) if commands:
                yield Given(at_s=now_s, commands=commands)
            case PlanDecided(service=service, events=events, now_s=now_s) if service == OPERATOR:
                yield Given(at_s=now_s, settings=events)
            case NodeJoined() | NodeLost() | JobFailed() as fact:
                yield Given(at_s=fact.at_s, fact=fact)
            case _:
                pass


class Roll:
    """Every job of a history, as it stands or as it ended; the folded state forgets those that ended long ago."""

    def __init__(self) -> None:
        self._ended: dict[str, Job] = {}
        self._state = PoolState()

    def note(self, message: LedgerMessage, state: PoolState) -> None:
        """state: after this message."""
        self._state = state
        for event in message.events if isinstance(message, PlanDecided) else (message,):
            if isinstance(event, JobRejected | JobCancelled | JobFinished | JobFailed):
                job = state.ended_jobs.get(event.job_id)
                if job is not None:
                    self._ended[job.job_id] = job

    @property
    def jobs(self) -> Mapping[str, Job]:
        """By id."""
        return {**self._ended, **self._state.live_jobs}


def roll(entries: tuple[Entry, ...]) -> Mapping[str, Job]:
    """Every job of these messages, by id."""
    state, kept = PoolState(), Roll()
    for entry in entries:
        state = lifecycle.evolve(state, entry.message, entry.sequence)
        kept.note(entry.message, state)
    return kept.jobs


def usual_start_s(entries: tuple[Entry, ...]) -> float | None:
    """From a placement to the first iteration on it, in the median over the record; None if none was seen."""
    placed_at_s: dict[tuple[str, int], float] = {}
    starts_s: list[float] = []
    for entry in entries:
        match entry.message:
            case PlanDecided(events=events):
                for decided in events:
                    if isinstance(decided, PlacementDecided):
                        placed_at_s |= {(p.job_id, p.generation): decided.at_s for p in decided.placements}
            case GenerationStarted(job_id=job_id, generation=generation, at_s=at_s):
                if (job_id, generation) in placed_at_s:
                    starts_s.append(max(at_s - placed_at_s.pop((job_id, generation)), 0.0))
            case _:
                pass
    return median(starts_s) if starts_s else None

"""What a record gives to other policies: the happenings that no decision of theirs could have changed.

Failures of jobs are taken at their instant, although a job that runs elsewhere might have failed at another.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from shared.messages.commands import Command
from shared.messages.events import (
    GenerationStarted,
    JobFailed,
    NodeJoined,
    NodeLost,
    PlacementDecided,
    PlanDecided,
    PlanEvent,
)
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

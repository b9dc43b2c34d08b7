"""The story of one job: each decision about it in a sentence with numbers, and what led to it. Pure.

The ledger is folded message by message; what a decision changed is read off the states before and after it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from elasticflow.history.event_text import cause_in_words, event_text, placed_in_words
from elasticflow.history.formatting import gpus_counted, schedule_in_words, speeds_in_words
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import Event, PlanDecided
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState

_TRIES = "nobody else has a use for them, and how fast it is there is not known"
_PRE_RUN = "there is room for its pre-run"
_PLANNED = "the planned shares change at this time"
_REPORTS = (events.JobProgressed.__name__, events.ThroughputMeasured.__name__)

Entry = tuple[int, float, Event | PlanDecided | None]  # sequence, stored at, message


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One step of the story. type: name of the event that it tells."""

    sequence: int
    at_s: float
    type: str
    text: str


def story(entries: Iterable[Entry], job_id: str) -> tuple[HistoryEntry, ...]:
    """Everything that was decided about the job or happened to it; () if the ledger does not know it."""
    teller = _HistoryBuilder(job_id)
    for sequence, at_s, message in entries:
        teller.hear(sequence, at_s, message)
    return tuple(teller.told)


class _HistoryBuilder:
    """Folds the pool and keeps in mind what has happened since the last allocation: its cause."""

    def __init__(self, job_id: str) -> None:
        self.told: list[HistoryEntry] = []
        self._job_id = job_id
        self._state = PoolState()
        self._causes: list[tuple[int, str]] = []

    def hear(self, sequence: int, at_s: float, message: Event | PlanDecided | None) -> None:
        before = self._state
        self._state = ledger_fold.evolve(before, message, sequence)
        based_on = message.based_on if isinstance(message, PlanDecided) else sequence
        for event in message.events if isinstance(message, PlanDecided) else (message,) if message else ():
            text = self._sentence(event, before, based_on)
            if text:
                self._tell(HistoryEntry(sequence=sequence, at_s=at_s, type=type(event).__name__, text=text))
            if self._state.scheduling_event_sequence == sequence:
                cause = cause_in_words(event, self._job_id)
                self._causes += [(sequence, cause)] if cause else []
        if isinstance(message, PlanDecided) and message.service == "allocator":
            self._causes = [(heard, cause) for heard, cause in self._causes if heard > based_on]

    def _tell(self, sentence: HistoryEntry) -> None:
        """Of several reports in a row only the last of each kind is news."""
        for index in reversed(range(len(self.told))):
            earlier = self.told[index]
            if sentence.type not in _REPORTS or earlier.type not in _REPORTS:
                break
            if earlier.type == sentence.type:
                del self.told[index]
                break
        self.told.append(sentence)

    def _sentence(self, event: Event, before: PoolState, based_on: int) -> str:
        old, new = before.job(self._job_id), self._state.job(self._job_id)
        if new is None:
            return ""
        match event:
            case events.AllocationDecided():
                held = old.num_gpus if old else 0
                begins_pre_run = new.phase is Phase.PROFILING and not held
                otherwise = _PRE_RUN if begins_pre_run else _PLANNED
                why = _TRIES if event.probes == self._job_id else self._because(based_on) or otherwise
                return _allocated(held, new.num_gpus, why)
            case events.PlacementDecided():
                mine = next((p for p in event.placements if p.job_id == self._job_id), None)
                if mine is None:
                    return ""
                return placed_in_words(mine, self._job_id in event.migrated, new)
            case events.ThroughputMeasured() if _is_profile_of(new, event.profile_key):
                how = "in a pre-run" if event.source == "profile" else f"by {event.job_id} while it trained"
                return f"measured {event.iterations_per_s:.3g} iterations/s on {gpus_counted(event.num_gpus)}, {how}"
            case events.ProfileCompleted() if _is_profile_of(new, event.profile_key):
                return f"its scaling curve is known: {speeds_in_words(event.iterations_per_s)}"
            case events.JobAdmitted() if self._job_id in event.replanned:
                share = schedule_in_words(event.replanned[self._job_id])
                return f"made room for {event.job_id}, still in time: {share}"
            case events.NodeLost() if old is not None and event.node_id in old.nodes and old.live:
                return f"{event.node_id} was lost ({event.reason}) with workers of this job"
            case _ if getattr(event, "job_id", "") == self._job_id:
                return event_text(event, old, new, self._state)
            case _:
                return ""

    def _because(self, based_on: int) -> str:
        """What the planner knew that it had not known when it decided last; "" if nothing."""
        causes = list(dict.fromkeys(cause for heard, cause in self._causes if heard <= based_on))
        return "; ".join(causes[-3:])


def _allocated(old: int, new: int, because: str) -> str:
    if old == new:
        return ""
    verb = "starts with" if not old else "grows to" if new > old else "shrinks to"
    what = f"its share {verb} {gpus_counted(new)}" + (f" from {old}" if old and new else "")
    return f"{what if new else f'its share of {gpus_counted(old)} is taken back'}: {because}"


def _is_profile_of(job: Job, profile_key: str) -> bool:
    return job.live and job.spec is not None and profile_key in (job.spec.profile_key, job.spec.measured_key)

"""The history of one job or padding load: each decision about it as a sentence with numbers, and its causes. Pure.

The ledger is folded message by message. The states before and after a decision show what it changed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from elasticflow.history.event_cause import cause_in_words
from elasticflow.history.event_text import event_text, placed_in_words
from elasticflow.history.formatting import gpus_counted, schedule_in_words, speeds_in_words
from elasticflow.history.load_text import load_text
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import Event, LoadEvent, PlanDecided
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState

_PROBE = "no other job needs them, and its throughput on so many is unknown"
_PROFILING_RUN = "enough GPUs are free for its profiling run"
_PLANNED = "the planned shares change at this time"
_REPORTS = (events.JobProgressed.__name__, events.ThroughputMeasured.__name__, events.LoadProgressed.__name__)

Entry = tuple[int, float, LedgerMessage]  # sequence, stored at, message


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One entry of the history. type: name of the event."""

    sequence: int
    at_s: float
    type: str
    text: str


def job_history(entries: Iterable[Entry], name: str) -> tuple[HistoryEntry, ...]:
    """All decisions and events about the job or padding load of this name; () if the ledger contains neither."""
    builder = _HistoryBuilder(name)
    for sequence, at_s, message in entries:
        builder.fold(sequence, at_s, message)
    return tuple(builder.history)


class _HistoryBuilder:
    """Folds the ledger, and collects the events since the last allocation: the causes of the next one."""

    def __init__(self, name: str) -> None:
        self.history: list[HistoryEntry] = []
        self._name = name
        self._state = PoolState()
        self._causes: list[tuple[int, str]] = []

    def fold(self, sequence: int, at_s: float, message: LedgerMessage) -> None:
        before = self._state
        self._state = ledger_fold.evolve(before, message, sequence)
        based_on = message.based_on if isinstance(message, PlanDecided) else sequence
        if isinstance(message, Unreadable):
            return
        for event in message.events if isinstance(message, PlanDecided) else (message,):
            text = self._sentence(event, before, based_on)
            if text:
                self._append(HistoryEntry(sequence=sequence, at_s=at_s, type=type(event).__name__, text=text))
            if self._state.scheduling_event_sequence == sequence:
                cause = cause_in_words(event, self._name)
                self._causes += [(sequence, cause)] if cause else []
        if isinstance(message, PlanDecided) and message.service == "allocator":
            self._causes = [(at, cause) for at, cause in self._causes if at > based_on]

    def _append(self, entry: HistoryEntry) -> None:
        """Of several progress reports in a row, keep only the last of each kind."""
        for index in reversed(range(len(self.history))):
            earlier = self.history[index]
            if entry.type not in _REPORTS or earlier.type not in _REPORTS:
                break
            if earlier.type == entry.type:
                del self.history[index]
                break
        self.history.append(entry)

    def _sentence(self, event: Event, before: PoolState, based_on: int) -> str:
        if isinstance(event, LoadEvent):
            return load_text(event, self._state.loads.get(self._name)) if event.load_id == self._name else ""
        old, new = before.job(self._name), self._state.job(self._name)
        if new is None:
            return ""
        match event:
            case events.AllocationDecided():
                held = old.num_gpus if old else 0
                begins_profiling_run = new.phase is Phase.PROFILING and not held
                otherwise = _PROFILING_RUN if begins_profiling_run else _PLANNED
                why = _PROBE if event.probes == self._name else self._because(based_on) or otherwise
                return _allocated(held, new.num_gpus, why)
            case events.PlacementDecided():
                mine = next((p for p in event.placements if p.job_id == self._name), None)
                if mine is None:
                    return ""
                return placed_in_words(mine, self._name in event.migrated, new)
            case events.ThroughputMeasured() if _is_profile_of(new, event.profile_key):
                how = "in a profiling run" if event.source == "profile" else f"by {event.job_id} while it trained"
                return f"measured {event.iterations_per_s:.3g} iterations/s on {gpus_counted(event.num_gpus)}, {how}"
            case events.ProfileCompleted() if _is_profile_of(new, event.profile_key):
                return f"its scaling curve is known: {speeds_in_words(event.iterations_per_s)}"
            case events.JobAdmitted() if self._name in event.replanned:
                share = schedule_in_words(event.replanned[self._name])
                return f"replanned so that {event.job_id} is admitted, still in time: {share}"
            case events.NodeLost() if old is not None and event.node_id in old.nodes and old.live:
                return f"{event.node_id} was lost ({event.reason}) with workers of this job"
            case _ if getattr(event, "job_id", "") == self._name:
                return event_text(event, old, new, self._state)
            case _:
                return ""

    def _because(self, based_on: int) -> str:
        """The events that the allocator first considered in this decision; "" if there is none."""
        causes = list(dict.fromkeys(cause for at, cause in self._causes if at <= based_on))
        return "; ".join(causes[-3:])


def _allocated(old: int, new: int, because: str) -> str:
    if old == new:
        return ""
    verb = "starts with" if not old else "grows to" if new > old else "shrinks to"
    what = f"its share {verb} {gpus_counted(new)}" + (f" from {old}" if old and new else "")
    return f"{what if new else f'it loses its share of {gpus_counted(old)}'}: {because}"


def _is_profile_of(job: Job, profile_key: str) -> bool:
    return job.live and job.spec is not None and profile_key in (job.spec.profile_key, job.spec.measured_key)

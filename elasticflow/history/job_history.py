"""The history of one job or padding load: each decision about it as a sentence with numbers, and its causes. Pure.

The ledger is folded message by message. The states before and after a decision show what it changed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from elasticflow.history.event_text import (
    event_text,
    is_new_failing,
    is_profile_of,
    load_text,
    names_concerned,
    placed_in_words,
)
from elasticflow.history.formatting import (
    deadline_in_words,
    end_in_words,
    ended_in_words,
    failing_in_words,
    limits_in_words,
    measured_in_words,
    notice_in_words,
    schedule_in_words,
    speeds_in_words,
    virtual_nodes_in_words,
)
from elasticflow.history.pool_views import gpu_type_of
from elasticflow.history.profile_views import predicted_steps
from elasticflow.shared.messages import events
from elasticflow.shared.messages.event_summary import gpus_counted
from elasticflow.shared.messages.events import Event, LoadEvent, PlanDecided
from elasticflow.shared.messages.gpus import GpuId, ShareSchedule, segments
from elasticflow.shared.messages.limits import MAX_LAST_LINES
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.nodes import awaited_nodes, is_still_there
from elasticflow.shared.state.pool import PoolState
from elasticflow.times import duration_in_words, moment_in_words

# --- Each event as the cause of a later change of GPUs -------------------------------------------------


def cause_in_words(event: Event, job_id: str, shown: Callable[[str], str] = str) -> str:
    """Why the allocation may change after this event; "" if the event is no cause. shown: what to call another job."""

    def name(other: str) -> str:
        return "it" if other == job_id else shown(other)

    def whose(other: str) -> str:
        return "its" if other == job_id else f"{shown(other)}'s"

    match event:
        case events.JobAdmitted():
            return f"{name(event.job_id)} was admitted"
        case events.ProfileRequested():
            return f"{name(event.job_id)} waits for a decision"
        case events.JobFinished():
            return f"{name(event.job_id)} finished"
        case events.JobFailed():
            return f"{name(event.job_id)} failed"
        case events.JobCancelled():
            return f"{name(event.job_id)} was cancelled"
        case events.JobProfiled():
            return f"{name(event.job_id)} was profiled"
        case events.JobAmended():
            return f"{name(event.job_id)} was amended"
        case events.GpuLimitsSet():
            return f"{name(event.job_id)} was limited to {limits_in_words(event, event.at_s)}"
        case events.GpuLimitsCleared():
            return f"{whose(event.job_id)} GPU limits were cleared"
        case events.GpuTypeChanged():
            return f"{name(event.job_id)} moved to another GPU type"
        case events.QuoteReserved():
            return f"a quote is reserved for {name(event.job_id)}"
        case events.JobAtRisk():
            return f"{name(event.job_id)} is at risk"
        case events.WorkerCrashed():
            return f"a worker of {name(event.job_id)} crashed"
        case events.WorkerLagged():
            return f"a GPU of {name(event.job_id)} is slow"
        case events.JobWarned():
            return f"{name(event.job_id)} starts" if event.phase else f"{whose(event.job_id)} code has a warning"
        case events.WorkerEntered():
            return f"a command runs beside a worker of {name(event.job_id)}"
        case events.MemoryExceeded():
            return f"{whose(event.job_id)} micro-batches exceeded the memory"
        case events.ThroughputMeasured():
            return f"{whose(event.job_id)} speed on {gpus_counted(event.num_gpus)} was measured"
        case events.ProfilingFailed():
            return f"{whose(event.job_id)} profiling run failed"
        case events.NodeJoined():
            until = "" if event.until_s is None else f" until {moment_in_words(event.until_s, event.at_s)}"
            return f"{event.node_id} joined with {gpus_counted(event.num_gpus, event.gpu_type)}{until}"
        case events.NodeLost():
            return f"{event.node_id} {'left' if event.reason == 'left' else 'was lost'}"
        case events.NodeEndAnnounced():
            return end_in_words(event)
        case events.NodeEndNoticed():
            return notice_in_words(event)
        case events.GpuFailing():
            return failing_in_words(event)
        case events.NodeDrainStarted():
            return f"{event.node_id} is drained before its end"
        case events.PoolConfigured():
            return "the pool was configured"
        case _:
            return ""


# --- job history ---------------------------------------------------------------------------------------

_PROBE = "no other job needs them, and its throughput on so many is unknown"
_PROFILING_RUN = "enough GPUs are free for its profiling run"
LENT_BY = "lent by"  # in the sentence on GPUs that promised jobs lend
_PLANNED = "the planned shares change at this time"
_MOST_AWAITED = 8  # nodes that a sentence names
_ANOTHER_JOB = "a job of another tenant"
_SHORTEST_DELAY_S = 0.05  # a shorter one would read as 0.0s
_ENDS_A_RISK: Mapping[type[Event], str] = {
    events.PlacementDecided: "the monitor judges its new generation anew",
    events.JobAmended: "the amended promise has a plan",
    events.GpuLimitsCleared: "the monitor judges it anew without its GPU limits",
    events.GpuTypeChanged: "it has a plan on the other GPU type",
}
_REPORTS = (events.JobProgressed.__name__, events.ThroughputMeasured.__name__, events.LoadProgressed.__name__)

Entry = tuple[int, float, LedgerMessage]  # sequence, stored at, message


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One entry of the history. type: name of the event. lines: the last ones of a failed worker's log. traceback: of
    a job that has failed, with all frames. begins_anew: another job has the name from here on (docs/adr/0114)."""

    sequence: int
    at_s: float
    type: str
    text: str
    lines: tuple[str, ...] = ()
    traceback: str = ""
    begins_anew: bool = False

    @property
    def is_report(self) -> bool:
        """A progress report: the next one makes it dispensable."""
        return self.type in _REPORTS


class Sentence(NamedTuple):
    """tenant: of the job or load, who may read it; "" for a sentence on nodes."""

    name: str
    entry: HistoryEntry
    tenant: str


def job_history(entries: Iterable[Entry], name: str, state: PoolState | None = None) -> tuple[HistoryEntry, ...]:
    """All decisions and events about the job or padding load of this name; () if the ledger contains neither.

    state: before the first entry, if that is not the first message of the ledger.
    """
    events_in_words = EventsInWords(only=name, state=state)
    history: list[HistoryEntry] = []
    for sequence, at_s, message in entries:
        for said in events_in_words.fold(sequence, at_s, message):
            append_entry(history, said.entry)
    return tuple(history)


def first_of_newest(history: Sequence[HistoryEntry]) -> int:
    """The index of the entry with which the newest job of this name begins; 0 if it is the only one."""
    return max((index for index, entry in enumerate(history) if entry.begins_anew), default=0)


def append_entry(history: list[HistoryEntry], entry: HistoryEntry) -> None:
    """Append to the history of one job or load. Of several reports in a row, keep only the last of each kind."""
    for index in reversed(range(len(history))):
        earlier = history[index]
        if not entry.is_report or not earlier.is_report:
            break
        if earlier.type == entry.type:
            del history[index]
            break
    history.append(entry)


class EventsInWords:
    """Folds the ledger, and says each event in words: once for every job or padding load that it concerns.

    Collects the events since the last allocation, which are the causes of the next one.
    only: the one job or load whose sentences are wanted; "": all, and those on nodes under the name "".
    for_tenants: the sentences on a job or load are for its tenant, so they name no job of another one.
    """

    def __init__(self, only: str = "", *, for_tenants: bool = False, state: PoolState | None = None) -> None:
        self.state = state or PoolState()
        self._only, self._for_tenants = only, for_tenants
        self._causes: list[tuple[int, Event]] = []

    def fold(self, sequence: int, at_s: float, message: LedgerMessage) -> list[Sentence]:
        """The sentences on this message, each with its job or load."""
        before = self.state
        self.state = ledger_fold.evolve(before, message, sequence)
        if isinstance(message, Unreadable):
            return []
        based_on = message.based_on if isinstance(message, PlanDecided) else sequence
        said: list[Sentence] = []
        for event in message.events if isinstance(message, PlanDecided) else (message,):
            for name in self._names(event, before):
                texts = (self._sentence(event, name, before, based_on), self._end_of_risk(event, name, before))
                for text in filter(None, texts):
                    kind, lines = type(event).__name__, _last_lines(event)
                    traceback = _traceback(event)
                    entry = HistoryEntry(
                        sequence=sequence,
                        at_s=at_s,
                        type=kind,
                        text=text,
                        lines=lines,
                        traceback=traceback,
                        begins_anew=_takes_the_name(event, name),
                    )
                    said.append(Sentence(name, entry, self._tenant(event, name, before)))
            if self.state.scheduling_event_sequence == sequence:
                self._causes.append((sequence, event))
        if isinstance(message, PlanDecided) and message.service == "allocator":
            self._causes = [(at, event) for at, event in self._causes if at > based_on]
        return said

    def _names(self, event: Event, before: PoolState) -> tuple[str, ...]:
        if self._only:
            return (self._only,)
        return names_concerned(event, before, self.state)

    def _sentence(self, event: Event, name: str, before: PoolState, based_on: int) -> str:
        if isinstance(event, LoadEvent):
            load = self.state.loads.get(name)
            is_hidden = self._for_tenants and load is not None and _is_of_another_tenant(event, load.tenant)
            return load_text(event, load) if event.load_id == name and not is_hidden else ""
        if not name:
            if isinstance(event, events.NodeJoined) and is_still_there(before.nodes, event):
                return f"{event.node_id} is still there"
            return cause_in_words(event, name)
        if isinstance(event, events.QuoteReserved) and event.job_id == name:
            return (
                f"a quote was reserved until {moment_in_words(event.until_s, event.at_s)}: "
                f"{deadline_in_words(event.deadline_s, event.at_s)}; `eflow submit ... --quote {name}` takes it"
            )
        old, new = before.job(name), self.state.job(name)
        if new is None or (
            self._for_tenants and getattr(event, "job_id", "") == name and _is_of_another_tenant(event, new.tenant)
        ):
            return ""
        shown = self._shown_to(new.tenant)
        match event:
            case events.AllocationDecided():
                held = old.num_gpus if old else 0
                begins_profiling_run = new.phase is Phase.PROFILING and not held
                otherwise = _PROFILING_RUN if begins_profiling_run else _PLANNED
                why = _PROBE if event.probes == name else self._because(new, based_on) or otherwise
                lending = _lending(event, before, held, new, shown)
                return _allocated(held, new.num_gpus, "; ".join(filter(None, (why, lending))))
            case events.PlacementDecided():
                mine = next((p for p in event.placements if p.job_id == name), None)
                if mine is None:
                    return ""
                placed = placed_in_words(mine, name in event.migrated, new) + _mixed(self.state, new)
                return placed + _no_longer_relieved(old, new)
            case events.ThroughputMeasured() if is_profile_of(new, event.profile_key):
                how = (
                    "in a profiling run" if event.source == "profile" else f"by {shown(event.job_id)} while it trained"
                )
                cut = f"; {virtual_nodes_in_words(event.virtual_nodes)}" if event.virtual_nodes is not None else ""
                return f"{measured_in_words(event)}, {how}{cut}"
            case events.ProfileCompleted() if is_profile_of(new, event.profile_key):
                return f"its scaling curve is known: {speeds_in_words(event.iterations_per_s)}"
            case events.JobAdmitted() if name in event.replanned:
                return _replanned(new, event.replanned[name], shown(event.job_id))
            case events.GpuFailing():
                has_it = old is not None and GpuId(event.node_id, event.gpu_index) in old.gpus
                is_told = has_it and is_new_failing(event, before)
                return f"{failing_in_words(event)}; it counts as slow" if is_told else ""
            case events.NodeLost() if old is not None and event.node_id in old.nodes and old.live:
                gone = "left" if event.reason == "left" else f"was lost ({event.reason})"
                return f"{event.node_id} {gone} with workers of this job"
            case events.NodeJoined() if old is not None and old.live and not is_still_there(before.nodes, event):
                return _joined_again(event, before, self.state) if event.node_id in old.nodes else ""
            case _ if getattr(event, "job_id", "") == name and _takes_the_name(event, name):
                return f"{_earlier_job(old)}{event_text(event, None, new, self.state)}"
            case _ if getattr(event, "job_id", "") == name:
                return event_text(event, old, new, self.state)
            case _:
                return ""

    def _end_of_risk(self, event: Event, name: str, before: PoolState) -> str:
        """That the promise is no longer at risk since this event, and why; "" otherwise."""
        old, new = before.job(name), self.state.job(name)
        if old is None or new is None or not old.at_risk or new.at_risk or not new.live:
            return ""
        why = _ENDS_A_RISK.get(type(event))
        return f"no longer at risk: {why}" if why else ""

    def _tenant(self, event: Event, name: str, before: PoolState) -> str:
        """The tenant of the job or load; of a load that was never opened, the one that requested it."""
        if isinstance(event, LoadEvent):
            load = self.state.loads.get(name) or before.loads.get(name)
            return getattr(event, "tenant", "") if load is None else load.tenant
        if isinstance(event, events.QuoteReserved) and event.job_id == name:
            return event.tenant
        job = self.state.job(name)
        return "" if job is None else job.tenant

    def _because(self, job: Job, based_on: int) -> str:
        """The events that the allocator first considered in this decision; "" if there is none."""
        shown = self._shown_to(job.tenant)
        causes = (cause_in_words(event, job.job_id, shown) for at, event in self._causes if at <= based_on)
        return "; ".join(list(dict.fromkeys(filter(None, causes)))[-3:])

    def _shown_to(self, tenant: str) -> Callable[[str], str]:
        """What this tenant reads in place of the name of a job."""

        def shown(job_id: str) -> str:
            job = self.state.job(job_id) or self.state.quote_reservations.get(job_id)
            return job_id if job is not None and job.tenant == tenant else _ANOTHER_JOB

        return shown if self._for_tenants else str


def _replanned(job: Job, schedule: ShareSchedule, admitted: str) -> str:
    """A job that was late before may be so in its new schedule."""
    end_s = max((segment.end_s for segment in segments(schedule) if segment.num_gpus), default=None)
    if end_s is None:
        return f"replanned when {admitted} was admitted: the pool has no GPUs on which it would end"
    share, late_s = schedule_in_words(schedule), end_s - (end_s if job.deadline_s is None else job.deadline_s)
    if late_s > _SHORTEST_DELAY_S:
        return f"replanned when {admitted} was admitted, to end {duration_in_words(late_s)} after its deadline: {share}"
    return f"replanned so that {admitted} is admitted, still in time: {share}"


def _earlier_job(earlier: Job | None) -> str:
    """How the job ended whose name another one has from now on."""
    return "" if earlier is None else f"the name is used again: its job {ended_in_words(earlier)}; "


def _takes_the_name(event: Event, name: str) -> bool:
    """Whether the job of this event has the name from now on, in place of an ended job."""
    is_accepted = isinstance(event, events.JobAdmitted | events.ProfileRequested)
    return is_accepted and event.job_id == name and bool(event.replaces)


def _joined_again(event: events.NodeJoined, before: PoolState, after: PoolState) -> str:
    """What a restart of a node without a report of its loss means for a job with workers there."""
    if not before.nodes[event.node_id].alive:
        return ""
    gone = f"{event.node_id} was started again, so its workers of this job are gone"
    awaited = awaited_nodes(after.nodes)
    if not awaited:
        return gone
    names = ", ".join(node.node_id for node in awaited[:_MOST_AWAITED])
    others = f" and {len(awaited) - _MOST_AWAITED} others" if len(awaited) > _MOST_AWAITED else ""
    return f"{gone}; no job is placed on {names}{others} before they join again or are reported lost"


def _is_of_another_tenant(event: Event, tenant: str) -> bool:
    """Whether it answers a command of another tenant about a job or load: admission rejects those in the ledger."""
    return getattr(event, "tenant", "") not in ("", tenant)


def _last_lines(event: Event) -> tuple[str, ...]:
    """What the failed worker wrote last; without its log, the end of its traceback."""
    match event:
        case events.JobFailed():
            return tuple((event.last_lines or event.traceback.rstrip()).splitlines()[-MAX_LAST_LINES:])
        case events.WorkerCrashed():
            return tuple(event.last_lines.splitlines()[-MAX_LAST_LINES:])
        case _:
            return ()


def _traceback(event: Event) -> str:
    return (event.whole_traceback or event.traceback) if isinstance(event, events.JobFailed) else ""


def _allocated(old: int, new: int, because: str) -> str:
    if old == new:
        return ""
    verb = "starts with" if not old else "grows to" if new > old else "shrinks to"
    what = f"its share {verb} {gpus_counted(new)}" + (f" from {old}" if old and new else "")
    return f"{what if new else f'it loses its share of {gpus_counted(old)}'}: {because}"


def _lending(
    event: events.AllocationDecided, before: PoolState, held: int, job: Job, shown: Callable[[str], str]
) -> str:
    """Which loans of GPUs begin with an allocation, if the job gets them, or is promised and has fewer; or that its own
    loan ends; else ""."""
    begun = {
        job_id: until_s
        for job_id, until_s in event.lent_until_s.items()
        if until_s > event.at_s and until_s != before.lent_until_s.get(job_id)
    }
    if job.job_id in begun:
        until = moment_in_words(begun[job.job_id], event.at_s)
        shares = event.num_gpus_by_job
        jobs = (other for other in before.live_jobs.values() if other.promised)
        lenders = sorted(other.job_id for other in jobs if shares.get(other.job_id, 0) < other.num_gpus)
        names = ", ".join(dict.fromkeys(map(shown, lenders))) or "promised jobs"
        return f"{LENT_BY} {names} for its profiling run, because all promises hold meanwhile, until {until} at most"
    if job.job_id in event.lent_until_s and held and not job.num_gpus:
        return "its profiling run takes longer than promised jobs can do without GPUs, so it waits for free ones"
    if not (begun and job.promised and job.num_gpus < held):
        return ""
    names = ", ".join(dict.fromkeys(map(shown, sorted(begun))))
    until = moment_in_words(max(begun.values()), event.at_s)
    return f"its promise has slack, so GPUs are lent to the profiling run of {names} until {until} at most"


def _no_longer_relieved(old: Job | None, new: Job) -> str:
    """Why a job takes even parts on its whole share again; "" otherwise."""
    is_over = old is not None and old.predicted_speedup and not new.predicted_speedup
    return "; its GPUs no longer count as slow" if old and is_over and set(old.share_gpus) == set(new.gpus) else ""


def _mixed(state: PoolState, job: Job) -> str:
    """Why GPUs of other types have joined it; "" if none has."""
    steps = predicted_steps(state, job)
    if steps is None:
        return ""
    share = gpus_counted(len(job.own_gpus), gpu_type_of(state, job))
    return f"; a step takes {1000 * steps.mixed_s:.3g} ms by its profile, {1000 * steps.alone_s:.3g} ms on its {share}"

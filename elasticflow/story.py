"""The story of one job: each decision about it in a sentence with numbers, and what led to it. Pure.

The ledger is folded message by message; what a decision changed is read off the states before and after it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elasticflow.times import clock_time, duration_in_words
from elasticflow.views import promised_finish_s
from shared.messages import events, lifecycle
from shared.messages.cluster import PoolConfig, ShareSchedule, segments
from shared.messages.events import Event, PlanDecided
from shared.messages.job import JobSpec
from shared.messages.offer import Offer
from shared.messages.pool_state import Job, PoolState
from shared.messages.summary import gpus_in_words

_REPORTS = (events.JobProgressed.__name__, events.ThroughputMeasured.__name__)

Entry = tuple[int, float, Event | PlanDecided | None]  # sequence, stored at, message


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One step of the story. type: name of the event that it tells."""

    sequence: int
    at_s: float
    type: str
    text: str


def story(entries: Iterable[Entry], job_id: str) -> tuple[Sentence, ...]:
    """Everything that was decided about the job or happened to it; () if the ledger does not know it."""
    teller = _Teller(job_id)
    for sequence, at_s, message in entries:
        teller.hear(sequence, at_s, message)
    return tuple(teller.told)


class _Teller:
    """Folds the pool and keeps in mind what has happened since the last allocation: its cause."""

    def __init__(self, job_id: str) -> None:
        self.told: list[Sentence] = []
        self._job_id = job_id
        self._state = PoolState()
        self._causes: list[tuple[int, str]] = []

    def hear(self, sequence: int, at_s: float, message: Event | PlanDecided | None) -> None:
        before = self._state
        self._state = lifecycle.evolve(before, message, sequence)
        based_on = message.based_on if isinstance(message, PlanDecided) else sequence
        for event in message.events if isinstance(message, PlanDecided) else (message,) if message else ():
            text = self._sentence(event, before, based_on)
            if text:
                self._tell(Sentence(sequence=sequence, at_s=at_s, type=type(event).__name__, text=text))
            if self._state.scheduling_event_sequence == sequence:
                cause = cause_in_words(event, self._job_id)
                self._causes += [(sequence, cause)] if cause else []
        if isinstance(message, PlanDecided) and message.service == "allocator":
            self._causes = [(heard, cause) for heard, cause in self._causes if heard > based_on]

    def _tell(self, sentence: Sentence) -> None:
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
                return self._allocated(old.num_gpus if old else 0, new.num_gpus, based_on)
            case events.PlacementDecided():
                mine = next((p for p in event.placements if p.job_id == self._job_id), None)
                return _placed(mine, self._job_id in event.migrated) if mine else ""
            case events.ThroughputMeasured() if _is_profile_of(new, event.profile_key):
                how = "in a pre-run" if event.source == "profile" else f"by {event.job_id} while it trained"
                return f"measured {event.iterations_per_s:.3g} iterations/s on {_gpus(event.num_gpus)}, {how}"
            case events.ProfileCompleted() if _is_profile_of(new, event.profile_key):
                return f"its scaling curve is known: {_curve(event.iterations_per_s)}"
            case events.JobAdmitted() if self._job_id in event.replanned:
                return (
                    f"made room for {event.job_id}, still in time: {_schedule(event.replanned[self._job_id])}"
                )
            case events.NodeLost() if old is not None and event.node_id in old.nodes and old.live:
                return f"{event.node_id} was lost ({event.reason}) with workers of this job"
            case _ if getattr(event, "job_id", "") == self._job_id:
                return _of_the_job(event, old, new, self._state)
            case _:
                return ""

    def _allocated(self, old: int, new: int, based_on: int) -> str:
        if old == new:
            return ""
        causes = list(dict.fromkeys(cause for heard, cause in self._causes if heard <= based_on))
        because = "; ".join(causes[-3:]) or "the planned shares change at this time"
        verb = "starts with" if not old else "grows to" if new > old else "shrinks to"
        what = f"its share {verb} {_gpus(new)}" + (f" from {old}" if old and new else "")
        return f"{what if new else f'its share of {_gpus(old)} is taken back'}: {because}"


def _of_the_job(event: Event, old: Job | None, new: Job, state: PoolState) -> str:
    """An event whose subject is the job."""
    match event:
        case events.ProfileRequested():
            return f"{_submitted(event)}; its speed is not known, so it is measured before the decision"
        case events.JobAdmitted():
            return _admitted(event, old, state)
        case events.JobRejected():
            return _rejected(event)
        case events.JobCancelled():
            return f"cancelled at iteration {new.iteration}" + (f": {event.reason}" if event.reason else "")
        case events.CancelRefused():
            return f"a wish to cancel it was refused: {event.explanation}"
        case events.JobAmended():
            what = f"{event.max_iterations} iterations, {_deadline(event.deadline_s, event.at_s)}"
            share = event.minimum_satisfactory_share
            return f"amended to {what}" + (f": {_schedule(share)} keep it" if share else "")
        case events.AmendRefused():
            return f"a wish to amend it was refused: {event.explanation}"
        case events.WorkersStopped():
            kept = f", checkpoint at iteration {event.iteration}" if event.iteration is not None else ""
            return f"generation {event.generation} has stopped on {event.node_id}{kept}"
        case events.GenerationStarted():
            return _started(event, new)
        case events.JobProgressed():
            return _progressed(event, new)
        case events.WorkerCrashed():
            return _crashed(event, old, new, state)
        case events.JobAtRisk():
            return _at_risk(event)
        case events.JobFailed():
            return f"failed: {event.error}"
        case events.JobFinished():
            return _finished(event, new)
        case _:
            return ""


# --- sentences ------------------------------------------------------------------------------------------


def _submitted(event: events.ProfileRequested | events.JobAdmitted) -> str:
    return f"submitted by {event.tenant}: {_asked_for(event.spec)}, {_deadline(event.deadline_s, event.at_s)}"


def _asked_for(spec: JobSpec) -> str:
    return (
        f"{spec.training_function}, {spec.max_iterations} iterations of {spec.global_batch_size} samples, "
        f"class {spec.job_class.value.replace('_', '-')}"
    )


def _deadline(deadline_s: float | None, now_s: float) -> str:
    if deadline_s is None:
        return "no deadline"
    return f"deadline {clock_time(deadline_s, now_s=now_s)} (in {duration_in_words(deadline_s - now_s)})"


def _admitted(event: events.JobAdmitted, old: Job | None, state: PoolState) -> str:
    asked = "" if old is not None else f"{_submitted(event)}; "
    curve = state.curves.get(event.spec.profile_key)
    speeds = f", at {_curve(curve.iterations_per_s)}" if curve and curve.iterations_per_s else ""
    if not event.minimum_satisfactory_share:
        return f"{asked}admitted without a promise{speeds}"
    finish_s = max(
        (s.end_s for s in segments(event.minimum_satisfactory_share) if s.num_gpus), default=event.at_s
    )
    slack = (
        f", {duration_in_words(event.deadline_s - finish_s)} before the deadline" if event.deadline_s else ""
    )
    return (
        f"{asked}admitted: {_schedule(event.minimum_satisfactory_share)} finish it by "
        f"{clock_time(finish_s, now_s=event.at_s)}{slack}; {event.gpu_seconds:.0f} GPU-seconds{speeds}, "
        f"less {_margin(state.config)}"
    )


def _margin(config: PoolConfig) -> str:
    if config.confidence is None:
        return f"a margin of {config.throughput_margin:.0%}"
    return f"what a confidence of {config.confidence:g} asks for"


def _rejected(event: events.JobRejected) -> str:
    asked = f"{_asked_for(event.spec)}, {_deadline(event.deadline_s, event.at_s)}; " if event.spec else ""
    offer = ""
    if event.earliest_deadline_s is not None:
        left = duration_in_words(event.earliest_deadline_s - event.at_s)
        offer = f"; the earliest deadline was {clock_time(event.earliest_deadline_s, now_s=event.at_s)} (in {left})"
    if others := other_offers(event):
        told = " or ".join(offer_in_words(other, event.spec, event.at_s) for other in others)
        offer += f"; promised would have been {told}"
    return f"{asked}rejected ({event.reason}): {event.explanation}{offer}"


def other_offers(event: events.JobRejected) -> tuple[Offer, ...]:
    """Those beside the earliest deadline, which comes first."""
    return event.offers if event.earliest_deadline_s is None else event.offers[1:]


def offer_in_words(offer: Offer, spec: JobSpec | None, now_s: float) -> str:
    """ "40 iterations, in batches of 64, by 15:04:14 (in 21.2s)"; the batch size where it is another."""
    other_batch = spec is None or offer.global_batch_size != spec.global_batch_size
    batches = f", in batches of {offer.global_batch_size}," if other_batch else ""
    left = duration_in_words(offer.deadline_s - now_s)
    by = clock_time(offer.deadline_s, now_s=now_s)
    return f"{offer.max_iterations} iterations{batches} by {by} (in {left})"


def _placed(placed: events.PlacedJob, migrated: bool) -> str:
    if not placed.gpus:
        return f"generation {placed.generation}: suspended, it holds no GPUs"
    moved = ", moved to defragment the cluster" if migrated else ""
    return f"generation {placed.generation} is placed on {gpus_in_words(placed.gpus)}{moved}"


def _started(event: events.GenerationStarted, new: Job) -> str:
    after = (
        f", {duration_in_words(event.at_s - new.placed_at_s)} after its placement" if new.placed_at_s else ""
    )
    return (
        f"generation {event.generation} trains on {_gpus(event.num_gpus)} "
        f"from iteration {event.iteration}{after}"
    )


def _progressed(event: events.JobProgressed, new: Job) -> str:
    speed = f" at {event.iterations_per_s:.3g} iterations/s" if event.iterations_per_s else ""
    of = f" of {new.spec.max_iterations}" if new.spec else ""
    return f"reached iteration {event.iteration}{of}{speed}{_metrics(event.metrics)}"


def _crashed(event: events.WorkerCrashed, old: Job | None, new: Job, state: PoolState) -> str:
    if old is None or old.broken or event.generation != old.generation:
        return ""  # its peers end with it: the first crash of a generation is the news
    return (
        f"the worker of rank {event.rank} on {event.node_id} crashed in generation {event.generation}: "
        f"{event.explanation} (crash {new.restarts} in a row, at most {state.config.max_restarts}); "
        f"the job falls back to iteration {new.checkpoint_iteration}"
    )


def _at_risk(event: events.JobAtRisk) -> str:
    if event.projected_finish_s is None:
        return "at risk: it makes no progress"
    late = duration_in_words(event.projected_finish_s - event.deadline_s)
    told = f"at risk: on what is there, at its measured speed, it would end {late} after its deadline"
    if event.earliest_deadline_s is None:
        return told
    left = duration_in_words(event.earliest_deadline_s - event.at_s)
    by = clock_time(event.earliest_deadline_s, now_s=event.at_s)
    return f"{told}; amended to {by} (in {left}), it would be promised anew"


def _finished(event: events.JobFinished, new: Job) -> str:
    margin = ""
    if new.deadline_s is not None:
        left_s = new.deadline_s - event.at_s
        word = "before" if left_s >= 0 else "after"
        margin = f", {duration_in_words(abs(left_s))} {word} its deadline"
    promised_s = promised_finish_s(new)
    if promised_s is not None:
        early_s = promised_s - event.at_s
        margin += (
            f" ({duration_in_words(abs(early_s))} {'earlier' if early_s >= 0 else 'later'} than planned)"
        )
    why = "its metric condition is met" if event.condition == "metric" else "all iterations are done"
    return f"finished at iteration {event.iteration}, {why}{margin}{_metrics(event.metrics)}"


# --- phrases --------------------------------------------------------------------------------------------


def cause_in_words(event: Event, job_id: str) -> str:
    """Why GPUs may change hands after this event; "" if the event is no reason worth telling."""

    def name(other: str) -> str:
        return "it" if other == job_id else other

    def whose(other: str) -> str:
        return "its" if other == job_id else f"{other}'s"

    match event:
        case events.JobAdmitted():
            return f"{name(event.job_id)} was admitted"
        case events.ProfileRequested():
            return f"{name(event.job_id)} is to be measured"
        case events.JobFinished():
            return f"{name(event.job_id)} finished"
        case events.JobFailed():
            return f"{name(event.job_id)} failed"
        case events.JobCancelled():
            return f"{name(event.job_id)} was cancelled"
        case events.JobAmended():
            return f"{name(event.job_id)} was amended"
        case events.QuoteHeld():
            return f"a quote is held for {name(event.job_id)}"
        case events.JobAtRisk():
            return f"{name(event.job_id)} is at risk"
        case events.WorkerCrashed():
            return f"a worker of {name(event.job_id)} crashed"
        case events.ThroughputMeasured():
            return f"{whose(event.job_id)} speed on {_gpus(event.num_gpus)} was measured"
        case events.NodeJoined():
            return f"{event.node_id} joined with {_gpus(event.num_gpus)}"
        case events.NodeLost():
            return f"{event.node_id} was lost"
        case events.PoolConfigured():
            return "the pool was configured"
        case _:
            return ""


def _is_profile_of(job: Job, profile_key: str) -> bool:
    return job.live and job.spec is not None and job.spec.profile_key == profile_key


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _schedule(schedule: ShareSchedule) -> str:
    return ", then ".join(
        f"{_gpus(s.num_gpus)} for {duration_in_words(s.end_s - s.start_s)}" for s in segments(schedule)
    )


def _curve(iterations_per_s: Mapping[int, float]) -> str:
    return ", ".join(f"{rate:.3g}/s on {_gpus(count)}" for count, rate in sorted(iterations_per_s.items()))


def _metrics(metrics: Mapping[str, float]) -> str:
    return "".join(f", {name} {value:.4g}" for name, value in metrics.items())

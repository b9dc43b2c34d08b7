"""Each event of a job as a sentence with numbers. Pure."""

from collections.abc import Iterator
from typing import Any

from elasticflow.history.formatting import (
    artifacts_in_words,
    bytes_in_words,
    deadline_in_words,
    left_files_in_words,
    limits_in_words,
    margin_in_words,
    metrics_in_words,
    offer_in_words,
    other_offers,
    profiled_spec_in_words,
    schedule_in_words,
    shortened,
    spec_in_words,
    speeds_in_words,
    undecided_in_words,
)
from elasticflow.shared.messages import events
from elasticflow.shared.messages.event_summary import counted, gpus_counted, gpus_in_words, summary
from elasticflow.shared.messages.events import EpochBegan, Event, LoadEvent, NodeLost, PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.gpus import GpuId, segments
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.measurements import ResizeTimeline
from elasticflow.shared.state.finish_time import promised_finish_s, speed_now
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.gpu_types import large_enough_types, spec_on, type_name
from elasticflow.shared.state.job import Job, PreviousGeneration
from elasticflow.shared.state.load import Load
from elasticflow.shared.state.nodes import nodes_with_other_files
from elasticflow.shared.state.pool import PoolState, slow_gpu
from elasticflow.times import clock_time, duration_in_words, moment_in_words

_MOST_OF_AN_ERROR = 300  # characters; the traceback below has them all


def event_text(event: Event, old: Job | None, new: Job, state: PoolState) -> str:
    """The sentence for an event about this job."""
    match event:
        case events.ProfileRequested():
            profile_only = f"{event.tenant} requested its profile: {profiled_spec_in_words(event.spec)}"
            request = profile_only if event.profile_only else _submitted(event)
            return f"{request}; {undecided_in_words(event)}"
        case events.JobProfiled():
            return f"profiled, as requested: {speeds_in_words(event.iterations_per_s)}"
        case events.JobAdmitted():
            return _admitted(event, old, new, state)
        case events.JobRejected():
            return _rejected(event)
        case events.JobCancelled():
            return f"cancelled at iteration {new.iteration}" + (f": {event.reason}" if event.reason else "")
        case events.CancelRejected():
            return f"the request to cancel it was rejected: {event.explanation}"
        case events.JobAmended():
            what = f"{counted(event.max_iterations, 'iteration')}, {deadline_in_words(event.deadline_s, event.at_s)}"
            moves = "" if event.gpu_type is None else f" on GPUs of type {type_name(state, event.gpu_type)}"
            share = event.minimum_satisfactory_share
            return f"amended to {what}{moves}" + (f": {schedule_in_words(share)} keep the promise" if share else "")
        case events.AmendRejected():
            return f"the request to amend it was rejected: {event.explanation}"
        case events.GpuLimitsSet():
            share = event.minimum_satisfactory_share
            keeps = f": {schedule_in_words(share)} keep its deadline" if share else ""
            return f"its operator limited it to {limits_in_words(event, event.at_s)}{keeps}"
        case events.GpuLimitsRejected():
            return f"the request to scale it was rejected: {event.explanation}"
        case events.GpuLimitsCleared():
            return f"its GPU limits were cleared: {event.reason}"
        case events.GpuTypeChanged():
            return _type_changed(event, state)
        case events.GpuTypeKept():
            return f"it stays on GPUs of its type: {event.explanation}"
        case events.CheckpointRequested():
            return "a checkpoint was requested" + (", to be stored with the job's files" if event.store else "")
        case events.ArtifactsStored():
            return _artifacts(event, new, state)
        case events.CheckpointWritten():
            return f"checkpoint of iteration {event.iteration} written, {bytes_in_words(event.num_bytes)}: {event.file}"
        case events.CheckpointFailed():
            return f"the requested checkpoint could not be written: {event.explanation}"
        case events.WorkersStopped():
            kept = f", checkpoint at iteration {event.iteration}" if event.iteration else ""
            stopped = f"generation {event.generation} has stopped on {event.node_id}"
            return f"{stopped}{kept}{_lost(old, new)}"
        case events.GenerationStarted():
            return _started(event, old, new)
        case events.JobProgressed():
            has_ended = old is not None and not old.live  # the report was on its way
            return "" if has_ended else _progressed(event, new)
        case events.WorkerCrashed():
            return _crashed(event, old, new, state)
        case events.WorkerLagged():
            gpu = gpus_in_words(new.gpus[event.rank : event.rank + 1])
            return f"rank {event.rank} on {gpu} takes {event.slowdown:.1f} times as long as its peers: its GPU is slow"
        case events.JobWarned():
            if event.phase:
                is_known = old is not None and event.phase in old.start_phases
                return "" if is_known else f"starting: a worker is {event.phase}"
            is_known = old is not None and event.warning in old.warnings
            return "" if is_known else f"warning: {event.warning}"
        case events.WorkerEntered():
            by = f"tenant {event.tenant}{f' ({event.user})' if event.user else ''}"
            command = shortened(" ".join(event.command.split()), _MOST_OF_AN_ERROR)
            return f"{by} runs beside rank {event.rank} on {event.node_id}: {command}"
        case events.MemoryExceeded():
            return _memory_exceeded(event, new)
        case events.JobAtRisk():
            return _at_risk(event, new, state)
        case events.ProfilingFailed():
            gpu_type = type_name(state, event.gpu_type)
            return f"its profiling run on {gpu_type} failed, so it is decided on the other GPU types: {event.error}"
        case events.JobFailed():
            after = f" after iteration {new.iteration}" if new.iteration else ""
            in_one_line = " ".join(event.error.split())
            return f"failed{after}: {shortened(in_one_line, _MOST_OF_AN_ERROR)}"
        case events.JobFinished():
            return _finished(event, new)
        case _:
            return ""


def _type_changed(event: events.GpuTypeChanged, state: PoolState) -> str:
    share = event.minimum_satisfactory_share
    keeps = f": {schedule_in_words(share)} keep its deadline" if share else ""
    return f"moved to GPUs of type {type_name(state, event.gpu_type)}, because {event.explanation}{keeps}"


def placed_in_words(placed: events.PlacedJob, migrated: bool, new: Job) -> str:
    if not placed.gpus:
        return f"generation {placed.generation}: suspended, it holds no GPUs"
    moved = ", moved for a whole block of GPUs, its own or another job's" if migrated else ""
    kept = _relieved_in_words(placed, new) if placed.predicted_speedup else ""
    if new.reserved_gpus and not placed.predicted_speedup:
        kept = f", for a while without {len(new.reserved_gpus) - len(placed.gpus)} of its GPUs"
    counts = ":".join(map(str, placed.virtual_nodes_by_rank))
    divided = f" with virtual nodes {counts}" if counts else ""
    joined = f", the last {placed.num_added_gpus} of other types" if placed.num_added_gpus else ""
    where = f"generation {placed.generation} is placed on {gpus_in_words(placed.gpus)}{joined}{divided}{moved}{kept}"
    return f"{where}{_meanwhile(new.previous_generation)}"


def _relieved_in_words(placed: events.PlacedJob, new: Job) -> str:
    """What a generation does without on slow GPUs, and what that is worth."""
    left_out = tuple(gpu for gpu in new.share_gpus if gpu not in placed.gpus)
    fewer = ", fewer on GPUs that count as slow" if placed.virtual_nodes_by_rank else ""
    without = f", without {gpus_in_words(left_out)} of its share, which counts as slow" if left_out else ""
    faster = f"{placed.predicted_speedup:.2f} times the speed of even parts on its whole share"
    return f"{fewer}{without}; predicted: {faster}"


def _meanwhile(previous_generation: PreviousGeneration | None) -> str:
    if previous_generation is None:
        return ""
    before = f"generation {previous_generation.generation}"
    if previous_generation.trains:
        return f"; {before} trains until all workers are ready"
    return f"; the survivors of {before} continue in it"


def _submitted(event: events.ProfileRequested | events.JobAdmitted) -> str:
    deadline = deadline_in_words(event.deadline_s, event.at_s)
    return f"submitted by {event.tenant}: {spec_in_words(event.spec)}, {deadline}"


def _admitted(event: events.JobAdmitted, old: Job | None, new: Job, state: PoolState) -> str:
    asked = "" if old is not None else f"{_submitted(event)}; "
    curve = state.curves.get(spec_on(state, event.spec, event.gpu_type).profile_key)
    speeds = f", at {speeds_in_words(curve.iterations_per_s)}" if curve and curve.iterations_per_s else ""
    if new.num_virtual_nodes:
        speeds += f", in {counted(new.num_virtual_nodes, 'virtual node')}"
    on_type = f" on {_type_and_why(event, state)}" if len(state.gpu_types) > 1 else ""
    if not event.minimum_satisfactory_share:
        return f"{asked}admitted{on_type} without a promise{speeds}"
    share = event.minimum_satisfactory_share
    finish_s = max((s.end_s for s in segments(share) if s.num_gpus), default=event.at_s)
    left_s = event.deadline_s - finish_s if event.deadline_s else None
    slack = "" if left_s is None else f", {duration_in_words(left_s)} before the deadline"
    pinned = "; there is no time for a migration, so its GPUs stay while their number stays" if event.pinned else ""
    return (
        f"{asked}admitted{on_type}: {schedule_in_words(share)} finish it by "
        f"{clock_time(finish_s, now_s=event.at_s)}{slack}; {event.gpu_seconds:.0f} GPU-seconds{speeds}, "
        f"less {margin_in_words(state.config)}{pinned}"
    )


def _type_and_why(event: events.JobAdmitted, state: PoolState) -> str:
    """The GPU type of an admitted job, and why not another one."""
    name = type_name(state, event.gpu_type)
    if event.spec.gpu_type:
        return f"{name} as requested"
    why = "it displaces the least there" if event.minimum_satisfactory_share else "all jobs there are done first"
    unmeasured = "".join(f"; not measured on {other}" for other in _unmeasured_types(event, state))
    return f"{name} ({why}{unmeasured})"


def _unmeasured_types(event: events.JobAdmitted, state: PoolState) -> list[str]:
    """The accepted types that were not counted, because no GPU could be lent or the profiling run failed."""
    others = [each for each in large_enough_types(state, event.spec) if each != event.gpu_type]
    curves = {each: state.curves.get(spec_on(state, event.spec, each).profile_key) for each in others}
    return [type_name(state, each) for each, curve in curves.items() if curve is None or not curve.complete]


def _rejected(event: events.JobRejected) -> str:
    deadline = deadline_in_words(event.deadline_s, event.at_s)
    asked = f"{spec_in_words(event.spec)}, {deadline}; " if event.spec else ""
    asked = f"a new job of this name: {asked}" if event.replaces and event.reason != "duplicate" else asked
    offer = ""
    if event.earliest_deadline_s is not None:
        offer = f"; the earliest deadline was {moment_in_words(event.earliest_deadline_s, event.at_s)}"
    if others := other_offers(event):
        offered = " or ".join(offer_in_words(other, event.spec, event.at_s) for other in others)
        offer += f"; admission would have promised {offered}"
    return f"{asked}rejected ({event.reason}): {event.explanation}{offer}"


def _artifacts(event: events.ArtifactsStored, new: Job, state: PoolState) -> str:
    others = nodes_with_other_files(state, new, event.node_id)
    elsewhere = f"; {left_files_in_words(others, event.node_id)}" if others else ""
    return artifacts_in_words(event, new, others) + elsewhere


def _lost(old: Job | None, new: Job) -> str:
    """Progress that the job had reported, and repeats."""
    num_lost = 0 if old is None else old.iteration - new.iteration
    if num_lost <= 0:
        return ""
    why = "nothing was saved" if not new.checkpoint_iteration else "nothing newer was saved"
    return f"; {num_lost} iteration{'s are' if num_lost > 1 else ' is'} lost: {why}"


def _started(event: events.GenerationStarted, old: Job | None, new: Job) -> str:
    after = f", {duration_in_words(event.at_s - new.placed_at_s)} after its placement" if new.placed_at_s else ""
    timeline = "" if event.resize is None else f": {_timeline_in_words(event.resize)}"
    began = f"generation {event.generation} trains on {gpus_counted(event.num_gpus)} from iteration {event.iteration}"
    if not event.lost_checkpoints:
        return f"{began}{after}{timeline}{_lost(old, new)}"
    saved = new.iteration if old is None else old.checkpoint_iteration
    repeats = f"; it repeats {counted(saved - new.iteration, 'saved iteration')}" if saved > new.iteration else ""
    return f"{began}{after}{repeats}: checkpoints could not be used ({event.lost_checkpoints})"


def _timeline_in_words(resize: ResizeTimeline) -> str:
    """The resize from the placement to the first step, as measured by rank 0."""
    moved = f", {resize.bytes_moved / 1e6:.1f} MB sent to each joining worker" if resize.bytes_moved else ""
    return (
        f"prepared in {duration_in_words(resize.prepare_s)} without a stop, "
        f"switched in {resize.stop_s * 1e3:.1f} ms, first step in {resize.first_step_s * 1e3:.1f} ms{moved}"
    )


def _progressed(event: events.JobProgressed, new: Job) -> str:
    speed = f" at {event.iterations_per_s:.3g} iterations/s" if event.iterations_per_s else ""
    of = f" of {new.spec.max_iterations}" if new.spec else ""
    return f"reached iteration {event.iteration}{of}{speed}{metrics_in_words(event.metrics)}"


def _crashed(event: events.WorkerCrashed, old: Job | None, new: Job, state: PoolState) -> str:
    if old is None or old.broken or not new.broken:
        return ""  # the first crash of a generation breaks it; its peers end as a consequence
    progress = (
        f"the job falls back to iteration {new.checkpoint_iteration}{_lost(old, new)}"
        if new.previous_generation is None
        else "the other workers keep the progress"
    )
    return (
        f"the worker of rank {event.rank} on {event.node_id} crashed in generation {event.generation}: "
        f"{event.explanation} (crash {new.restarts} in a row, at most {state.config.max_restarts}); {progress}"
    )


def _memory_exceeded(event: events.MemoryExceeded, new: Job) -> str:
    left = counted(new.micro_batch_size or event.micro_batch_size, "sample")
    return (
        f"a micro-batch of {counted(event.micro_batch_size, 'sample')} exceeds the memory of rank {event.rank} on "
        f"{event.node_id}: the job continues with {left}"
    )


def _at_risk(event: events.JobAtRisk, new: Job, state: PoolState) -> str:
    if event.projected_finish_s is None:
        if new.gpus and not new.training:
            return "at risk: its workers have not started yet"
        is_stalled = bool(new.gpus) and speed_now(new, event.at_s) is None
        why = "it reports no progress" if is_stalled else "the pool has no GPUs on which it would end in time"
        return f"at risk: {why}"
    late = duration_in_words(event.projected_finish_s - event.deadline_s)
    speed = f"its measured speed less {margin_in_words(state.config)}"
    risk = f"at risk: planned at {speed} it would end {late} after its deadline{_as_it_trains(event, new)}"
    if event.earliest_deadline_s is None:
        return risk
    by = moment_in_words(event.earliest_deadline_s, event.at_s)
    return f"{risk}; admission would promise an amendment to {by}"


def _as_it_trains(event: events.JobAtRisk, new: Job) -> str:
    """That it ends in time if it keeps its speed of now, which no promise counts on; else ""."""
    speed = speed_now(new, event.at_s)
    if not speed or new.spec is None:
        return ""
    early_s = event.deadline_s - event.at_s - (new.spec.max_iterations - new.iteration) / speed
    return f", at its {speed:.3g}/s of now {duration_in_words(early_s)} before it" if early_s > 0 else ""


def _finished(event: events.JobFinished, new: Job) -> str:
    margin = ""
    if new.deadline_s is not None:
        left_s = new.deadline_s - event.at_s
        word = "before" if left_s >= 0 else "after"
        margin = f", {duration_in_words(abs(left_s))} {word} its deadline"
    promised_s = promised_finish_s(new)
    if promised_s is not None:
        early_s = promised_s - event.at_s
        margin += f" ({duration_in_words(abs(early_s))} {'earlier' if early_s >= 0 else 'later'} than planned)"
    why = "its termination condition is met" if event.condition == "metric" else "all iterations are done"
    return f"finished at iteration {event.iteration}, {why}{margin}{metrics_in_words(event.metrics)}"


# --- Each event of a padding load as a sentence with numbers -------------------------------------------


def load_text(event: LoadEvent, load: Load | None) -> str:
    """The sentence for an event. load: after the event; None if none of this name was opened."""
    match event:
        case events.LoadOpened():
            return f"opened by {event.tenant}: {_tasks(event.spec)}; {_prediction(event.useful_share)}"
        case events.LoadRejected():
            return f"{event.tenant} requested it; rejected ({event.reason}): {event.explanation}"
        case events.LoadSealed():
            return f"sealed with {counted(event.num_tasks, 'task')}"
        case events.SealRejected():
            return f"the request to seal it was rejected: {event.explanation}"
        case events.LoadProgressed():
            of = f" of {load.num_tasks:,}" if load is not None and load.num_tasks is not None else ""
            return f"results of {event.num_results:,}{of} tasks are stored"
        case events.LoadFinished():
            after = "" if load is None else f", {duration_in_words(event.at_s - load.opened_at_s)} after its opening"
            return f"finished: the results of {counted(event.num_results, 'task')} are stored{after}"
        case events.LoadCancelled():
            num_results = 0 if load is None else load.num_results
            return f"cancelled, with {num_results:,} results counted" + (f": {event.reason}" if event.reason else "")
        case events.CancelLoadRejected():
            return f"the request to cancel it was rejected: {event.explanation}"


def _tasks(spec: LoadSpec) -> str:
    """The tasks in words, such as "proteins:fold, tasks of 10.9 s with 2.8 s of overhead"."""
    overhead = f" with {spec.overhead_s:g} s of overhead" if spec.overhead_s else ""
    start_stop = f", {spec.start_stop_s:g} s to start and end a runner" if spec.start_stop_s else ""
    gpu_type = f", on {spec.gpu_type}" if spec.gpu_type else ""
    return f"{spec.task_function}, tasks of {spec.task_s:g} s{overhead}{start_stop}{gpu_type}"


def _prediction(useful_share: float | None) -> str:
    if useful_share is None:
        return "nothing is predicted, because no GPU was idle so far"
    return f"it is predicted to use {useful_share:.1%} of the idle GPU time"


# --- names concerned ----------------------------------------------------------------------------------
# The jobs and padding loads that an event concerns. Pure.

_ON_THE_POOL = (
    events.NodeJoined,
    events.NodeLost,
    events.NodeEndAnnounced,
    events.NodeEndNoticed,
    events.NodeDrainStarted,
    events.PoolConfigured,
)


def is_new_failing(event: events.GpuFailing, before: PoolState) -> bool:
    """Whether it is not told already: a GPU fails for longer than it counts as slow, and is reported again."""
    known = slow_gpu(before, GpuId(event.node_id, event.gpu_index))
    return known is None or known.reason != event.reason


def names_concerned(event: Event, before: PoolState, after: PoolState) -> tuple[str, ...]:
    """Their names, each once; the name "" for an event on a node or on the whole pool."""
    match event:
        case events.AllocationDecided():
            names = (*event.num_gpus_by_job, *before.num_gpus_by_job)
            return tuple(name for name in dict.fromkeys(names) if _share(before, name) != _share(after, name))
        case events.PlacementDecided():
            return tuple(placed.job_id for placed in event.placements)
        case events.ThroughputMeasured() | events.ProfileCompleted():
            key = event.profile_key
            return tuple(name for name, job in after.live_jobs.items() if is_profile_of(job, key))
        case events.JobAdmitted():
            return (event.job_id, *(name for name in event.replanned if name != event.job_id))
        case events.NodeLost() | events.NodeJoined():
            return ("", *(name for name, job in before.live_jobs.items() if event.node_id in job.nodes))
        case events.GpuFailing():
            if not is_new_failing(event, before):
                return ()
            gpu = GpuId(event.node_id, event.gpu_index)
            return ("", *(name for name, job in before.live_jobs.items() if gpu in job.gpus))
        case _ if isinstance(event, _ON_THE_POOL):
            return ("",)
        case _ if isinstance(event, LoadEvent):
            return (event.load_id,)
        case _:
            name = getattr(event, "job_id", "")
            return (name,) if name else ()


def names_changed(message: Event | PlanDecided, before: PoolState, after: PoolState) -> set[str]:
    """The jobs and padding loads that a message of the ledger concerns, or whose plan it changes."""
    parts = message.events if isinstance(message, PlanDecided) else (message,)
    names = {name for event in parts for name in names_concerned(event, before, after)}
    if isinstance(message, PlanDecided):  # a plan may change the schedules of any jobs
        names |= {name for name, job in before.live_jobs.items() if after.live_jobs.get(name) is not job}
    return names - {""}


def is_profile_of(job: Job, profile_key: str) -> bool:
    """Whether the live job waits for this scaling curve, or trains by it."""
    return job.live and job.spec is not None and profile_key in (job.spec.profile_key, job.spec.measured_key)


def _share(state: PoolState, name: str) -> int:
    job = state.job(name)
    return 0 if job is None else job.num_gpus


# --- The events of a ledger's messages as flat values, for tables and JSON -----------------------------


def event_rows(stored: LedgerRecord, message: LedgerMessage, job_id: str = "") -> Iterator[dict[str, Any]]:
    """The events of one message as flat values; with job_id only those that concern it."""
    parts: tuple[Event, ...] = ()
    if not isinstance(message, Unreadable):
        parts = message.events if isinstance(message, PlanDecided) else (message,)
    source = _writer(stored.subject, message)
    if isinstance(message, Unreadable) and not job_id:
        yield {"sequence": stored.sequence, "at_s": stored.stored_at_s, "from": source, "type": "unreadable"}
    for event in parts:
        if not job_id or concerns(event, job_id):
            yield {
                "sequence": stored.sequence,
                "at_s": stored.stored_at_s,
                "from": source,
                "type": type(event).__name__,
                **({"based_on": message.based_on} if isinstance(message, PlanDecided) else {}),
                "fields": summary(event),
            }


def _writer(subject: str, message: LedgerMessage) -> str:
    """The service that wrote the message; the node, if that is its executor."""
    if isinstance(message, PlanDecided):
        return message.service
    if isinstance(message, EpochBegan):
        return "operator"
    kind, *names = subject.split(".")[3:]  # behind ef.ledger.POOL
    if kind == "job" and len(names) > 1:  # ef.ledger.POOL.job.JOB.NODE
        return names[1]
    if kind == "node" and not (isinstance(message, NodeLost) and message.reason == "silent"):
        return names[0]
    return kind if isinstance(message, Unreadable) else "monitor"


def concerns(event: Event, job_id: str) -> bool:
    """Whether the event names the job: as its subject, in an allocation, a placement or a replanned schedule."""
    if getattr(event, "job_id", "") == job_id:
        return True
    placed = (placement.job_id for placement in getattr(event, "placements", ()))
    return (
        job_id in placed or job_id in getattr(event, "num_gpus_by_job", ()) or job_id in getattr(event, "replanned", ())
    )

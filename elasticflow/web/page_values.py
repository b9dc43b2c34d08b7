"""What the page shows, as values for JSON. Pure.

The texts are those of the command line. Times are seconds since 1970.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, NamedTuple

from elasticflow.history.formatting import gpus_of_types, offer_in_words, schedule_in_words, spec_in_words
from elasticflow.history.job_history import HistoryEntry
from elasticflow.history.pool_views import JobView, NodeView, gpu_type_of, job_view, load_views, node_views
from elasticflow.history.tables import ranking_of, swept_in_words
from elasticflow.shared.messages.gpus import ShareSchedule, segments
from elasticflow.shared.state.finish_time import expected_finish_s, is_silent, margin_s, silent_from_s, speed_now
from elasticflow.shared.state.gpu_types import count_by_type, num_added_by_type, shown_type
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, Usage, gpu_hours_by_type, num_gpus_by_type
from elasticflow.shared.state.promise import promise_of
from elasticflow.times import duration_in_words
from elasticflow.web.pool_history import FeedEntry, JobTrack, PoolHistory

# --- expectations --------------------------------------------------------------------------------------
# What is expected of a job as long as nothing new is reported: values that a browser reads at any later time. Pure.
#
# The page draws itself anew each second without asking the server. So the server says now what its functions will say
# then: each value holds after one time, up to the next.


def expectations(job: Job) -> list[dict[str, Any]]:
    """The expectations in the order of time. finish_s: of a live job, never before now. silent_since_s: of its last
    report, if it is silent."""
    silent_at_s = silent_from_s(job) if job.live else None
    deadline_s = job.deadline_s if job.live else None
    return [
        {
            "after_s": after_s,
            "promise": promise_of(job, now_s).value,
            "finish_s": expected_finish_s(job, now_s),
            "has_margin": margin_s(job, now_s) is not None,
            "iterations_per_s": speed_now(job, now_s) if job.live else job.iterations_per_s,
            "silent_since_s": job.progressed_at_s if job.live and is_silent(job, now_s) else None,
        }
        for after_s in sorted({0.0, *(at_s for at_s in (silent_at_s, deadline_s) if at_s is not None)})
        for now_s in (math.nextafter(after_s, math.inf),)
    ]


def expected_at(row: Mapping[str, Any], now_s: float) -> Mapping[str, Any]:
    """The expectations of a row that hold at this time, as words.js finds them."""
    found: Sequence[Mapping[str, Any]] = row["expectations"]
    return next(each for each in reversed(found) if each["after_s"] < now_s or each is found[0])


def finish_at(row: Mapping[str, Any], now_s: float) -> float | None:
    finish_s: float | None = expected_at(row, now_s)["finish_s"]
    return finish_s if finish_s is None or not row["live"] else max(now_s, finish_s)


def margin_at(row: Mapping[str, Any], now_s: float) -> float | None:
    finish_s = finish_at(row, now_s)
    return row["deadline_s"] - finish_s if expected_at(row, now_s)["has_margin"] and finish_s is not None else None


def sentence_at(row: Mapping[str, Any], now_s: float) -> str:
    """The sentence: "running on 4 GPUs, iteration 120 of 300; the expected finish is 51.0s before its deadline"."""
    margin_s, silent_since_s = margin_at(row, now_s), expected_at(row, now_s)["silent_since_s"]
    words = [row["sentence"]]
    if silent_since_s is not None:
        words.append(f"no progress reported for {duration_in_words(now_s - silent_since_s)}")
    if margin_s is not None:
        finish = "the expected finish is" if row["live"] else "it ended"
        words.append(
            f"{finish} {duration_in_words(abs(margin_s))} {'before' if margin_s >= 0 else 'after'} its deadline"
        )
    return "; ".join(filter(None, (*words, row["explanation"])))


# --- page values ---------------------------------------------------------------------------------------

FEED_COUNT = 200  # sentences on the page of the pool
MAX_JOBS = 2_000  # of one update: the live and the newest; a row has about 700 bytes
_DAY_S = 86_400.0
_FOLDERS = re.compile(r"(?<![\w./~-])/(?:[^\s/'\":;,()]+/)+(?=[^\s/])")  # of an absolute path
_DIGEST = re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])([0-9a-f]{6})[0-9a-f]{10,}\b")
_OF_A_TIME = ("promise", "expected_finish_s", "margin_s", "iterations_per_s", "silent_s")  # see `expectations`
_OF_A_JOB = tuple(field.name for field in fields(JobView) if field.name not in (*_OF_A_TIME, "offers", "goals"))
_DECIDED_AT_S = attrgetter("decided_at_s")
_OF_A_NODE = tuple(field.name for field in fields(NodeView))
_OF_A_SENTENCE = tuple(field.name for field in fields(HistoryEntry))


class Known(NamedTuple):
    """What a browser has: the state of a past, as it was shown for this time."""

    state: PoolState
    now_s: float


def pool_update(history: PoolHistory, now_s: float, *, after: int) -> dict[str, Any]:
    """What messages after this sequence have changed; everything if it is 0."""
    state = history.state
    has_new_nodes = history.nodes_changed_sequence > after
    return _update(history, state, now_s, _shown(history, state, after), has_new_nodes=has_new_nodes, after=after)


def past_update(history: PoolHistory, state: PoolState, now_s: float, known: Known | None) -> dict[str, Any]:
    """The pool at another time: all of it, or what differs from a state that the browser has. gone: names of jobs.

    Nodes are part of the whole only: a replay does not draw them, and their rows take longer than all else.
    """
    jobs = _shown(history, state, 0)
    if known is None:
        return _update(history, state, now_s, jobs, has_new_nodes=True, after=0) | {"whole": True, "gone": []}
    before = {job.job_id: job for job in _shown(history, known.state, 0)}
    changed = [job for job in jobs if before.pop(job.job_id, None) != job]
    update = _update(history, state, now_s, changed, has_new_nodes=False, after=0)
    return update | {"whole": False, "gone": list(before)}


def _shown(history: PoolHistory, state: PoolState, after: int) -> list[Job]:
    """The jobs that a later message concerns, in no order: at most MAX_JOBS, those at risk and the live ones first."""
    if after:
        changed = [job for name in history.changed_after(after) if (job := state.job(name)) is not None]
        live, ended = [job for job in changed if job.live], [job for job in changed if not job.live]
    else:
        of_state = (state.live_jobs, state.ended_jobs)
        live, ended = ([job for name, job in jobs.items() if name in history.tracks] for jobs in of_state)
    if len(live) > MAX_JOBS:
        live.sort(key=lambda job: (not job.at_risk, -job.decided_at_s))
    if len(live) + len(ended) > MAX_JOBS:
        ended.sort(key=_DECIDED_AT_S, reverse=True)
    return (live + ended)[:MAX_JOBS]


def _update(
    history: PoolHistory, state: PoolState, now_s: float, jobs: list[Job], *, has_new_nodes: bool, after: int
) -> dict[str, Any]:
    feed = history.feed_until(state.sequence, after=after, count=FEED_COUNT)
    return {
        "sequence": state.sequence,
        "now_s": now_s,
        "num_gpus": sum(node.num_gpus for node in state.nodes.values() if node.alive),  # also of draining nodes
        "num_gpus_by_type": num_gpus_by_type(state),
        "num_gpus_used": sum(len(job.gpus) for job in state.live_jobs.values()),
        "num_forgotten": state.num_forgotten,
        "num_jobs": len(state.live_jobs) + len(state.ended_jobs),
        "jobs": [_job_row(state, job, history.tracks.get(job.job_id), now_s) for job in jobs],
        "nodes": [{name: getattr(view, name) for name in _OF_A_NODE} for view in node_views(state)]
        if has_new_nodes
        else None,
        "loads": [
            {**asdict(view), "progress": view.progress, "tasks_in_words": view.tasks_in_words}
            for view in load_views(state, now_s, ended=True)
        ],
        "quotes": [
            {
                "job_id": quote.job_id,
                "deadline_s": quote.deadline_s,
                "until_s": quote.until_s,
                "promised": parts_with_gpus(quote.schedule),
            }
            for quote in state.quotes_at(now_s)
        ],
        "feed": [feed_row(entry) for entry in feed],
    }


def job_detail(history: PoolHistory, state: PoolState, job: Job, now_s: float) -> dict[str, Any]:
    """The page of one job."""
    track = history.tracks.get(job.job_id) or JobTrack()
    spec = job.spec
    return {
        "row": _job_row(state, job, track, now_s),
        "spec": spec_in_words(spec) if spec else "",
        "hyperparameters": dict(spec.hyperparameters) if spec else {},
        "promise": schedule_in_words(job.minimum_satisfactory_share) if job.minimum_satisfactory_share else "",
        "offers": [{**asdict(offer), "text": offer_in_words(offer, spec, job.decided_at_s)} for offer in job.offers],
        "traceback": job.traceback,
        "history": [asdict(entry) for entry in track.known_at(state.sequence, track.history)],
        "reports": [asdict(report) for report in track.known_at(state.sequence, track.reports)],
    }


def tenant_rows(state: PoolState, now_s: float, *, more: Iterable[str] = ()) -> list[dict[str, Any]]:
    """What each tenant was promised in the last 24 hours, and its limits. By type where the pool has several.

    more: tenants beside those of the state.
    """
    tenants = {*more, *state.usage, *state.config.quotas, *(job.tenant for job in state.live_jobs.values())}
    return [_tenant_row(state, tenant, now_s) for tenant in sorted(tenants)]


def feed_row(entry: FeedEntry) -> dict[str, Any]:
    """The row of an entry. A sentence names files, not the pool's folders and digests; the page of a job has all."""
    row = {"name": entry.name, **{name: getattr(entry.entry, name) for name in _OF_A_SENTENCE}}
    return row | {"text": _DIGEST.sub(r"\1…", _FOLDERS.sub("…/", row["text"]))}


def _tenant_row(state: PoolState, tenant: str, now_s: float) -> dict[str, Any]:
    all_usage = state.usage.get(tenant, ())
    usage = [used for used in all_usage if now_s - used.at_s < _DAY_S]
    live = [job for job in state.live_jobs.values() if job.tenant == tenant]
    quota = state.config.quota(tenant)
    first_type = shown_type(state, "")
    return {
        "tenant": tenant,
        "num_live_jobs": len(live),
        "num_gpus": sum(len(job.gpus) for job in live),
        "num_gpus_by_type": count_by_type(state, (gpu for job in live for gpu in job.gpus)) if first_type else {},
        "num_promised_jobs": sum(used.num_jobs for used in usage),
        "promised_gpu_hours": _gpu_hours_since(usage, now_s - _DAY_S),
        "promised_gpu_hours_by_type": gpu_hours_by_type(usage, first_type) if first_type else {},
        "max_jobs_per_day": quota.max_jobs_per_day,
        "max_gpu_hours_per_day": quota.max_gpu_hours_per_day,
        "budgets": [
            {**asdict(budget), "gpu_hours": _gpu_hours_since(all_usage, now_s - budget.window_s)}
            for budget in quota.budgets
        ],
    }


def _gpu_hours_since(usage: Iterable[Usage], since_s: float) -> float:
    return sum(used.gpu_seconds for used in usage if used.at_s > since_s) / 3_600.0


def _job_row(state: PoolState, job: Job, track: JobTrack | None, now_s: float) -> dict[str, Any]:
    view = job_view(
        job, now_s, state.gpu_limits.get(job.job_id), gpu_type_of(state, job), num_added_by_type(state, job)
    )
    steps = track.known_at(state.sequence, track.steps) if track else []
    return {
        **{name: getattr(view, name) for name in _OF_A_JOB},
        "progress": view.progress,
        "live": job.live,
        "expectations": expectations(job),
        "swept_in_words": swept_in_words(view.swept),
        "ranking": ranking_of((view,)) if view.sweep else None,
        "sentence": _sentence(view),
        "gpus_in_words": _gpus_in_words(view),
        "steps": [[step.at_s, step.num_gpus] for step in steps],
        "promised": parts_with_gpus(job.planned_share or job.minimum_satisfactory_share) if job.live else [],
        "submittable": job.spec is not None and not job.profile_only,
        "global_batch_size": job.spec.global_batch_size if job.spec else 0,
    }


def _sentence(view: JobView) -> str:
    """The sentence, such as "running on 4 GPUs, iteration 120 of 300"; the page adds what is expected."""
    words = [view.activity_in_words + (f" on {_gpus_in_words(view)}" if view.num_gpus else "")]
    if view.max_iterations:
        words.append(f"iteration {view.iteration} of {view.max_iterations}")
    return ", ".join(words)


def _gpus_in_words(view: JobView) -> str:
    return gpus_of_types(view.num_gpus, view.gpu_type, view.num_added_gpus_by_type)


def parts_with_gpus(schedule: ShareSchedule) -> list[list[float]]:
    """Start, end and GPUs of each."""
    return [[start_s, end_s, num_gpus] for start_s, end_s, num_gpus in segments(schedule) if num_gpus]


# --- policy names -------------------------------------------------------------------------------------
# The policies that a replay can compare with, by name: those of the simulator, which the client does not import.

POLICIES = (
    "selective",
    "first-come",
    "elasticflow-algorithms",
    "edf",
    "edf-64",
    "edf-admission",
    "edf-admission-64",
    "edf-elastic-late-last",
    "edf-elastic-reserving",
    "gandiva",
    "tiresias",
    "tiresias-3250-7200",
    "elastic-tiresias",
    "themis",
    "themis-slots-60",
    "themis-slots-240",
    "chronus",
    "chronus-ticks",
    "pollux-fixed-batch",
    "weighted-fair-sharing",
    "static-priority",
)

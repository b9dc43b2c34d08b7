"""Output of `replay`: the folded pool as an object and as tables."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from elasticflow.history.formatting import gpus_by_type_in_words, types_in_words
from elasticflow.history.pool_views import NodeView, gpu_type_of, node_views
from elasticflow.shared.messages.event_summary import gpus_in_words, summary
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.state.fold.ledger_fold import Unreadable
from elasticflow.shared.state.gpu_types import num_added_by_type
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState, num_gpus_by_type
from elasticflow.simulator.replay.recorded_ledger import Entry
from elasticflow.simulator.replay.retaken_decisions import Difference

_PHASE_STYLES = {
    Phase.PROFILING: "cyan",
    Phase.PROFILED: "green",
    Phase.ADMITTED: "blue",
    Phase.FINISHED: "green",
    Phase.FAILED: "red",
    Phase.CANCELLED: "yellow",
    Phase.REJECTED: "magenta",
}


def clock_time(at_s: float) -> str:
    """An instant in ISO 8601, in UTC: the same on every machine."""
    return datetime.fromtimestamp(at_s, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- the state as one object ----------------------------------------------------------------------------


def as_object(state: PoolState, at_s: float, job_id: str | None = None) -> dict[str, Any]:
    """Jobs, nodes and curves at an instant, ready for JSON; only one job if job_id is given."""
    jobs = {**state.ended_jobs, **state.live_jobs}
    shown = sorted(jobs.values(), key=lambda job: (job.decided_sequence, job.job_id))
    return {
        "sequence": state.sequence,
        "at_s": at_s,
        "at": clock_time(at_s),
        "num_gpus": state.num_gpus,
        "num_gpus_by_type": num_gpus_by_type(state),
        "num_gpus_placed": sum(len(job.gpus) for job in state.live_jobs.values()),
        "jobs": [_job(state, job) for job in shown if job_id in (None, job.job_id)],
        "nodes": [_node(state, view) for view in node_views(state)],
        "curves": {
            key: {
                "iterations_per_s": {str(n): curve.iterations_per_s[n] for n in sorted(curve.iterations_per_s)},
                "complete": curve.complete,
                "dataset_size": curve.dataset_size,
            }
            for key, curve in sorted(state.curves.items())
        },
    }


def _job(state: PoolState, job: Job) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "tenant": job.tenant,
        "job_class": job.spec.job_class.value if job.spec else None,
        "phase": job.phase.value,
        "explanation": job.explanation,
        "num_gpus": job.num_gpus,
        "generation": job.generation,
        "gpu_type": gpu_type_of(state, job),
        "gpu_types": types_in_words(gpu_type_of(state, job), len(job.gpus), num_added_by_type(state, job)),
        "gpus": gpus_in_words(job.gpus),
        "training": job.training,
        "previous_generation": job.previous_generation
        and f"g{job.previous_generation.generation} on {gpus_in_words(job.previous_generation.gpus)}",
        "stopping": [f"g{s.generation} on {s.node_id}" for s in job.stopping],
        "iteration": job.iteration,
        "max_iterations": job.spec.max_iterations if job.spec else None,
        "iterations_per_s": job.iterations_per_s,
        "restarts": job.restarts,
        "at_risk": job.at_risk,
        "decided_at_s": job.decided_at_s,
        "deadline_s": job.deadline_s,
        "earliest_deadline_s": job.earliest_deadline_s,
        "ended_at_s": job.ended_at_s,
        "margin_s": margin_s(state, job),
    }


def margin_s(state: PoolState, job: Job) -> float | None:
    """Seconds from the job's end to its deadline; while it trains, from its predicted end."""
    if job.deadline_s is None or job.spec is None:
        return None
    if job.phase is Phase.FINISHED and job.ended_at_s is not None:
        return job.deadline_s - job.ended_at_s
    if not (job.live and job.training):
        return None
    speed = job.iterations_per_s or _predicted_speed(state, job)
    if not speed:
        return None
    return job.deadline_s - job.progressed_at_s - (job.spec.max_iterations - job.iteration) / speed


def _predicted_speed(state: PoolState, job: Job) -> float:
    """The speed predicted for a job that has not reported any so far."""
    from elasticflow.simulator.replay.counterfactual import placed_rate

    return placed_rate(state, job)


def _node(state: PoolState, node: NodeView) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "incarnation": state.nodes[node.node_id].incarnation,
        "alive": node.alive,
        "device": node.device,
        "gpu_type": node.gpu_type,
        "num_gpus": node.num_gpus,
        "num_gpus_placed": node.num_gpus - node.num_free_gpus,
        "num_padding_gpus": node.num_padding_gpus,
        "since_s": node.since_s,
        "until_s": node.until_s,
    }


# --- tables ---------------------------------------------------------------------------------------------


def tables(shown: Mapping[str, Any]) -> Group:
    """The object of `as_object` as tables."""
    by_type = shown["num_gpus_by_type"]
    types = f" ({gpus_by_type_in_words(by_type)})" if len(by_type) > 1 else ""
    placed = f"{shown['num_gpus_placed']} of {shown['num_gpus']} GPUs placed{types}"
    title = Text(f"sequence {shown['sequence']} at {shown['at']}, {placed}")
    return Group(
        title,
        headed("jobs", _jobs_table(shown)),
        headed("nodes", _nodes_table(shown)),
        headed("scaling curves", _curves_table(shown)),
    )


def plain_table(*columns: str) -> Table:
    """Columns without lines, like the tables of `eflow`."""
    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def headed(title: str, table: Table) -> Group:
    return Group(Text(f"\n{title}", style="italic"), table)


def _jobs_table(shown: Mapping[str, Any]) -> Table:
    table = plain_table()
    for name in ("JOB", "CLASS", "PHASE"):
        table.add_column(name, no_wrap=True)
    for name in ("SHARE", "GENERATION", "ITERATION", "RATE/S"):
        table.add_column(name, justify="right")
    with_type = any(job["gpu_type"] for job in shown["jobs"])
    if with_type:
        table.add_column("TYPE", no_wrap=True)
    table.add_column("GPUS")
    table.add_column("DEADLINE IN S", justify="right")
    table.add_column("MARGIN S", justify="right")
    for job in shown["jobs"]:
        end_s = job["ended_at_s"] or shown["at_s"]
        left_s = None if job["deadline_s"] is None else job["deadline_s"] - end_s
        margin = job["margin_s"]
        style = _PHASE_STYLES[job["phase"]]
        table.add_row(
            escape(job["job_id"]),
            (job["job_class"] or "").replace("_", "-"),
            f"[{style}]{job['phase']}[/]",
            str(job["num_gpus"]),
            str(job["generation"]),
            f"{job['iteration']}/{job['max_iterations'] or '?'}",
            _number(job["iterations_per_s"]),
            *([escape(job["gpu_types"])] if with_type else []),
            escape(job["gpus"] or ", ".join(job["stopping"])),
            _number(left_s),
            f"[red]{margin:.1f}[/]" if margin is not None and margin < 0 else _number(margin),
        )
    return table


def _nodes_table(shown: Mapping[str, Any]) -> Table:
    with_type = any(node["gpu_type"] for node in shown["nodes"])
    table = plain_table("NODE", "INCARNATION", "STATE", "DEVICE", *(["TYPE"] if with_type else []))
    for name in ("GPUS PLACED", "PADDING"):
        table.add_column(name, justify="right")
    for node in shown["nodes"]:
        table.add_row(
            escape(node["node_id"]),
            escape(node["incarnation"]),
            "[green]alive[/]" if node["alive"] else "[red]lost[/]",
            node["device"],
            *([escape(node["gpu_type"]) or "-"] if with_type else []),
            f"{node['num_gpus_placed']}/{node['num_gpus']}",
            str(node["num_padding_gpus"] or "-"),
        )
    return table


def _curves_table(shown: Mapping[str, Any]) -> Table:
    table = plain_table("PROFILE", "RATE/S BY GPUS", "COMPLETE")
    for key, curve in shown["curves"].items():
        speeds = "  ".join(f"{n}: {speed:.4g}" for n, speed in curve["iterations_per_s"].items())
        table.add_row(escape(key), speeds, "yes" if curve["complete"] else "no")
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


# --- event lines ---------------------------------------------------------------------------------------
# Output of `replay`: events as lines, and decisions that differ when they are retaken.


def event_rows(entry: Entry, job_id: str | None = None) -> Iterator[dict[str, Any]]:
    """The events of one ledger message, one row each; only those of the job if job_id is given."""
    place = {"sequence": entry.sequence, "at": clock_time(entry.stored_at_s)}
    message = entry.message
    if isinstance(message, Unreadable):
        if job_id is None:
            yield place | {"event": "unreadable", "service": "", "keys": {"problems": message.problems}}
        return
    events = message.events if isinstance(message, PlanDecided) else (message,)
    service = message.service if isinstance(message, PlanDecided) else ""
    for event in events:
        if job_id is None or _names(event, job_id):
            yield place | {"event": type(event).__name__, "service": service, "keys": summary(event)}


def _names(event: Any, job_id: str) -> bool:
    return (
        getattr(event, "job_id", None) == job_id
        or job_id in getattr(event, "num_gpus_by_job", ())
        or job_id in getattr(event, "replanned", ())
        or any(placed.job_id == job_id for placed in getattr(event, "placements", ()))
    )


def line(row: Mapping[str, Any]) -> Text:
    """A row of `event_rows` as one line."""
    text = Text()
    text.append(f"{row['sequence']:>7} ", style="dim")
    text.append(f"{row['at'][11:]} ")
    text.append(row["event"], style="bold")
    if row["service"]:
        text.append(f" by {row['service']}", style="cyan")
    for key, value in row["keys"].items():
        text.append(f" {key}=", style="dim")
        text.append(str(value))
    return text


def difference_lines(difference: Difference) -> Iterator[Text]:
    """The first decision that differs when retaken, field by field."""
    yield Text(
        f"the decision of {difference.service} at sequence {difference.sequence} "
        f"(based on {difference.based_on}, at {clock_time(difference.now_s)}) differs when retaken:",
        style="red",
    )
    for field in difference.fields:
        yield Text(f"  {field.path}: recorded {field.recorded!r:.300}, now {field.again!r:.300}")

"""The results of the jobs and of the padding load: a table, JSON, and a picture of GPUs over time."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from elasticflow.history.pool_views import padding_gpus
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.finish_time import promised_finish_s
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.load import LoadPhase
from examples.demo.cast import REJECTED_ON_PURPOSE
from examples.demo.padding import LOAD_ID, NUM_TASKS
from examples.demo.performance import Performance
from examples.pi import estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job's results; times are seconds after the start."""

    job_id: str
    job_class: str
    decision: str
    submitted_s: float
    deadline_s: float | None
    promised_finish_s: float | None
    finish_s: float | None
    margin_s: float | None
    gpus: tuple[int, ...]
    restarts: int
    metrics: Mapping[str, float]
    kept: bool  # no promise was broken, and it was decided as the demo means it


def rows(performance: Performance) -> tuple[Row, ...]:
    """One row for each job, in the order of submission."""
    state = performance.last
    jobs = (job for job in (*state.ended_jobs.values(), *state.live_jobs.values()) if not job.profile_only)
    in_order = sorted(jobs, key=lambda job: (_submitted_s(job, performance), job.decided_at_s))
    return tuple(_row(job, performance) for job in in_order)


def _row(job: Job, performance: Performance) -> Row:
    began = performance.began_at_s
    finish_s = job.ended_at_s - began if job.ended_at_s and job.phase is not Phase.REJECTED else None
    deadline_s = job.deadline_s - began if job.deadline_s else None
    promised_s = promised_finish_s(job)
    margin_s = deadline_s - finish_s if deadline_s and finish_s else None
    slo = job.spec is not None and job.spec.job_class is JobClass.SLO
    finished = job.phase is Phase.FINISHED
    return Row(
        job_id=job.job_id,
        job_class=job.spec.job_class.value if job.spec else "",
        decision="rejected" if job.phase is Phase.REJECTED else "admitted",
        submitted_s=_submitted_s(job, performance),
        deadline_s=deadline_s,
        promised_finish_s=promised_s - began if promised_s else None,
        finish_s=finish_s,
        margin_s=margin_s,
        gpus=_steps(job.job_id, performance),
        restarts=job.restarts,
        metrics={name: round(value, 3) for name, value in job.metrics.items()},
        kept=(job.job_id == REJECTED_ON_PURPOSE) == (job.phase is Phase.REJECTED)
        and (job.phase is Phase.REJECTED or (finished and (not slo or (margin_s or -1.0) >= 0))),
    )


def _submitted_s(job: Job, performance: Performance) -> float:
    """The time of the job's first event in the ledger."""
    first = next((at_s for at_s, state in performance.history if state.job(job.job_id)), job.decided_at_s)
    return first - performance.began_at_s


def _steps(job_id: str, performance: Performance) -> tuple[int, ...]:
    """GPUs that the job held, one number for each change."""
    held: list[int] = []
    for _, num_gpus in gpus_over_time(job_id, performance):
        if not held or held[-1] != num_gpus:
            held.append(num_gpus)
    return tuple(held[held[:1] == [0] : len(held) - (held[-1:] == [0])])


def gpus_over_time(job_id: str, performance: Performance) -> list[tuple[float, int]]:
    """(seconds after the start, GPUs placed), at every change of the pool."""
    points: list[tuple[float, int]] = []
    for at_s, state in performance.history:
        job = state.live_jobs.get(job_id)
        points.append((at_s - performance.began_at_s, len(job.gpus) if job else 0))
    return points


def busy_line(load: float, num_cores: int) -> str:
    """What to say if other programs use the machine: promises rest on speeds that they change. "" if they do not."""
    if load <= num_cores:
        return ""
    return f"this machine is busy (load {load:.1f} on {num_cores} cores): speeds may change, and promises be broken"


def table(all_rows: tuple[Row, ...]) -> Table:
    result = Table(title="What was promised, and what became of it (seconds after the start)", box=SIMPLE_HEAD)
    for column in ("job", "class", "decision", "deadline", "finish", "margin", "GPUs over time", "result"):
        numeric = column in ("deadline", "finish", "margin")
        result.add_column(column, justify="right" if numeric else "left", no_wrap=column != "GPUs over time")
    for row in all_rows:
        style = "" if row.kept else "bold red"
        result.add_row(
            row.job_id,
            row.job_class,
            row.decision,
            _seconds(row.deadline_s),
            _seconds(row.finish_s),
            _seconds(row.margin_s),
            " ".join(map(str, row.gpus)),
            next((f"{name} {row.metrics[name]:g}" for name in _SHOWN if name in row.metrics), ""),
            style=style,
        )
    return result


_SHOWN = ("accuracy", "held_out_loss", "loss")  # the job's first


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def load_is_complete(performance: Performance) -> bool:
    """Each task of the padding load has its result, and the ledger counts as many."""
    load = performance.last.loads.get(LOAD_ID)
    if load is None or load.phase is not LoadPhase.FINISHED:
        return False
    return load.num_results == len(_counts(performance)) == NUM_TASKS


def load_line(performance: Performance) -> str:
    """The padding load in one line, with the first error if a task has one."""
    counts = _counts(performance)
    words = [
        f"padding load {LOAD_ID}: {len(counts)} of {NUM_TASKS} tasks have their result",
        f"jobs took {num_gpus_taken(performance)} GPUs from it",
        *([f"pi is about {estimate(counts):.3f}"] if counts else []),
        *[str(result) for result in performance.task_results if isinstance(result, BaseException)][:1],
    ]
    return "; ".join(words)


def _counts(performance: Performance) -> list[int]:
    return [result for result in performance.task_results if isinstance(result, int)]


def num_gpus_taken(performance: Performance) -> int:
    """How often a job took a GPU that the padding load could use."""
    states = [state for _, state in performance.history]
    return sum(
        len(padding_gpus(before) - padding_gpus(after))
        for before, after in pairwise(states)
        if LOAD_ID in after.loads and after.loads[LOAD_ID].live
    )


def padding_gpus_over_time(performance: Performance) -> list[int]:
    """Idle GPUs that the padding load may use, at every change of the pool."""
    return [len(padding_gpus(state)) for _, state in performance.history]


_WIDTH = 1.25  # of the picture, in lengths of the demo: a far deadline must not squeeze the jobs
_HATCHED: dict[str, Any] = {"facecolor": "0.95", "edgecolor": "0.7", "hatch": "///", "linewidth": 0.0}


def draw(performance: Performance, all_rows: tuple[Row, ...], file: Path) -> None:
    """GPUs over time, stacked by job, idle ones that padding may use on top; dotted lines show the jobs' deadlines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [row for row in all_rows if row.gpus and row.decision == "admitted"]
    times = [at_s - performance.began_at_s for at_s, _ in performance.history]
    layers: list[list[int]] = [[n for _, n in gpus_over_time(row.job_id, performance)] for row in drawn]
    of_jobs = [sum(layer) for layer in zip(*layers, strict=True)]
    with_padding = list(map(sum, zip(of_jobs, padding_gpus_over_time(performance), strict=True)))
    figure, axes = pyplot.subplots(figsize=(11, 5), constrained_layout=True)
    colours = [pyplot.get_cmap("tab10")(index) for index in range(10)]
    axes.stackplot(times, *layers, labels=[row.job_id for row in drawn], colors=colours, step="post", alpha=0.85)
    axes.fill_between(times, of_jobs, with_padding, step="post", label="padding load, on idle GPUs", **_HATCHED)
    for colour, row in zip(colours, drawn, strict=False):
        if row.deadline_s is not None:
            axes.axvline(row.deadline_s, color=colour, linestyle=":", linewidth=1.5)
    axes.set(
        title="GPUs over time by job (dotted: its deadline, if it is near)",
        xlabel="seconds after the start",
        ylabel="GPUs",
        ylim=(0, performance.last.num_gpus or max(with_padding, default=1)),
    )
    axes.set_xlim(0, _WIDTH * max(times[-1], 1.0))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def as_json(all_rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    return [{name: getattr(row, name) for name in Row.__slots__} for row in all_rows]

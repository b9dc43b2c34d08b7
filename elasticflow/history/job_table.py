"""The table of jobs, as `eflow jobs`, `eflow watch` and a notebook show it."""

from rich.table import Table
from rich.text import Text

from elasticflow.history.formatting import types_in_words
from elasticflow.history.pool_views import JobView
from elasticflow.history.tables import Column, bar, state_word, table_of
from elasticflow.sdk.times import clock_time, duration_in_words


def jobs_table(views: tuple[JobView, ...], now_s: float, *, all_columns: bool = False) -> Table:
    """With a column of GPU types, where any job was admitted on one of several."""
    has_types = any(view.gpu_type for view in views)
    shown = (column for column in _COLUMNS if has_types or column is not _TYPE_OF_JOB)
    return table_of(shown, views, now_s, all_columns=all_columns)


def _time(at_s: float | None, now_s: float) -> str:
    return "-" if at_s is None else clock_time(at_s, now_s=now_s)


def _gpus(view: JobView) -> str:
    """As "4", or "4 of 2..8" for a job with a range of GPUs."""
    return f"{view.num_gpus or '-'}" + (f" of {view.gpu_range}" if view.gpu_range != ".." else "")


def margin_word(view: JobView) -> Text:
    """Time between the (expected) finish and the deadline: red if late, yellow if at risk."""
    if view.margin_s is None:
        return Text("-")
    style = "red" if view.margin_s < 0 else "yellow" if view.at_risk else "green"
    return Text(duration_in_words(view.margin_s), style=style)


_TYPE_OF_JOB: Column[JobView] = Column(
    name="TYPE",
    cell=lambda view, _: types_in_words(view.gpu_type, view.num_gpus, view.num_added_gpus_by_type) or "-",
)
_COLUMNS: tuple[Column[JobView], ...] = (
    Column(name="JOB", cell=lambda view, _: view.job_id),
    Column(name="STATE", cell=lambda view, _: state_word(view.activity)),
    Column(name="CLASS", cell=lambda view, _: view.job_class.replace("_", "-"), in_narrow=False),
    Column(name="GPUS", cell=lambda view, _: _gpus(view), right=True),
    _TYPE_OF_JOB,
    Column(name="PROGRESS", cell=lambda view, _: bar(view.progress), in_narrow=False),
    Column(
        name="ITERATION",
        cell=lambda view, _: f"{view.iteration}/{view.max_iterations}" if view.max_iterations else "-",
        right=True,
    ),
    Column(
        name="RATE/S",
        cell=lambda view, _: f"{view.iterations_per_s:.1f}" if view.iterations_per_s else "-",
        right=True,
    ),
    Column(
        name="FINISH",
        cell=lambda view, now_s: _time(view.expected_finish_s, now_s),
        right=True,
        in_narrow=False,
    ),
    Column(name="DEADLINE", cell=lambda view, now_s: _time(view.deadline_s, now_s), right=True),
    Column(name="MARGIN", cell=lambda view, _: margin_word(view), right=True),
)

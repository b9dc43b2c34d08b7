"""The table of jobs, as `eflow jobs`, `eflow watch` and a notebook show it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from elasticflow.history.formatting import types_in_words, value_in_words
from elasticflow.history.pool_views import JobView
from elasticflow.history.tables import STYLES, Column, bar, state_word, table_of
from elasticflow.shared.messages.job_spec import Scalar
from elasticflow.shared.state.promise import Promise
from elasticflow.times import clock_time, duration_in_words

# --- The jobs of one sweep, the best first: which configuration won ------------------------------------

_LOWER_IS_BETTER = ("loss", "error", "perplexity", "mse", "mae", "rmse", "cost", "seconds", "bits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The metric by which jobs are sorted, and whether its lowest value is the best."""

    metric: str
    lowest_first: bool

    @property
    def in_words(self) -> str:
        return f"{self.metric}, the {'lowest' if self.lowest_first else 'highest'} first"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedSweep:
    """views: sorted; those without the metric are last. metrics: all names, that of the ranking first."""

    views: tuple[JobView, ...]
    metrics: tuple[str, ...]
    ranking: Ranking | None  # None: no job has reported a metric


def ranked_sweep(views: Iterable[JobView], sweep: str, metric: str = "") -> RankedSweep:
    """The jobs of this sweep. metric: instead of the one that `ranking_of` takes."""
    of_sweep = [view for view in views if view.sweep == sweep]
    ranking = ranking_of(of_sweep, metric)
    if ranking is None:
        return RankedSweep(views=tuple(of_sweep), metrics=(), ranking=None)
    sign = 1.0 if ranking.lowest_first else -1.0

    def place(view: JobView) -> tuple[bool, float]:
        value = view.metrics.get(ranking.metric)
        return value is None, 0.0 if value is None else sign * value

    names = (ranking.metric, *sorted({name for view in of_sweep for name in view.metrics}))
    return RankedSweep(views=tuple(sorted(of_sweep, key=place)), metrics=tuple(dict.fromkeys(names)), ranking=ranking)


def ranking_of(views: Iterable[JobView], metric: str = "") -> Ranking | None:
    """A ranking by the metric that ends the jobs; else by the metric that most of them report, the first by name.

    A metric of a termination condition says which end is better. For others the name decides: of a loss or an error
    the lowest value is the best.
    """
    views = tuple(views)
    goals = {condition.metric: condition.comparison == "<=" for view in views for condition in view.goals}
    reported = Counter(name for view in views for name in view.metrics)
    if not metric:
        known = [name for name in goals if name in reported] or sorted(
            reported, key=lambda name: (-reported[name], name)
        )
        metric = known[0] if known else ""
    if metric not in reported:
        return None
    by_name = any(word in metric.lower() for word in _LOWER_IS_BETTER)
    return Ranking(metric=metric, lowest_first=goals.get(metric, by_name))


# --- job table -----------------------------------------------------------------------------------------


def jobs_table(views: tuple[JobView, ...], now_s: float, *, all_columns: bool = False) -> Table:
    """The table of jobs, with columns of GPU types and of the values of a sweep, where any job has some, and of the
    tenants of several."""
    has_value = {
        _TENANT: len({view.tenant for view in views}) > 1,
        _TYPE_OF_JOB: any(view.gpu_type for view in views),
        _SWEPT: any(view.swept for view in views),
    }
    shown = (column for column in _COLUMNS if has_value.get(column, True))
    return table_of(shown, views, now_s, all_columns=all_columns)


def sweep_table(ranked: RankedSweep, now_s: float) -> Table:
    """The jobs of one sweep, the best first: a column for each swept hyperparameter and each metric."""
    names = dict.fromkeys(name for view in ranked.views for name in view.swept)
    columns = (
        *(_value_column(name) for name in names),
        *(_metric_column(name) for name in ranked.metrics),
        *(column for column in _COLUMNS if column.name in ("STATE", "PROMISE", "ITERATION", "JOB")),
    )
    return table_of(sorted(columns, key=lambda column: column.name == "JOB"), ranked.views, now_s)


def swept_in_words(swept: Mapping[str, Scalar]) -> str:
    """The values in words, such as "learning_rate 0.1, global_batch_size 32"."""
    return ", ".join(f"{name} {value_in_words(value)}" for name, value in swept.items())


def _value_column(name: str) -> Column[JobView]:
    return Column(
        name=name.upper(), cell=lambda view, _: value_in_words(view.swept[name]) if name in view.swept else "-"
    )


def _metric_column(name: str) -> Column[JobView]:
    return Column(
        name=name.upper(),
        cell=lambda view, _: f"{view.metrics[name]:.4g}" if name in view.metrics else "-",
        right=True,
        rank=1,
    )


def _time(at_s: float | None, now_s: float) -> str:
    return "-" if at_s is None else clock_time(at_s, now_s=now_s)


def _gpus(view: JobView) -> str:
    """The GPUs of the job, such as "4", or "4 of 2..8" for a job with a range of GPUs."""
    return f"{view.num_gpus or '-'}" + (f" of {view.gpu_range}" if view.gpu_range != ".." else "")


def margin_word(view: JobView) -> Text:
    """Time between the (expected) finish and the deadline: red if late, yellow if at risk."""
    if view.margin_s is None:
        return Text("-")
    style = "red" if view.margin_s < 0 else "yellow" if view.promise == Promise.AT_RISK else "green"
    return Text(duration_in_words(view.margin_s), style=style)


_TENANT: Column[JobView] = Column(name="TENANT", cell=lambda view, _: view.tenant, rank=5)
_TYPE_OF_JOB: Column[JobView] = Column(
    name="TYPE",
    cell=lambda view, _: types_in_words(view.gpu_type, view.num_gpus, view.num_added_gpus_by_type) or "-",
    rank=5,
)
_SWEPT: Column[JobView] = Column(name="SWEPT", cell=lambda view, _: swept_in_words(view.swept) or "-", rank=5, least=12)
_COLUMNS: tuple[Column[JobView], ...] = (
    Column(name="JOB", cell=lambda view, _: view.job_id, least=16),
    _TENANT,
    _SWEPT,
    Column(name="STATE", cell=lambda view, _: Text(view.activity_in_words, style=STYLES.get(view.activity, ""))),
    Column(
        name="PROMISE", cell=lambda view, _: state_word("-" if view.promise == Promise.NONE else view.promise), rank=1
    ),
    Column(name="CLASS", cell=lambda view, _: view.job_class.replace("_", "-"), rank=10),
    Column(name="GPUS", cell=lambda view, _: _gpus(view), right=True, rank=3),
    _TYPE_OF_JOB,
    Column(name="PROGRESS", cell=lambda view, _: bar(view.progress), rank=9),
    Column(
        name="ITERATION",
        cell=lambda view, _: f"{view.iteration}/{view.max_iterations}" if view.max_iterations else "-",
        right=True,
        rank=4,
    ),
    Column(
        name="RATE/S",
        cell=lambda view, _: f"{view.iterations_per_s:.1f}" if view.iterations_per_s else "-",
        right=True,
        rank=7,
    ),
    Column(name="FINISH", cell=lambda view, now_s: _time(view.expected_finish_s, now_s), right=True, rank=8),
    Column(name="DEADLINE", cell=lambda view, now_s: _time(view.deadline_s, now_s), right=True, rank=6),
    Column(name="MARGIN", cell=lambda view, _: margin_word(view), right=True, rank=2),
)

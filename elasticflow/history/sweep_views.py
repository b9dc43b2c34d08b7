"""The jobs of one sweep, the best first: which configuration won. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from elasticflow.history.pool_views import JobView

_LOWER_IS_BETTER = ("loss", "error", "perplexity", "mse", "mae", "rmse", "cost", "seconds", "bits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """By which metric jobs are sorted, and whether its lowest value is the best."""

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
    """By the metric that ends the jobs; else by the metric that most of them report, the first by name.

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

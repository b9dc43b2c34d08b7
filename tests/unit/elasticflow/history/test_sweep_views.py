"""Which configuration of a sweep won, and by which metric."""

from dataclasses import replace

import pytest

from elasticflow.history.pool_views import JobView, job_view
from elasticflow.history.tables import ranked_sweep
from elasticflow.shared.messages.job_spec import MetricCondition
from elasticflow.shared.state.job import Job, Phase
from testbed.histories import NOW_S, spec

GOAL = MetricCondition(metric="accuracy", comparison=">=", value=0.9)


def member(
    rate: float, metrics: dict[str, float], *, sweep: str = "sw", goal: MetricCondition | None = None
) -> JobView:
    swept = replace(spec(), sweep=sweep, swept={"rate": rate}, metric_conditions=(goal,) if goal else ())
    job = Job(
        job_id=f"{sweep}-rate-{rate}", tenant="lab", spec=swept, phase=Phase.FINISHED, decided_at_s=NOW_S,
        decided_sequence=1, metrics=metrics,
    )  # fmt: skip
    return job_view(job, NOW_S)


def rates(views: tuple[JobView, ...]) -> list[object]:
    return [view.swept["rate"] for view in views]


def test_the_best_is_first_and_jobs_without_the_metric_are_last() -> None:
    views = (
        member(0.1, {}),
        member(0.2, {"loss": 3.0}),
        member(0.3, {"loss": 1.0, "extra": 1.0}),
        member(0.4, {"loss": 0.0}, sweep="other"),
    )
    ranked = ranked_sweep(views, "sw")
    assert (rates(ranked.views), ranked.metrics) == ([0.3, 0.2, 0.1], ("loss", "extra"))
    assert ranked.ranking is not None
    assert ranked.ranking.in_words == "loss, the lowest first"


@pytest.mark.parametrize(
    ("goal", "by", "first"),
    [
        (None, "", 0.2),  # accuracy is before loss: both are reported by all
        (None, "loss", 0.1),
        (GOAL, "", 0.2),
        (replace(GOAL, comparison="<="), "", 0.1),  # the condition says that lower is better
    ],
)
def test_the_metric_that_ends_a_job_ranks_a_sweep(goal: MetricCondition | None, by: str, first: float) -> None:
    views = tuple(member(rate, {"loss": rate, "accuracy": rate}, goal=goal) for rate in (0.1, 0.2))
    assert rates(ranked_sweep(views, "sw", by).views)[0] == first


def test_without_any_metric_the_jobs_keep_their_order() -> None:
    ranked = ranked_sweep((member(0.2, {}), member(0.1, {})), "sw")
    assert (rates(ranked.views), ranked.ranking, ranked.metrics) == ([0.2, 0.1], None, ())

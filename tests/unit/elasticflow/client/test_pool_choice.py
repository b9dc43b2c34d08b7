"""Which of several pools gets a job, from what they have quoted."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.client.pool_choice import keeps_deadline, pools_in_order
from elasticflow.shared.messages.commands import DeadlineQuoted
from elasticflow.shared.messages.job_spec import JobClass
from testbed.histories import NOW_S, spec

WITHIN_100_S = replace(spec(), deadline_s=None, deadline_in_s=100.0)
NOTHING = DeadlineQuoted(earliest_deadline_s=None, explanation="its speed is unknown", num_gpus=8, at_s=NOW_S)


def quoted(in_s: float, gpu_seconds: float = 80.0, num_gpus: int = 8, at_s: float = NOW_S) -> DeadlineQuoted:
    return DeadlineQuoted(earliest_deadline_s=at_s + in_s, gpu_seconds=gpu_seconds, num_gpus=num_gpus, at_s=at_s)


def test_the_earliest_completion_is_first_and_the_late_pool_last() -> None:
    quotes = {"late": quoted(101.0), "slow": quoted(90.0), "fast": quoted(50.0)}
    assert pools_in_order(quotes, WITHIN_100_S) == ("fast", "slow", "late")


def test_in_one_second_the_pool_counts_of_which_the_job_takes_the_smaller_part() -> None:
    quotes = {"small": quoted(50.1), "large": quoted(50.9, num_gpus=64), "cheap": quoted(50.5, gpu_seconds=9.0)}
    assert pools_in_order(quotes, WITHIN_100_S) == ("cheap", "large", "small")


def test_equal_pools_are_asked_in_the_order_of_the_user() -> None:
    assert pools_in_order({"b": quoted(50.0), "a": quoted(50.0)}, WITHIN_100_S) == ("b", "a")


def test_a_pool_that_must_measure_first_comes_before_one_that_is_too_late() -> None:
    quotes = {"later": quoted(300.0), "late": quoted(200.0), "unknown": NOTHING, "kept": quoted(100.0)}
    assert pools_in_order(quotes, WITHIN_100_S) == ("kept", "unknown", "late")


def test_a_pool_without_gpus_for_the_job_is_asked_only_if_no_other_is_left() -> None:
    without = replace(NOTHING, num_gpus=0)
    assert pools_in_order({"without": without, "late": quoted(200.0)}, WITHIN_100_S) == ("late",)
    assert pools_in_order({"without": without, "too": without}, WITHIN_100_S) == ("without",)
    assert pools_in_order({}, WITHIN_100_S) == ()


def test_a_relative_deadline_counts_from_each_quote_and_an_absolute_one_does_not() -> None:
    ahead = quoted(90.0, at_s=NOW_S + 3_600.0)  # this pool's clock is an hour ahead
    assert keeps_deadline(ahead, WITHIN_100_S)
    assert not keeps_deadline(ahead, replace(spec(), deadline_s=NOW_S + 100.0, deadline_in_s=None))


def test_a_job_without_a_deadline_goes_where_it_would_end_first() -> None:
    free = replace(spec(), job_class=JobClass.BEST_EFFORT, deadline_s=None, deadline_in_s=None)
    quotes = {"slow": quoted(5_000.0), "unknown": NOTHING, "fast": quoted(4_000.0)}
    assert pools_in_order(quotes, free) == ("fast", "slow", "unknown")


@pytest.mark.parametrize("deadline_in_s", [1.0, 50.0, 100.0])
@given(seconds=st.lists(st.one_of(st.none(), st.integers(1, 120)), max_size=6, unique=True))
def test_no_pool_that_keeps_the_deadline_is_left_out_or_behind_one_that_does_not(
    deadline_in_s: float, seconds: list[int | None]
) -> None:
    quotes = {f"pool-{s}": NOTHING if s is None else quoted(float(s)) for s in seconds}
    job = replace(WITHIN_100_S, deadline_in_s=deadline_in_s)
    order = pools_in_order(quotes, job)
    keeping = [f"pool-{s}" for s in sorted(s for s in seconds if s is not None and s <= deadline_in_s)]
    assert list(order[: len(keeping)]) == keeping
    assert len(order) == len(set(order))
    assert bool(order) == bool(quotes)

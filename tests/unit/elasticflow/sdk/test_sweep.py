"""Sweeps: combinations, names, and the deadline that all jobs share."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from elasticflow.cli.sweep import combinations, in_sweep, job_ids, job_of
from elasticflow.errors import InvalidJob
from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.script import Script
from elasticflow.shared.messages.job_spec import Scalar
from testbed.histories import NOW_S, spec


class Net(ElasticJob):
    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 64, "learning_rate": 0.1, "depth": 3}
    max_iterations = 100


def test_combinations_are_the_product_of_all_values() -> None:
    swept = combinations({"learning_rate": (0.1, 0.01), "depth": (2, 3, 4)})
    assert len(swept) == 6
    assert swept[:2] == ({"learning_rate": 0.1, "depth": 2}, {"learning_rate": 0.1, "depth": 3})


def test_more_than_a_thousand_combinations_are_refused() -> None:
    assert len(combinations({"x": range(1000)})) == 1000
    with pytest.raises(InvalidJob, match=r"100 x 11 = 1100 combinations are more than 1000"):
        combinations({"x": range(100), "y": range(11)})


def test_each_job_has_its_values_and_the_template_keeps_its_own() -> None:
    template = Net()
    made = job_of(template, {"learning_rate": 0.01, "global_batch_size": 32})
    assert made.hyperparameters == {"global_batch_size": 32, "learning_rate": 0.01, "depth": 3}
    assert template.hyperparameters["learning_rate"] == 0.1


def test_an_unknown_hyperparameter_is_named_with_the_nearest_one() -> None:
    with pytest.raises(InvalidJob) as wrong:
        job_of(Net(), {"learn_rate": 0.1, "dept": 3})
    assert wrong.value.problems == (
        "--sweep learn_rate: Net declares no such hyperparameter; did you mean learning_rate?",
        "--sweep dept: Net declares no such hyperparameter; did you mean depth?",
    )


def test_a_script_gets_its_values_as_arguments() -> None:
    made = job_of(Script("train.py", "--lr", "{lr}", "--tag={lr}-{other}"), {"lr": 0.1})
    assert isinstance(made, Script)
    assert made.arguments == ("--lr", "0.1", "--tag=0.1-{other}")
    assert "lr" not in made.hyperparameters
    with pytest.raises(InvalidJob, match=r"no argument of the script contains \{lr\}"):
        job_of(Script("train.py", "--lr", "0.1"), {"lr": 0.1})


def test_names_say_the_values_in_the_characters_of_an_id() -> None:
    swept = combinations({"lr": (0.1, 1e-05), "nesterov": (True,)})
    assert job_ids("digits", swept) == ("digits-lr-0_1-nesterov-true", "digits-lr-1e-05-nesterov-true")


def test_names_that_would_be_equal_or_too_long_end_in_a_number() -> None:
    assert job_ids("net", combinations({"x": ("a.b", "a_b")})) == ("net-x-a_b", "net-x-a_b--2")
    long = job_ids("net" * 20, combinations({"x": ("abcdef", "abcdeg")}))
    assert len(set(long)) == 2
    assert all(len(name) <= 64 for name in long)


def test_all_jobs_get_one_deadline() -> None:
    relative = replace(spec(), deadline_s=None, deadline_in_s=60.0)
    fixed = in_sweep(relative, "net", {"x": 1}, NOW_S)
    assert (fixed.deadline_s, fixed.deadline_in_s) == (NOW_S + 60.0, None)
    assert (fixed.sweep, fixed.swept) == ("net", {"x": 1})
    assert in_sweep(fixed, "net", {"x": 1}, NOW_S + 5.0) == fixed

"""The benchmark of the engine reads the workers' logs of their steps."""

import pytest

from benchmarks.engine.timed import Step, steps
from benchmarks.engine.transient import shares


def test_a_step_belongs_to_all_workers_that_logged_it_and_ends_where_the_next_begins(tmp_path):
    (tmp_path / "11").write_text("0 10.0\n1 12.0\n1 13.0\n2 14.5\n")  # the second one twice, after a loss
    (tmp_path / "12").write_text("1 13.5\n2 14.0\n3 15.")  # and killed while it wrote
    assert steps(tmp_path) == [Step(10.0, 3.0, 1), Step(13.0, 1.0, 2)]


def test_the_share_of_the_ideal_is_what_was_done_of_what_could_have_been():
    """Ten seconds with four GPUs at 2 steps/s, ten with two at 1 step/s; the change out takes 2 s of preparation."""
    owned = [(100.0, 4), (110.0, 2)]
    slow = [Step(100.0 + i, 1.0, 2) for i in range(2)] + [Step(110.0 + i, 1.0, 2) for i in range(10)]
    fast = [Step(102.0 + 0.5 * i, 0.5, 4) for i in range(16)]
    share = shares([Step(99.0, 1.0, 2), *slow, *fast], owned, 120.0)
    assert share["steps_per_s"] == {"2": 1.0, "4": 2.0}
    assert share["steps"] == 2 + 16 + 10
    assert share["of_ideal"] == pytest.approx(28 / 30, abs=1e-4)
    assert share["of_own_gpus_alone"] == pytest.approx(28 / 20)

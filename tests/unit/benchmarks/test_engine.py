"""The arithmetic of the engine's benchmark: the model of stops, logs of steps, checkouts in turn, losses of nodes."""

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import paired
from benchmarks.engine.node_loss import first_without, judged
from benchmarks.engine.resizes import fitted, stops_by_num_gpus
from benchmarks.engine.timed import Step, steps
from benchmarks.engine.torchrun import set_beside
from benchmarks.engine.transient import shares
from testbed.fault_evidence import Step as LoggedStep

# --- the model of stops --------------------------------------------------------------------------------


def stops(seconds: float, per_byte: float, per_doubling: float) -> list[dict[str, float]]:
    return [
        {
            "bytes_moved": num_bytes,
            "num_workers": num_workers,
            "stop_s": seconds + per_byte * num_bytes + per_doubling * math.log2(num_workers),
        }
        for num_bytes in (0, 8_000_000, 800_000_000)
        for num_workers in (1, 2, 8)
    ]


def test_three_coefficients_are_found_though_bytes_are_many() -> None:
    model = fitted(stops(0.004, 5e-10, 0.001))
    assert model["seconds"] == pytest.approx(0.004)
    assert model["seconds_per_byte"] == pytest.approx(5e-10)
    assert model["seconds_per_doubling"] == pytest.approx(0.001)
    assert model["relative_error_rms"] < 1e-6


def test_no_coefficient_is_negative_where_more_workers_stop_for_less() -> None:
    model = fitted(stops(0.01, 5e-10, -0.001))
    assert model["seconds_per_doubling"] == 0
    assert model["relative_error_rms"] > 0.01


def test_a_change_has_torchruns_time_beside_it() -> None:
    resizes = [
        {"million_parameters": 1, "change": "2 -> 4", "stop_s": 0.02},
        {"million_parameters": 1, "change": "4 -> 8", "stop_s": 0.04},
    ]
    set_beside(resizes, [{"million_parameters": 1, "2 -> 4": 8.0, "4 -> 2": 9.0}])
    assert resizes[0]["torchrun_ratio"] == pytest.approx(400)
    assert "torchrun_s" not in resizes[1]


def test_the_longest_stop_counts_for_a_number_of_gpus() -> None:
    rows = stops(0.004, 5e-10, 0.001)
    assert stops_by_num_gpus(rows)["8"] == pytest.approx(0.404 + 0.003)
    assert list(stops_by_num_gpus(rows)) == ["1", "2", "8"]


# --- steps, and the shares of what was possible --------------------------------------------------------


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


# --- two checkouts -------------------------------------------------------------------------------------


BASE = Path("base")


def test_both_checkouts_are_measured_in_turn_and_compared_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def measured(root: Path, given: dict[str, Any]) -> dict[str, float]:
        asked.append(root)
        slow = 2.0 if root == BASE else 1.0
        return {f"{mode}_{name}": slow for mode in given["modes"] for name in ("step_s", "cpu_s", "ratio")}

    monkeypatch.setattr(paired, "_measured", measured)
    rows = paired.measure_paired(BASE, ["gpt"], million_parameters=25, num_workers=2, rounds=2, steps=5)
    assert [root == BASE for root in asked] == [True, False, False, True]
    assert [(row["model"], row["mode"]) for row in rows] == [("gpt", "fast"), ("gpt", "bitwise_8")]
    assert all((row["over_base"], row["cpu_over_base"]) == (0.5, 0.5) for row in rows)
    assert all((row["base_over_plain"], row["over_plain"]) == (2.0, 1.0) for row in rows)


# --- losses of nodes -----------------------------------------------------------------------------------


SURVIVORS, LOST = (1, 2), 3


def step(iteration: int, pid: int, began_s: float, ended_s: float) -> LoggedStep:
    return LoggedStep(job_id="losing", pid=pid, iteration=iteration, began_s=began_s, ended_s=ended_s)


BEFORE = [step(7, pid, 9.9, 10.1) for pid in (*SURVIVORS, LOST)] + [step(8, pid, 10.2, 10.3) for pid in SURVIVORS]
FIRST = [step(9, 1, 13.1, 13.2), step(9, 2, 13.2, 30.0)]
NEXT = step(10, 1, 30.0, 30.1)


def test_the_first_step_lasts_from_the_first_beginning_to_the_last_end() -> None:
    shared = step(8, LOST, 10.2, 10.3)
    assert first_without({LOST}, [*BEFORE, shared, *FIRST, NEXT], since_s=10.0) == (13.1, 30.0)


def test_the_first_step_is_not_known_until_all_survivors_have_ended_it() -> None:
    for completed in ([], FIRST[:1], FIRST):
        assert first_without({LOST}, [*BEFORE[:3], *completed], since_s=10.0) is None


def test_a_step_that_begins_in_time_and_stalls_is_above_the_goal() -> None:
    result = judged([{"begun_s": 3.1, "ended_s": 3.2}, {"begun_s": 3.1, "ended_s": 20.0}])
    assert (result["begun"]["above_goal"], result["ended"]["above_goal"]) == (0, 1)
    assert result["begun"]["worst_s"] == 3.1
    assert result["ended"]["worst_s"] == 20.0

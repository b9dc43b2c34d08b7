"""The model of stops recovers the parameters that generated them."""

import math

import pytest

from benchmarks.engine.stop_model import fitted, stops_by_num_gpus
from benchmarks.engine.torchrun import set_beside


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

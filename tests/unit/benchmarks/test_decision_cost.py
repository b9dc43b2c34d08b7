"""Power laws of measured times."""

import pytest

from benchmarks.scheduling.decision_cost import PowerLaw, fitted, law_rows, sheet_of, steps

SIZES = [10.0, 100.0, 1_000.0, 10_000.0, 100_000.0]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(exponent: float) -> None:
    law = fitted(SIZES, [3.0 * size**exponent for size in SIZES])
    assert law is not None
    assert (law.least, law.most) == (10.0, 100_000.0)
    assert law.exponent == pytest.approx(exponent)


def test_where_it_bends_the_law_is_of_the_large_sizes() -> None:
    times = [5.0, 5.0, 5.0, 50.0, 500.0]  # a constant part, then linear
    assert fitted(SIZES, times) == PowerLaw(exponent=pytest.approx(1.0), least=1_000.0, most=100_000.0)
    assert steps(SIZES, times) == pytest.approx([0.0, 0.0, 1.0, 1.0])


def test_no_law_is_told_of_fewer_than_three_sizes_or_of_noise() -> None:
    assert fitted(SIZES[:2], [1.0, 2.0]) is None
    assert fitted(SIZES, [1.0, 90.0, 1.0, 90.0, 1.0]) is None


def test_the_table_has_a_line_for_each_size_and_one_with_exponents() -> None:
    def row(size: float) -> dict[str, object]:
        spread = {"p50": size / 100, "p99": size / 50, "mean": 0.0, "max": 0.0}
        cpu_ms = {"decision": spread, "quote": spread, "plain pass": spread}
        return {
            "live_jobs": int(size),
            "num_gpus": 8,
            "decisions": 5,
            "admitted": 5,
            "pool_built_cpu_s": 1.0,
            "cpu_ms": cpu_ms,
        }

    rows = [row(size) for size in SIZES]
    assert law_rows(rows, "live_jobs")["quote"]["law"]["exponent"] == pytest.approx(1.0)
    sheet = sheet_of("Decisions", rows, "live_jobs")
    assert sheet.rows[1][3] == "1.00 / 2.00 ^1.00"
    assert sheet.rows[-1][3] == "1.00 (10 to 100,000)"

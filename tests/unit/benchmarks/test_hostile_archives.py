"""The table of the benchmark of hostile archives."""

from benchmarks.hostile_archives import ALONE, HARMLESS, HOSTILE, rows


def test_the_ratio_is_that_of_the_same_round() -> None:
    step_s = {ALONE: [0.2, 0.2], HARMLESS: [0.2, 0.4], HOSTILE: [0.21, 0.42]}
    failed = {ALONE: 0, HARMLESS: 7, HOSTILE: 5}
    *shown, processes = rows({"step_s": step_s, "failed": failed, "same_processes": False})
    assert [row.measured for row in shown] == ["200.0 ms", "300.0 ms", "1.05 x"]
    assert "5 jobs failed" in shown[-1].beside
    assert processes.measured == "OTHERS"

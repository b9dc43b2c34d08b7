"""The rows of the benchmark: each attack against the harmless job of the same round."""

from benchmarks.hostile_neighbours import ALONE, ATTACKS, HARMLESS, rows


def test_each_attack_is_compared_with_the_harmless_job_of_its_round() -> None:
    step_s = {ALONE: [0.05, 0.06], HARMLESS: [0.10, 0.20]} | {attack: [0.11, 0.26] for attack in ATTACKS}
    by_name = {row.what: row for row in rows(step_s)}
    assert by_name["a step, alone"].measured == "55.0 ms"
    assert by_name["a step, fork bomb"].measured == "1.20 x"

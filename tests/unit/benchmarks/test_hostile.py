"""The tables of the hostile benchmarks: each attack beside the harmless job of the same round."""

from benchmarks import hostile_archives, hostile_neighbours


def test_the_ratio_beside_hostile_archives_is_that_of_the_same_round() -> None:
    kinds = (hostile_archives.ALONE, hostile_archives.HARMLESS, hostile_archives.HOSTILE)
    step_s = dict(zip(kinds, ([0.2, 0.2], [0.2, 0.4], [0.21, 0.42]), strict=True))
    failed = dict(zip(kinds, (0, 7, 5), strict=True))
    *shown, processes = hostile_archives.rows({"step_s": step_s, "failed": failed, "same_processes": False})
    assert [row.measured for row in shown] == ["200.0 ms", "300.0 ms", "1.05 x"]
    assert "5 jobs failed" in shown[-1].beside
    assert processes.measured == "OTHERS"


def test_each_attack_is_compared_with_the_harmless_job_of_its_round() -> None:
    step_s = {hostile_neighbours.ALONE: [0.05, 0.06], hostile_neighbours.HARMLESS: [0.10, 0.20]}
    step_s |= {attack: [0.11, 0.26] for attack in hostile_neighbours.ATTACKS}
    by_name = {row.what: row for row in hostile_neighbours.rows(step_s)}
    assert by_name["a step, alone"].measured == "55.0 ms"
    assert by_name["a step, fork bomb"].measured == "1.20 x"

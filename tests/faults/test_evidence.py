"""The checks of faults detect workers that train one job at the same time, but not together."""

from pathlib import Path

import pytest

from testbed.fault_evidence import iterations_trained, overlaps


def write_log(data_dir: Path, name: str, pid: int, *steps: tuple[int, float, float]) -> None:
    log = data_dir / "logs" / "job" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        for iteration, began_s, ended_s in steps:
            print(f"step {iteration} of process {pid} begins at {began_s:.6f}", file=file)
            print(f"step {iteration} of process {pid} ends at {ended_s:.6f}", file=file)


@pytest.mark.parametrize(
    ("name", "iteration", "began_s", "num_overlaps"),
    [
        ("g2-r0", 5, 2.5, 0),  # afterwards
        ("g2-r0", 5, 1.5, 1),
        ("g1-r0", 5, 1.5, 1),
        ("g1-r1", 1, 1.5, 0),  # together
        ("g2-r1", 2, 1.5, 0),  # together, though not from the beginning
    ],
)
def test_who_trains_at_the_same_time_does_the_same_steps(
    tmp_path: Path, name: str, iteration: int, began_s: float, num_overlaps: int
) -> None:
    write_log(tmp_path, "g1-r0", 100, (0, 0.0, 1.0), (1, 1.0, 2.0))
    write_log(tmp_path, name, 200, (iteration, began_s, began_s + 1.0))
    assert len(list(overlaps(tmp_path))) == num_overlaps
    assert iterations_trained(tmp_path, "job") == {0, 1, iteration}

"""The evidence convicts: two generations that train at once, or one rank twice, are seen in what workers wrote."""

from pathlib import Path

import pytest

from tests.faults.evidence import iterations_trained, overlaps


def write_log(data_dir: Path, name: str, pid: int, *steps: tuple[int, float, float]) -> None:
    log = data_dir / "logs" / "job" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        for iteration, began_s, ended_s in steps:
            print(f"step {iteration} of process {pid} begins at {began_s:.6f}", file=file)
            print(f"step {iteration} of process {pid} ends at {ended_s:.6f}", file=file)


@pytest.mark.parametrize(
    ("name", "began_s", "num_overlaps"),
    [("g2-r0", 2.5, 0), ("g2-r0", 1.5, 1), ("g1-r1", 1.5, 0), ("g1-r0", 1.5, 1)],
)
def test_only_ranks_of_one_generation_train_side_by_side(
    tmp_path: Path, name: str, began_s: float, num_overlaps: int
) -> None:
    write_log(tmp_path, "g1-r0", 100, (0, 0.0, 1.0), (1, 1.0, 2.0))
    write_log(tmp_path, name, 200, (1, began_s, began_s + 1.0))
    assert len(list(overlaps(tmp_path))) == num_overlaps
    assert iterations_trained(tmp_path, "job") == {0, 1}

"""The GPU runs work where there is no GPU, as far as that is possible: on CPU slots, with little work."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.engine.device import Device
from benchmarks.gpu import parts
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.parts import PARTS, Part, PartName, measured_in_a_child

APP = typer.Typer()
APP.command()(main)


def test_weights_do_not_change_when_a_worker_dies_in_a_transfer() -> None:
    measured = measured_in_a_child(PartName.KILLS, Device.CPU, quick=True)
    assert measured["num_transfers"] > 2, measured
    assert measured["differences"] == []
    assert [row.measured for row in PARTS[PartName.KILLS].rows(measured)] == ["0"]


NUM_ROWS = {  # of the table; all others have one
    PartName.HASHES: 2,
    PartName.STEADY: 2,
    PartName.COMPILED_JOIN: 2,
    PartName.BANDWIDTH: 2,
    PartName.COMMUNICATOR: 2,
}


@pytest.mark.timeout(2400)  # of compilations, on a machine whose CPUs others use as well
@pytest.mark.parametrize("name", [name for name in PartName if name != PartName.KILLS])
def test_each_row_can_be_measured_on_cpus(name: PartName) -> None:
    """With little work, and gloo in NCCL's place, so that the one run on a rented GPU meets no error of the script."""
    measured = measured_in_a_child(name, Device.CPU, quick=True)
    assert "error" not in measured, measured
    rows = list(PARTS[name].rows(measured))
    assert len(rows) == NUM_ROWS.get(name, 1)
    for row in rows:
        assert row.measured
        assert row.goal in ("", row.measured) or name == PartName.MEMORY, row


def test_a_part_that_fails_is_named_and_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "gpu.json"
    only = ["--only", "bandwidth", "--only", "communicator", "--device", "cpu", "--quick", "--out", str(out)]
    limited = Part(PARTS[PartName.BANDWIDTH].measure, PARTS[PartName.BANDWIDTH].rows, limit_s=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(parts, "PARTS", {**PARTS, PartName.BANDWIDTH: limited})
        failed = CliRunner().invoke(APP, only)
    assert failed.exit_code == 1
    assert "not finished after 0 s" in json.loads(out.read_text())["bandwidth"]["error"]
    again = CliRunner().invoke(APP, only)
    assert again.exit_code == 0, again.output
    written = json.loads(out.read_text())
    assert written["bandwidth"]["pinned_to_host"] > 0
    assert all(written["communicator"]["free_bytes"])


def test_without_a_gpu_the_command_says_how_to_try_it(tmp_path: Path) -> None:
    refused = CliRunner().invoke(APP, ["--out", str(tmp_path / "gpu.json"), "--device", "cuda"])
    assert refused.exit_code == 2
    assert "--device cpu --quick" in refused.output

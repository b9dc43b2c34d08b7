"""The lease of a GPU runs where there is no GPU: each part with little work, and gloo in NCCL's place."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.parts import PARTS, PartName

ROOT = Path(__file__).parents[2]
ON_CPUS = ("--device", "cpu", "--quick")


def run(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def assert_measured(out: Path, ended: subprocess.CompletedProcess[str], *names: PartName) -> dict[str, Any]:
    """These parts, with their goals."""
    told = f"{ended.stdout}\n{ended.stderr}\n{out.with_suffix('.log').read_text()}"
    written = json.loads(out.read_text())
    assert set(names) == written.keys() & set(PartName), told
    for name in names:
        assert "error" not in written[name], told
        for what, measured, goal, *_ in written[name]["rows"]:
            assert goal in ("", measured), f"{what}: {measured}\n{told}"
            assert what in ended.stdout.replace("\n", " ") or len(what) > 40
    assert ended.returncode == 0, told
    return written


@pytest.mark.nightly("a part of a lease runs below; unit/benchmarks/test_gpu.py has the rest")
@pytest.mark.timeout(2400)  # on a machine whose CPUs others use as well
def test_each_part_of_a_lease_can_be_measured_on_cpus(tmp_path: Path) -> None:
    """So that the one run on a GPU that is lent meets no error of the script."""
    out = tmp_path / "gpu.json"
    names = [name for name, part in PARTS.items() if not part.is_more]
    written = assert_measured(out, run(out, "--lease", "2000", *ON_CPUS), *names)
    assert written["hashes"]["measured"]["gpt2"].keys() >= {"alone", "alone again", "4 workers", "restarted"}
    assert written["memory"]["measured"]["micro_batch_sizes"] == [0, 4, 2]
    assert written["tests"]["measured"]["skipped"] > 10
    again = run(out, "--lease", "1", *ON_CPUS)
    assert again.returncode == 0, "nothing is measured again"


@pytest.mark.nightly("these parts run only in the time that is left; the others run in the daily tests")
@pytest.mark.timeout(2400)
def test_what_is_measured_in_the_time_that_is_left_can_be_measured_on_cpus(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    names = [name for name, part in PARTS.items() if part.is_more]
    written = assert_measured(out, run(out, "--lease", "2000", *ON_CPUS, *(f"--only={name}" for name in names)), *names)
    assert written["kills"]["measured"]["num_transfers"] > 2


def test_a_part_without_time_is_skipped_and_measured_by_the_next_lease(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    skipped = run(out, "--lease", "10", "--only", "host", *ON_CPUS)
    assert skipped.returncode == 1
    assert "skipped: needs 20 s, " in skipped.stdout
    assert json.loads(out.read_text())["host"]["skipped"].startswith("needs 20 s, ")
    assert_measured(out, run(out, "--lease", "900", "--only", "host", *ON_CPUS), PartName.HOST)


def test_without_a_gpu_the_command_says_how_to_try_it(tmp_path: Path) -> None:
    refused = run(tmp_path / "gpu.json", "--device", "cuda")
    assert refused.returncode == 2
    words = refused.stderr.replace("│", " ").split()  # in a box of any width
    assert "--device cpu --quick" in " ".join(words)

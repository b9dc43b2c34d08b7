"""Two checkouts are measured in turn, and each mode's steps are divided round by round."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import paired

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

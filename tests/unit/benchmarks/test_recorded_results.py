"""Each recorded result makes its table: what the benchmarks print is tested without a run."""

import json
from typing import Any

import pytest

from benchmarks.engine import __main__ as engine
from benchmarks.heterogeneous import mixed_slots
from benchmarks.padding import __main__ as padding
from benchmarks.regressions.pages import RESULTS

NEWEST = {  # of each part
    "runners": "padding_quiet",
    "whole_loads": "padding_loads_quiet",
    "placements": "padding_loads_quiet",
    "beside_jobs": "padding_steps",
    "preempted": "padding_preempted",
    "fairness": "padding_preempted",
    "useful_shares": "padding_shares",
    "idle": "padding_shares",
    "kills": "padding_kills",
    "mixed_slots": "heterogeneous_mixed_slots",
    "resizes": "heterogeneous_resizes",
}
ROWS_OF = {name: part.rows for name, part in padding.PARTS.items()} | {
    "mixed_slots": mixed_slots.rows,
    "resizes": mixed_slots.resize_rows,
}


def recorded(file: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{file}.json").read_text())


@pytest.mark.parametrize("part", ROWS_OF)
def test_the_rows_of_a_recorded_result_have_numbers(part: str) -> None:
    rows = list(ROWS_OF[part](recorded(NEWEST[part])[part]))
    assert rows
    assert all(any(character.isdigit() for character in row.measured) for row in rows), rows


def test_recorded_results_of_the_engine_have_tables() -> None:
    results = recorded("engine") | recorded("engine_restores") | recorded("engine_secrets")
    assert {name: bool(part.table(results[name]).row_count) for name, part in engine.PARTS.items()} == dict.fromkeys(
        engine.PARTS, True
    )

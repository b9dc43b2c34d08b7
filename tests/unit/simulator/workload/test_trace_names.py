"""A trace that is neither a file nor bundled is refused with the names of those that are."""

from pathlib import Path

import pytest

from elasticflow.simulator.command_inputs import workload_of
from elasticflow.simulator.workload.csv_table import BadInput


@pytest.mark.parametrize(
    ("trace", "meant"),
    [
        ("nosuch", ""),
        ("smal", "; did you mean small?"),
        ("Bursty.csv", "; did you mean bursty?"),
        ("folder/jobs.csv", ""),
    ],
)
def test_an_unknown_trace_is_named_with_those_that_are_bundled(
    trace: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as refused:
        workload_of(trace, None, skip_bad=False, seed=0)
    assert str(refused.value) == f"{trace}: is no file, and none of the bundled traces bursty, small{meant}"


def test_a_bundled_trace_is_read_by_its_name() -> None:
    assert workload_of("small", None, skip_bad=False, seed=0).jobs

"""What the client refuses before it starts a training manager."""

from pathlib import Path
from typing import Any

import pytest

import elasticflow
from elasticflow import InvalidJob, TrainingOptions

SCRIPT = Path(__file__).parents[4] / "examples" / "ddp" / "elastic.py"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"checkpoint_every_s": 0.0}, "checkpoint_every_s: must be above 0, not 0.0"),
        ({"checkpoint_every_s": float("nan")}, "checkpoint_every_s: must be above 0, not nan"),
        ({"micro_batch_size": -1}, "micro_batch_size: must be from 0 to"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJob, match=says):
        TrainingOptions(**options)


def test_a_script_cannot_be_cut_into_tasks(tmp_path: Path) -> None:
    script = elasticflow.Script(str(SCRIPT)).set_hyperparameter(global_batch_size=8).term_condition(max_iterations=9)
    with pytest.raises(InvalidJob, match="a script cannot train as tasks of a padding load"):
        elasticflow.train(script, tmp_path)

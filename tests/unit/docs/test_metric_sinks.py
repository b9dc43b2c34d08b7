"""The sinks in the documents are those of the adapters, and are made where the job is described."""

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from elasticflow import ElasticJob
from elasticflow.adapters.tracking import Tracker
from elasticflow.shared.training_interface import running_job

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"


def sink_of(document: str, module: str) -> Any:
    """Of the only class in the document whose sink is of this adapter."""
    blocks = re.findall(r"```python\n(.*?)```", (HOW_TO / document).read_text(), re.DOTALL)
    (block,) = [block for block in blocks if f"elasticflow.adapters.{module} import" in block]
    names: dict[str, Any] = {"ElasticJob": ElasticJob}
    exec(dedent(block), names)  # the document's own text
    return names["Digits"].on_step


@pytest.mark.parametrize("module", ["mlflow", "wandb"])
def test_a_tracker_is_made_without_the_library_of_its_service(module: str) -> None:
    assert running_job() is None
    assert isinstance(sink_of("track-jobs.md", module), Tracker)


def test_a_document_without_the_sink_is_found() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        sink_of("train-with-libraries.md", "mlflow")

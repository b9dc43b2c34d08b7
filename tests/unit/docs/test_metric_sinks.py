"""The sinks for Weights & Biases and MLflow in the documents run, on modules that accept what the documents give."""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "train-with-libraries.md"
RUN_ID = "digits-7"
FED = [(1, {"loss": 0.5}), (2, {"loss": 0.25})]


def run_sink(module: str, fake: Any) -> None:
    """Feed two iterations to the sink that uses this module."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (sink,) = [block for block in blocks if f"{module}." in block and "def on_step" in block]
    names: dict[str, Any] = {module: fake, "RUN_ID": RUN_ID}
    exec(f"class Job:\n{indent(sink, '    ')}", names)  # the document's own text
    job = names["Job"]()
    for iteration, metrics in FED:
        job.on_step(iteration, metrics)


def test_weights_and_biases_resumes_one_run_and_logs_each_iteration() -> None:
    calls: list[tuple[Any, ...]] = []

    def init(*, project: str, id: str, resume: str) -> Any:
        calls.append(("init", project, id, resume))

        def log(data: dict[str, float], step: int) -> None:
            calls.append(("log", step, data))

        return SimpleNamespace(log=log)

    run_sink("wandb", SimpleNamespace(init=init))
    assert calls == [("init", "digits", RUN_ID, "allow"), *[("log", iteration, metrics) for iteration, metrics in FED]]


def test_mlflow_continues_one_run_and_logs_each_iteration() -> None:
    calls: list[tuple[Any, ...]] = []

    def start_run(*, run_id: str) -> None:
        calls.append(("start_run", run_id))

    def log_metrics(metrics: Mapping[str, float], step: int) -> None:
        calls.append(("log_metrics", step, metrics))

    fake = SimpleNamespace(
        active_run=lambda: True if any(name == "start_run" for name, *_ in calls) else None,
        set_tracking_uri=lambda uri: calls.append(("set_tracking_uri", uri)),
        start_run=start_run,
        log_metrics=log_metrics,
    )
    run_sink("mlflow", fake)
    assert calls == [
        ("set_tracking_uri", "http://mlflow:5000"),
        ("start_run", RUN_ID),
        *[("log_metrics", iteration, metrics) for iteration, metrics in FED],
    ]


def test_a_document_without_the_sink_is_found() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        run_sink("unknown", None)

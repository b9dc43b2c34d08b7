"""Serverless, deadline-guaranteed, elastic training: describe a job, get a promise, never count GPUs.

    import elasticflow

    class Digits(elasticflow.ElasticJob): ...

    answer = elasticflow.submit(Digits().set_deadline(within=600))  # JobAdmitted or JobRejected
    elasticflow.wait(answer.job_id)

Importing this imports no torch, and what talks to a pool only when it is used: workers import this too.
"""

import importlib
from typing import TYPE_CHECKING, Any

from elasticflow.job import ElasticJob
from shared.messages.job import JobClass, JobSpec, Scalar

if TYPE_CHECKING:
    from elasticflow.calls import (
        amend,
        cancel,
        checkpoint,
        hold,
        jobs,
        profile,
        quote,
        release,
        scale,
        submit,
        wait,
    )
    from elasticflow.client import Client
    from elasticflow.script import Script, TorchrunScript, elastic

__all__ = [
    "Client",
    "ElasticJob",
    "JobClass",
    "JobSpec",
    "Scalar",
    "Script",
    "TorchrunScript",
    "amend",
    "cancel",
    "checkpoint",
    "elastic",
    "hold",
    "jobs",
    "profile",
    "quote",
    "release",
    "scale",
    "submit",
    "wait",
]

_LIVES_IN = {
    "Client": "elasticflow.client",
    **dict.fromkeys(("Script", "TorchrunScript", "elastic"), "elasticflow.script"),
    **dict.fromkeys(
        (
            *("amend", "cancel", "checkpoint", "hold", "jobs", "profile"),
            *("quote", "release", "scale", "submit", "wait"),
        ),
        "elasticflow.calls",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _LIVES_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LIVES_IN[name]), name)

"""Serverless, deadline-guaranteed, elastic training: describe a job, get a promise, never count GPUs.

    import elasticflow

    class Digits(elasticflow.ElasticJob): ...

    decision = elasticflow.submit(Digits().set_deadline(within="10m"))  # JobAdmitted or JobRejected
    elasticflow.wait(decision.job_id)

All names are loaded at their first use: `import elasticflow` imports no library, and workers import only what a job's
class needs.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - a checkout or a copied folder; pip refuses by itself
    _RUNNING = ".".join(map(str, sys.version_info[:2]))
    raise ImportError(f"elasticflow needs Python 3.11 or newer; this is {_RUNNING} ({sys.executable})")

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticflow.client.client import Client
    from elasticflow.client.pool_endpoint import Endpoint
    from elasticflow.client.replies import CheckpointReply, Decision, ProfileReply
    from elasticflow.errors import (
        MissingExtra,
        NoAdmission,
        NoPoolHere,
        NotEnded,
        Undecided,
        UnknownJob,
        UnknownPool,
        UnknownQuote,
    )
    from elasticflow.history.pool_views import JobView
    from elasticflow.sdk.job import Condition, ElasticJob, InvalidJob
    from elasticflow.sdk.packaging import PackagingFailed
    from elasticflow.sdk.script import ElasticLoader, Script, TorchrunScript, elastic
    from elasticflow.sdk.synchronous import (
        amend,
        cancel,
        checkpoint,
        jobs,
        profile,
        quote,
        release,
        reserve,
        scale,
        submit,
        wait,
    )
    from elasticflow.sdk.times import Duration, Moment
    from elasticflow.shared.errors import (
        BadCredentials,
        ElasticFlowError,
        PermanentFailure,
        Retry,
        Stop,
        Unavailable,
    )
    from elasticflow.shared.messages.events import (
        AmendRejected,
        CancelRejected,
        CheckpointFailed,
        CheckpointRejected,
        CheckpointUpToDate,
        CheckpointWritten,
        DeadlineQuoted,
        GpuLimitsCleared,
        GpuLimitsRejected,
        GpuLimitsSet,
        JobAdmitted,
        JobAmended,
        JobCancelled,
        JobFailed,
        JobProfiled,
        JobRejected,
        QuoteRejected,
        QuoteReserved,
        RejectionReason,
    )
    from elasticflow.shared.messages.gpu_limits import GpuLimits
    from elasticflow.shared.messages.job_spec import JobClass, JobSpec, MetricCondition, Scalar
    from elasticflow.shared.messages.rejection import Offer
    from elasticflow.shared.messages.share_schedule import ShareSegment, segments

__version__ = "0.1.0"

__all__ = [
    "AmendRejected",
    "BadCredentials",
    "CancelRejected",
    "CheckpointFailed",
    "CheckpointRejected",
    "CheckpointReply",
    "CheckpointUpToDate",
    "CheckpointWritten",
    "Client",
    "Condition",
    "DeadlineQuoted",
    "Decision",
    "Duration",
    "ElasticFlowError",
    "ElasticJob",
    "ElasticLoader",
    "Endpoint",
    "GpuLimits",
    "GpuLimitsCleared",
    "GpuLimitsRejected",
    "GpuLimitsSet",
    "InvalidJob",
    "JobAdmitted",
    "JobAmended",
    "JobCancelled",
    "JobClass",
    "JobFailed",
    "JobProfiled",
    "JobRejected",
    "JobSpec",
    "JobView",
    "MetricCondition",
    "MissingExtra",
    "Moment",
    "NoAdmission",
    "NoPoolHere",
    "NotEnded",
    "Offer",
    "PackagingFailed",
    "PermanentFailure",
    "ProfileReply",
    "QuoteRejected",
    "QuoteReserved",
    "RejectionReason",
    "Retry",
    "Scalar",
    "Script",
    "ShareSegment",
    "Stop",
    "TorchrunScript",
    "Unavailable",
    "Undecided",
    "UnknownJob",
    "UnknownPool",
    "UnknownQuote",
    "__version__",
    "amend",
    "cancel",
    "checkpoint",
    "elastic",
    "jobs",
    "profile",
    "quote",
    "release",
    "reserve",
    "scale",
    "segments",
    "submit",
    "wait",
]

_NAMES_BY_MODULE = {
    "sdk.job": "Condition ElasticJob InvalidJob",
    "sdk.script": "ElasticLoader Script TorchrunScript elastic",
    "sdk.packaging": "PackagingFailed",
    "sdk.times": "Duration Moment",
    "sdk.synchronous": "amend cancel checkpoint jobs profile quote release reserve scale submit wait",
    "client.client": "Client",
    "client.pool_endpoint": "Endpoint",
    "client.replies": "CheckpointReply Decision ProfileReply",
    "errors": "MissingExtra NoAdmission NoPoolHere NotEnded Undecided UnknownJob UnknownPool UnknownQuote",
    "history.pool_views": "JobView",
    "shared.errors": "BadCredentials ElasticFlowError PermanentFailure Retry Stop Unavailable",
    "shared.messages.events": (
        "AmendRejected CancelRejected CheckpointFailed CheckpointRejected CheckpointUpToDate "
        "CheckpointWritten DeadlineQuoted GpuLimitsCleared GpuLimitsRejected GpuLimitsSet JobAdmitted "
        "JobAmended JobCancelled JobFailed JobProfiled JobRejected QuoteRejected QuoteReserved "
        "RejectionReason"
    ),
    "shared.messages.gpu_limits": "GpuLimits",
    "shared.messages.job_spec": "JobClass JobSpec MetricCondition Scalar",
    "shared.messages.rejection": "Offer",
    "shared.messages.share_schedule": "ShareSegment segments",
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

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
    from elasticflow.client.client import Client as Client
    from elasticflow.client.pool_endpoint import Endpoint as Endpoint
    from elasticflow.client.pool_front import NamedPool as NamedPool
    from elasticflow.client.pool_front import PoolAnswer as PoolAnswer
    from elasticflow.client.pool_front import PoolsDecision as PoolsDecision
    from elasticflow.client.replies import CheckpointReply as CheckpointReply
    from elasticflow.client.replies import Decision as Decision
    from elasticflow.client.replies import ProfileReply as ProfileReply
    from elasticflow.client.training_load import TrainingOptions as TrainingOptions
    from elasticflow.client.training_load import TrainingProgress as TrainingProgress
    from elasticflow.errors import ArtifactGone as ArtifactGone
    from elasticflow.errors import ArtifactNotReadable as ArtifactNotReadable
    from elasticflow.errors import InvalidJob as InvalidJob
    from elasticflow.errors import LoadNotOpened as LoadNotOpened
    from elasticflow.errors import LoadWasCancelled as LoadWasCancelled
    from elasticflow.errors import ManagerEnded as ManagerEnded
    from elasticflow.errors import MissingExtra as MissingExtra
    from elasticflow.errors import NoAdmission as NoAdmission
    from elasticflow.errors import NoModel as NoModel
    from elasticflow.errors import NoPoolHere as NoPoolHere
    from elasticflow.errors import NotConvertible as NotConvertible
    from elasticflow.errors import NotEnded as NotEnded
    from elasticflow.errors import NothingStored as NothingStored
    from elasticflow.errors import NotQuoted as NotQuoted
    from elasticflow.errors import NotStoredYet as NotStoredYet
    from elasticflow.errors import OutsideOfFolder as OutsideOfFolder
    from elasticflow.errors import PoolsUnusable as PoolsUnusable
    from elasticflow.errors import TaskError as TaskError
    from elasticflow.errors import TrainingRefused as TrainingRefused
    from elasticflow.errors import Undecided as Undecided
    from elasticflow.errors import UnknownJob as UnknownJob
    from elasticflow.errors import UnknownPool as UnknownPool
    from elasticflow.errors import UnknownQuote as UnknownQuote
    from elasticflow.history.pool_views import JobView as JobView
    from elasticflow.sdk.fetching import Fetched as Fetched
    from elasticflow.sdk.fetching import fetch as fetch
    from elasticflow.sdk.fetching import load as load
    from elasticflow.sdk.job import Condition as Condition
    from elasticflow.sdk.job import ElasticJob as ElasticJob
    from elasticflow.sdk.job import gather as gather
    from elasticflow.sdk.job import mean as mean
    from elasticflow.sdk.job_fields import data_path as data_path
    from elasticflow.sdk.local_run import LocalRun as LocalRun
    from elasticflow.sdk.local_run import run_locally as run_locally
    from elasticflow.sdk.packaging import PackagingFailed as PackagingFailed
    from elasticflow.sdk.padding import map as map
    from elasticflow.sdk.padding_executor import PaddingExecutor as PaddingExecutor
    from elasticflow.sdk.padding_executor import register_joblib as register_joblib
    from elasticflow.sdk.script import ElasticLoader as ElasticLoader
    from elasticflow.sdk.script import Script as Script
    from elasticflow.sdk.script import TorchrunScript as TorchrunScript
    from elasticflow.sdk.script import elastic as elastic
    from elasticflow.sdk.synchronous import JobViews as JobViews
    from elasticflow.sdk.synchronous import Quote as Quote
    from elasticflow.sdk.synchronous import amend as amend
    from elasticflow.sdk.synchronous import cancel as cancel
    from elasticflow.sdk.synchronous import checkpoint as checkpoint
    from elasticflow.sdk.synchronous import jobs as jobs
    from elasticflow.sdk.synchronous import profile as profile
    from elasticflow.sdk.synchronous import quote as quote
    from elasticflow.sdk.synchronous import quote_of_pools as quote_of_pools
    from elasticflow.sdk.synchronous import release as release
    from elasticflow.sdk.synchronous import reserve as reserve
    from elasticflow.sdk.synchronous import scale as scale
    from elasticflow.sdk.synchronous import submit as submit
    from elasticflow.sdk.synchronous import submit_to_pools as submit_to_pools
    from elasticflow.sdk.synchronous import wait as wait
    from elasticflow.sdk.training import train as train
    from elasticflow.shared.errors import BadCredentials as BadCredentials
    from elasticflow.shared.errors import ElasticFlowError as ElasticFlowError
    from elasticflow.shared.errors import PermanentFailure as PermanentFailure
    from elasticflow.shared.errors import Retry as Retry
    from elasticflow.shared.errors import Stop as Stop
    from elasticflow.shared.errors import Unavailable as Unavailable
    from elasticflow.shared.messages.events import AmendRejected as AmendRejected
    from elasticflow.shared.messages.events import CancelRejected as CancelRejected
    from elasticflow.shared.messages.events import CheckpointFailed as CheckpointFailed
    from elasticflow.shared.messages.events import CheckpointRejected as CheckpointRejected
    from elasticflow.shared.messages.events import CheckpointUpToDate as CheckpointUpToDate
    from elasticflow.shared.messages.events import CheckpointWritten as CheckpointWritten
    from elasticflow.shared.messages.events import DeadlineQuoted as DeadlineQuoted
    from elasticflow.shared.messages.events import GpuLimitsCleared as GpuLimitsCleared
    from elasticflow.shared.messages.events import GpuLimitsRejected as GpuLimitsRejected
    from elasticflow.shared.messages.events import GpuLimitsSet as GpuLimitsSet
    from elasticflow.shared.messages.events import JobAdmitted as JobAdmitted
    from elasticflow.shared.messages.events import JobAmended as JobAmended
    from elasticflow.shared.messages.events import JobCancelled as JobCancelled
    from elasticflow.shared.messages.events import JobFailed as JobFailed
    from elasticflow.shared.messages.events import JobProfiled as JobProfiled
    from elasticflow.shared.messages.events import JobRejected as JobRejected
    from elasticflow.shared.messages.events import QuoteRejected as QuoteRejected
    from elasticflow.shared.messages.events import QuoteReserved as QuoteReserved
    from elasticflow.shared.messages.events import RejectionReason as RejectionReason
    from elasticflow.shared.messages.gpus import GpuLimits as GpuLimits
    from elasticflow.shared.messages.gpus import ShareSegment as ShareSegment
    from elasticflow.shared.messages.gpus import segments as segments
    from elasticflow.shared.messages.job_spec import JobClass as JobClass
    from elasticflow.shared.messages.job_spec import JobSpec as JobSpec
    from elasticflow.shared.messages.job_spec import MetricCondition as MetricCondition
    from elasticflow.shared.messages.job_spec import Scalar as Scalar
    from elasticflow.shared.messages.rejection import Offer as Offer
    from elasticflow.times import Duration as Duration
    from elasticflow.times import Moment as Moment

__version__ = "0.1.0"

_NAMES_BY_MODULE = {
    "sdk.job": "Condition ElasticJob gather mean",
    "sdk.job_fields": "data_path",
    "sdk.fetching": "Fetched fetch load",
    "sdk.script": "ElasticLoader Script TorchrunScript elastic",
    "sdk.local_run": "LocalRun run_locally",
    "sdk.packaging": "PackagingFailed",
    "sdk.padding": "map",
    "sdk.padding_executor": "PaddingExecutor register_joblib",
    "times": "Duration Moment",
    "sdk.training": "train",
    "sdk.synchronous": (
        "JobViews Quote amend cancel checkpoint jobs profile quote quote_of_pools release reserve scale submit "
        "submit_to_pools wait"
    ),
    "client.client": "Client",
    "client.pool_endpoint": "Endpoint",
    "client.pool_front": "NamedPool PoolAnswer PoolsDecision",
    "client.replies": "CheckpointReply Decision ProfileReply",
    "client.training_load": "TrainingOptions TrainingProgress",
    "errors": (
        "ArtifactGone ArtifactNotReadable InvalidJob LoadNotOpened LoadWasCancelled ManagerEnded MissingExtra "
        "NoAdmission NoModel NoPoolHere NotConvertible NotEnded NotQuoted NotStoredYet NothingStored OutsideOfFolder "
        "PoolsUnusable TaskError TrainingRefused Undecided UnknownJob UnknownPool UnknownQuote"
    ),
    "history.pool_views": "JobView",
    "shared.errors": "BadCredentials ElasticFlowError PermanentFailure Retry Stop Unavailable",
    "shared.messages.events": (
        "AmendRejected CancelRejected CheckpointFailed CheckpointRejected CheckpointUpToDate "
        "CheckpointWritten DeadlineQuoted GpuLimitsCleared GpuLimitsRejected GpuLimitsSet JobAdmitted "
        "JobAmended JobCancelled JobFailed JobProfiled JobRejected QuoteRejected QuoteReserved "
        "RejectionReason"
    ),
    "shared.messages.job_spec": "JobClass JobSpec MetricCondition Scalar",
    "shared.messages.rejection": "Offer",
    "shared.messages.gpus": "GpuLimits ShareSegment segments",
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

if not TYPE_CHECKING:  # type checkers take the imports above, whose names are public by `as`
    __all__ = sorted({"__version__", *_MODULES})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})

"""Errors of the client and of `eflow up`; they belong to the tree in `shared/errors.py`."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from elasticflow.shared.errors import Explained, PermanentFailure, Retry, Stop
from elasticflow.shared.extras import MissingExtra as MissingExtra
from elasticflow.shared.messages.close_names import did_you_mean as did_you_mean


@dataclass(eq=False)
class NoPoolHere(Stop):
    """looked_in: the search for a run file starts in this folder and goes upwards; or is_named: the user named it."""

    looked_in: str
    is_named: bool = False

    def __str__(self) -> str:
        or_elsewhere = "or name its server with --nats-url nats://host:4222"
        if self.is_named:
            return (
                f"no pool runs in {self.looked_in} (--data-dir or EF_DATA_DIR); "
                f"start it with `eflow up --data-dir {shlex.quote(self.looked_in)}`, {or_elsewhere}"
            )
        return (
            f"no running pool found (no NATS_URL, and no .eflow/run.json in {self.looked_in} or above); "
            f"start one with `eflow up`, {or_elsewhere}"
        )


@dataclass(eq=False)
class UnknownPool(Stop):
    pool: str
    url: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        there = f"it has {', '.join(self.known)}" if self.known else "it has none: start one with `eflow up`"
        return f"no pool {self.pool!r} on the NATS server at {self.url}; {there}"


@dataclass(eq=False)
class NotTracked(Retry):
    """A tracking service does not take what it is told of a job's run."""

    service: str
    reason: str

    MESSAGE: ClassVar[str] = "{service}: {reason}"


KeyReason = Literal["no_keys", "unusable_keys", "operators_only", "wrong_tenant", "no_secrets_key"]


class KeysUnusable(Explained[KeyReason], Stop):
    """Keys are missing or damaged, or do not permit what was asked for."""


@dataclass(eq=False)
class NoViews(Retry):
    pool: str

    MESSAGE: ClassVar[str] = (
        "pool {pool!r} has no views for its tenants: its monitor has not run so far, or an older version made the "
        "pool, and its operator must run `eflow configure`"
    )


PoolsReason = Literal["no_pool_replies", "may_have_the_job", "in_several_pools"]


class PoolsUnusable(Explained[PoolsReason], Retry):
    """A front of several pools submits the job to none of them, or cannot say which one has it."""


InputReason = Literal["bad_job_file", "not_loadable", "bad_input_line", "not_an_export", "bad_pools"]


class InputUnusable(Explained[InputReason], PermanentFailure):
    """A file, a line or a name that the user gave is not what the command needs."""


AbsenceReason = Literal["unknown_node", "unknown_load", "not_measured", "load_in_use", "results_gone", "no_worker"]


class NotThere(Explained[AbsenceReason], PermanentFailure):
    """What the user asked for is not in the pool, or not for this reader."""


def unknown_load(load_id: str, pool: str, known: Iterable[str]) -> NotThere:
    meant = did_you_mean(load_id, known) or ";"
    return NotThere(
        "unknown_load", f"unknown padding load {load_id!r} in pool {pool}{meant} `eflow loads --all` lists its loads"
    )


@dataclass(eq=False)
class UnknownJob(PermanentFailure):
    """where: a pool or an exported ledger. known: the names there. listed_by: the command that lists its jobs."""

    job_id: str
    where: str
    known: tuple[str, ...] = ()
    listed_by: str = "eflow jobs --all"

    def __str__(self) -> str:
        meant = did_you_mean(self.job_id, self.known) or ";"
        return f"unknown job {self.job_id!r} in {self.where}{meant} `{self.listed_by}` lists its jobs"


@dataclass(eq=False)
class UnknownQuote(PermanentFailure):
    """known: those that are reserved now."""

    job_id: str
    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        meant = did_you_mean(self.job_id, self.known) or ";"
        return f"no quote {self.job_id!r} is reserved now{meant} `eflow quote ... --reserve 60s` reserves one"


@dataclass(eq=False)
class NothingStored(PermanentFailure):
    job_id: str
    reason: str

    MESSAGE: ClassVar[str] = "nothing of job {job_id!r} is stored: {reason}"


@dataclass(eq=False)
class NoModel(PermanentFailure):
    job_id: str
    reason: str

    MESSAGE: ClassVar[str] = "no model of job {job_id!r} is stored: {reason}"


@dataclass(eq=False)
class NotStoredYet(Retry):
    """node_id: which must store them."""

    job_id: str
    node_id: str
    timeout_s: float

    MESSAGE: ClassVar[str] = (
        "node {node_id} has not stored the files of {job_id!r} within {timeout_s:g} s; it does so once it runs and "
        "reaches NATS (`eflow nodes`), then repeat the command"
    )


@dataclass(eq=False)
class ArtifactGone(PermanentFailure):
    job_id: str
    path: str
    node_id: str

    MESSAGE: ClassVar[str] = (
        "{path} of job {job_id!r} is not stored any more: newer files took its place, or it is older than "
        "artifacts_kept_s; node {node_id} may still have it, in the folder checkpoints/{job_id} of its data folder"
    )


@dataclass(eq=False)
class ArtifactNotReadable(PermanentFailure):
    job_id: str
    path: str
    uri: str
    reason: str

    MESSAGE: ClassVar[str] = (
        "{path} of job {job_id!r} is in {uri}, which cannot be read here: {reason}; set the credentials of that "
        "storage, or ask its operator for access"
    )


@dataclass(eq=False)
class OutsideOfFolder(PermanentFailure):
    target: str
    folder: str

    MESSAGE: ClassVar[str] = "{target} is not written: it leads out of {folder}; choose another folder with --to"


@dataclass(eq=False)
class NotConvertible(PermanentFailure):
    names: str

    MESSAGE: ClassVar[str] = (
        "the model's state dict has values that are no tensors, which safetensors cannot hold: {names}; "
        "leave out --as safetensors"
    )


@dataclass(eq=False)
class Undecided(Retry):
    job_id: str
    timeout_s: float

    MESSAGE: ClassVar[str] = (
        "admission did not reply about {job_id!r} within {timeout_s:g} s; the command is stored, and admission "
        "decides on it when it runs (`eflow jobs` shows the job then)"
    )


@dataclass(eq=False)
class LoadNotOpened(PermanentFailure):
    load_id: str
    reason: str

    MESSAGE: ClassVar[str] = "admission did not open the padding load {load_id!r}: {reason}"


@dataclass(eq=False)
class LoadWasCancelled(PermanentFailure):
    load_id: str
    reason: str

    MESSAGE: ClassVar[str] = "the padding load {load_id!r} was cancelled before its last result: {reason}"


@dataclass(eq=False)
class NotPrintable(PermanentFailure):
    """index: of the task whose result cannot be printed."""

    index: int
    reason: str

    MESSAGE: ClassVar[str] = (
        "the result of task {index} cannot be printed as JSON: {reason}; return plain values, "
        "or write each result to a file with --pickle DIR"
    )


@dataclass(eq=False)
class TaskError(PermanentFailure):
    """A task of a padding load has failed for good. task_traceback: of the last attempt, on its node."""

    index: int
    attempts: int
    error: str
    task_traceback: str

    MESSAGE: ClassVar[str] = "task {index} failed {attempts} times, at last with: {error}\n{task_traceback}"


@dataclass(eq=False)
class ResultFileUnusable(PermanentFailure):
    """The file with a large result of a task cannot be read here."""

    index: int
    digest: str
    node_id: str
    why: str

    MESSAGE: ClassVar[str] = "the result of task {index} is the file {digest:.12} that node {node_id} wrote: {why}"


@dataclass(eq=False)
class TrainingRefused(PermanentFailure):
    """A training that is managed on this machine cannot continue; the reason tells the user what to change."""

    reason: str
    manager_traceback: str = ""

    MESSAGE: ClassVar[str] = "{reason}"


@dataclass(eq=False)
class ManagerEnded(Retry):
    """log_file: of the training manager, on this machine."""

    log_file: str

    MESSAGE: ClassVar[str] = (
        "the training manager has ended without a result; see {log_file}, then repeat the command to continue from the "
        "newest checkpoint"
    )


@dataclass(eq=False)
class NotEnded(Retry):
    job_id: str
    timeout_s: float

    MESSAGE: ClassVar[str] = "{job_id!r} did not end within {timeout_s:g} s; `eflow logs -f {job_id}` follows it"


@dataclass(eq=False)
class NoAdmission(Retry):
    pool: str

    MESSAGE: ClassVar[str] = (
        "no admission service replies in pool {pool}; `eflow up` starts one, "
        "or `python -m elasticflow.services.admission` beside an external NATS"
    )


@dataclass(eq=False)
class NotQuoted(Retry):
    pool: str
    reason: str

    MESSAGE: ClassVar[str] = "admission of pool {pool} quotes no deadline now: {reason}; ask again"


class InvalidJob(ValueError):
    """The job cannot be submitted. problems: one line for each wrong field."""

    code: ClassVar[str] = "invalid_job"

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems

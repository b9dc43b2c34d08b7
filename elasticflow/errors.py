"""What can go wrong between a user and a pool; branches of the one tree in `shared/errors.py`."""

from dataclasses import dataclass
from typing import ClassVar

from shared.errors import Park, Retry, Stop


@dataclass(eq=False)
class NoPoolHere(Stop):
    """looked_in: the folder from which run files were looked for, upwards."""

    looked_in: str

    SENTENCE: ClassVar[str] = (
        "no running pool found (no NATS_URL, and no .eflow/run.json in {looked_in} or above); "
        "start one with `eflow up`, or name its server with --nats-url nats://host:4222"
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
class UnknownJob(Park):
    """where: a pool, or an exported ledger; listed_by: the command that shows the jobs there are."""

    job_id: str
    where: str
    listed_by: str = "eflow jobs --all"

    SENTENCE: ClassVar[str] = "no job {job_id!r} in {where}; `{listed_by}` lists them"


@dataclass(eq=False)
class UnknownQuote(Park):
    job_id: str

    SENTENCE: ClassVar[str] = "no quote {job_id!r} is held now; `eflow quote ... --hold 60` holds one"


@dataclass(eq=False)
class NotLoadable(Park):
    """target: as the user named it."""

    target: str
    reason: str

    SENTENCE: ClassVar[str] = "cannot load {target}: {reason}"


@dataclass(eq=False)
class Undecided(Retry):
    job_id: str
    timeout_s: float

    SENTENCE: ClassVar[str] = (
        "nobody answered for {job_id!r} within {timeout_s:g} s; the wish is kept and will be decided as "
        "soon as an admission service runs (`eflow jobs` shows it then)"
    )


@dataclass(eq=False)
class AlreadyRunning(Stop):
    data_dir: str
    pid: int

    SENTENCE: ClassVar[str] = (
        "process {pid} already runs a pool in {data_dir}; use it, stop it with "
        "`eflow down --data-dir {data_dir}`, or choose another --data-dir"
    )


@dataclass(eq=False)
class UnusableFolder(Stop):
    data_dir: str
    reason: str

    SENTENCE: ClassVar[str] = (
        "no pool can be kept in {data_dir}: {reason}; mend that, or choose another --data-dir"
    )


@dataclass(eq=False)
class StartFailed(Stop):
    """name: of the process that did not come up; log_file: where it says more."""

    name: str
    reason: str
    log_file: str

    SENTENCE: ClassVar[str] = "{name} did not come up: {reason}; its log is {log_file}"


@dataclass(eq=False)
class NoAdmission(Retry):
    pool: str

    SENTENCE: ClassVar[str] = (
        "no admission service answers in pool {pool}; `eflow up` starts one, "
        "or `python -m services.admission` beside an outside NATS"
    )


@dataclass(eq=False)
class NotAnExport(Park):
    file: str
    reason: str

    SENTENCE: ClassVar[str] = "{file} cannot be read: {reason}; write one with `eflow events export FILE`"

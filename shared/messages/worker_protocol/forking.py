"""Messages between an executor and its fork server: one request at a time, and the end of each process. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt
from pydantic import Strict

from elasticflow.shared.messages.job_environment import OwnEnvironment, Requirements
from elasticflow.shared.messages.limits import DataUri, NumBytes, Text

Pid = Annotated[int, Strict(), Gt(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What separates a worker from its node (shared/runtime/process/isolation).

    namespaces: it sees its own processes and folders only; otherwise it just gains no rights.
    shares_memory: it sees the machine's shared memory, with which NCCL connects GPUs.
    readable: folders and files beside those of the system and of its job. hidden: those that it never sees.
    memory_bytes: what its files in memory may take together (/tmp, /dev/shm); 0: half of the machine's memory.
    devices: files and folders in /dev beside those that each program needs.
    cgroup: the folder of its own control group; "": it is in that of its executor.
    """

    namespaces: bool
    shares_memory: bool = False
    readable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    memory_bytes: NumBytes = 0
    devices: tuple[str, ...] = ()
    cgroup: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkServerReady:
    """The libraries are loaded: a fork takes milliseconds now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkWorker:
    """Fork a worker. A file descriptor comes with this message: the worker's end of its channel."""

    request: Annotated[int, Strict(), Ge(0)]  # repeated in the reply
    isolation: Isolation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerForked:
    """The reply: a process, the leader of its own process group."""

    request: Annotated[int, Strict(), Ge(0)]
    pid: Pid


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkFailed:
    """The other reply: no process, e.g. for lack of memory."""

    request: Annotated[int, Strict(), Ge(0)]
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReaped:
    """A worker and its whole process group are gone. Either exit_code or signal is None."""

    pid: Pid
    exit_code: int | None
    signal: int | None


ToForkServer = ForkWorker
FromForkServer = ForkServerReady | WorkerForked | ForkFailed | WorkerReaped


# --- Messages between an executor and a process that gets packages or data of one job ------------------
# The order is the first message of a forked process; it sends one reply and ends.

RESULT = "result"  # the folder within that of the order


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPackages:
    """Install packages into RESULT in this folder, which exists and is otherwise empty."""

    folder: str
    requirements: Requirements


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeEnvironment:
    """Make a Python environment in RESULT in this folder, which exists and is otherwise empty.

    place: where it will be.
    """

    folder: str
    place: str
    environment: OwnEnvironment


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchData:
    """Fetch a file or a folder into RESULT in this folder, under its own name. environment: with the job's secrets."""

    folder: str
    uri: DataUri
    environment: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All of it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPrepared:
    """It cannot be had here; error: why, with the last lines of an installer."""

    error: Text


ToPreparer = InstallPackages | MakeEnvironment | FetchData
FromPreparer = Prepared | NotPrepared


# --- Messages between an executor and a process that becomes a worker in an environment of its own ------


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterEnvironment:
    """The first message, before those of a worker: go on as a process of this environment's Python.

    folder: of the environment. readable, writable: the other folders that the worker needs. They are shown before,
    since code of the environment must not choose them.
    """

    folder: str
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()

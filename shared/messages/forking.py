"""What an executor and its fork server say to each other: one request at a time, and how each process ended. Pure."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from pydantic import Strict

from shared.messages.limits import Text

Pid = Annotated[int, Strict(), Gt(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkServerReady:
    """The libraries are loaded: a worker now costs milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkWorker:
    """Fork a worker. Its end of the channel comes along as a file descriptor."""

    request: Annotated[int, Strict(), Ge(0)]  # comes back in the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerForked:
    """The answer: a process, leader of its own process group."""

    request: Annotated[int, Strict(), Ge(0)]
    pid: Pid


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRefused:
    """The other answer: no process, e.g. for lack of memory."""

    request: Annotated[int, Strict(), Ge(0)]
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReaped:
    """A worker and its whole process group are gone. Either an exit code or a signal."""

    pid: Pid
    exit_code: int | None
    signal: int | None


ToForkServer = ForkWorker
FromForkServer = ForkServerReady | WorkerForked | ForkRefused | WorkerReaped

"""What reaches the executor's judgement from its own node, and what it wants done there. Pure values."""
# pyright: strict

from dataclasses import dataclass
from typing import Literal, NamedTuple

from shared.messages import from_worker
from shared.messages.detection import DetectionTimes
from shared.messages.job import JobSpec

Purpose = Literal["train", "profile"]


class WorkerId(NamedTuple):
    """One worker of the whole pool; no two processes ever had the same on one incarnation of a node."""

    job_id: str
    generation: int
    rank: int


# --- notes: what happened on this node ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A worker's word."""

    worker: WorkerId
    message: from_worker.FromWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A worker's process is gone, or never came to be: then explanation says why."""

    worker: WorkerId
    exit_code: int | None = None
    signal: int | None = None
    explanation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactLost:
    """The end of the ledger was out of sight for so long that all workers were killed."""

    silence_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactRestored:
    """The ledger is folded up to its end again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    """This executor is asked to end."""


# --- actions: what the shell shall do -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """checkpoint_iteration: the ledger knows of a whole checkpoint of so many steps.
    rendezvous: host:port of rank 0, "" if it is not known yet or not needed.
    meeting_size: of all who meet, where it joins workers that train; 0: all are new.
    micro_batch_size: as `Job`'s.
    """

    worker: WorkerId
    gpu_index: int
    world_size: int
    purpose: Purpose
    spec: JobSpec
    checkpoint_iteration: int
    detection: DetectionTimes
    rendezvous: str = ""
    meeting_size: int = 0
    micro_batch_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMembers:
    """Let a worker that trains go over to the next generation, or leave with it: `ChangeMembership` says how."""

    worker: WorkerId
    generation: int
    place: int
    world_size: int
    meeting_size: int
    rendezvous: str = ""
    micro_batch_size: int = 0

    @property
    def member(self) -> WorkerId | None:
        """Who it is in that generation; None if it leaves."""
        if self.place >= self.world_size:
            return None
        return WorkerId(self.worker.job_id, self.generation, self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class TellRendezvous:
    """To the local workers that are in the generation or go over to it, whoever is in place 0 excepted."""

    job_id: str
    generation: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TellPeersLost:
    """To one that survives: of its generation, or of one before this, some are gone."""

    worker: WorkerId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForCheckpoint:
    """Of the job of this worker, which trains on."""

    worker: WorkerId
    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorkers:
    """Checkpoint at the next step boundary, then exit."""

    job_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillWorkers:
    """End them now."""

    job_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillWorker:
    """End this one now; the others of its generation go on without it."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Depart:
    """Nothing runs here and nothing will: end this process. replaced: another executor took the node's name."""

    replaced: bool


Note = Said | Ended | ContactLost | ContactRestored | LeaveRequested
Action = (
    StartWorker
    | ChangeMembers
    | TellRendezvous
    | TellPeersLost
    | AskForCheckpoint
    | StopWorkers
    | KillWorkers
    | KillWorker
    | Depart
)

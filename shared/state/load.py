"""What the ledger says of one padding load, folded."""

from dataclasses import dataclass
from enum import StrEnum

from elasticflow.shared.messages.load_spec import LoadSpec, Ranges


class LoadPhase(StrEnum):
    """The phase of a load. The last two are final."""

    OPEN = "open"
    SEALED = "sealed"  # its number of tasks is known
    FINISHED = "finished"  # each task has a result
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One padding load, from its opening on. num_tasks: None until it is sealed. num_results: as last reported.

    identity: as of a job, see `identity_of`. by_identity: as in `LoadOpened`.
    counted: the tasks whose results were counted, up to the sequence counted_to of the result stream.
    """

    load_id: str
    identity: str
    tenant: str
    spec: LoadSpec
    phase: LoadPhase
    useful_share: float | None
    opened_at_s: float
    by_identity: bool = False
    num_tasks: int | None = None
    num_results: int = 0
    counted: Ranges = ()
    counted_to: int = 0
    progressed_at_s: float = 0.0
    sealed_at_s: float | None = None
    explanation: str = ""
    ended_at_s: float | None = None

    @property
    def live(self) -> bool:
        return self.phase in (LoadPhase.OPEN, LoadPhase.SEALED)

    @property
    def folder_name(self) -> str:
        """Of its folders: a later load of this id, maybe of another tenant, has others (docs/adr/0102)."""
        return f"{self.load_id}.{self.identity}"

    @property
    def bus_name(self) -> str:
        """Of its tasks, results and lease on the bus: a later load of this id has others. No id has such a sign."""
        return f"{self.load_id}={self.identity}" if self.by_identity else self.load_id


def load_id_on_bus(name: str) -> str:
    """The id of the load that has this `bus_name`."""
    return name.partition("=")[0]


def load_id_of(folder_name: str) -> str:
    """The id of the load that has folders of this name: no id has a dot."""
    return folder_name.partition(".")[0]

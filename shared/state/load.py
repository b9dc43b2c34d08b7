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

    counted: the tasks whose results were counted, up to the sequence counted_to of the result stream.
    """

    load_id: str
    tenant: str
    spec: LoadSpec
    phase: LoadPhase
    useful_share: float | None
    opened_at_s: float
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

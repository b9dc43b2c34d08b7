"""What the ledger says of one padding load, folded."""

from dataclasses import dataclass
from enum import StrEnum

from elasticflow.shared.messages.load_spec import LoadSpec


class LoadPhase(StrEnum):
    """The phase of a load. The last one is final."""

    OPEN = "open"
    SEALED = "sealed"  # its number of tasks is known
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One padding load, from its opening on. num_tasks: None until it is sealed."""

    load_id: str
    tenant: str
    spec: LoadSpec
    phase: LoadPhase
    useful_share: float | None
    opened_at_s: float
    num_tasks: int | None = None
    sealed_at_s: float | None = None
    explanation: str = ""
    ended_at_s: float | None = None

    @property
    def live(self) -> bool:
        return self.phase is not LoadPhase.CANCELLED

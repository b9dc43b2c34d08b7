"""Facts, in the past tense. Each names who writes it; one writer for each fact.

Every event carries what the fold needs, its own time included (`at_s`), so that state is a function of
the ledger alone. Import them from here; by whom and of what they tell decides in which file they stand.
"""

from shared.messages.events.admission import (
    AdmissionEvent,
    AmendRefused,
    BoundEnded,
    CancelRefused,
    CheckpointKept,
    CheckpointRefused,
    CheckpointRequested,
    JobAdmitted,
    JobAmended,
    JobCancelled,
    JobMeasured,
    JobRejected,
    JobScaled,
    ProfileRequested,
    QuoteHeld,
    QuoteRefused,
    RejectionReason,
    ScaleRefused,
)
from shared.messages.events.answers import DeadlineQuoted, MessageRefused
from shared.messages.events.jobs import (
    CheckpointFailed,
    CheckpointWritten,
    GenerationStarted,
    JobAtRisk,
    JobEvent,
    JobFailed,
    JobFinished,
    JobProgressed,
    MemoryExceeded,
    RendezvousOpened,
    ThroughputMeasured,
    WorkerCrashed,
    WorkerLagged,
    WorkersStopped,
)
from shared.messages.events.nodes import NodeEvent, NodeJoined, NodeLost, NodeReported, WorkerReport
from shared.messages.events.planning import (
    AllocationDecided,
    PlacedJob,
    PlacementDecided,
    PlanDecided,
    PlanEvent,
    PoolConfigured,
    ProfileCompleted,
)

Event = PlanEvent | NodeEvent | JobEvent
Answer = AdmissionEvent | DeadlineQuoted | MessageRefused  # to the sender of a wish
Telemetry = NodeReported  # never in the ledger

__all__ = [
    "AdmissionEvent",
    "AllocationDecided",
    "AmendRefused",
    "Answer",
    "BoundEnded",
    "CancelRefused",
    "CheckpointFailed",
    "CheckpointKept",
    "CheckpointRefused",
    "CheckpointRequested",
    "CheckpointWritten",
    "DeadlineQuoted",
    "Event",
    "GenerationStarted",
    "JobAdmitted",
    "JobAmended",
    "JobAtRisk",
    "JobCancelled",
    "JobEvent",
    "JobFailed",
    "JobFinished",
    "JobMeasured",
    "JobProgressed",
    "JobRejected",
    "JobScaled",
    "MemoryExceeded",
    "MessageRefused",
    "NodeEvent",
    "NodeJoined",
    "NodeLost",
    "NodeReported",
    "PlacedJob",
    "PlacementDecided",
    "PlanDecided",
    "PlanEvent",
    "PoolConfigured",
    "ProfileCompleted",
    "ProfileRequested",
    "QuoteHeld",
    "QuoteRefused",
    "RejectionReason",
    "RendezvousOpened",
    "ScaleRefused",
    "Telemetry",
    "ThroughputMeasured",
    "WorkerCrashed",
    "WorkerLagged",
    "WorkerReport",
    "WorkersStopped",
]

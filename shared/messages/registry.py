"""Every message that travels, by its name, which is its type on the wire. A new one is added here."""

from collections.abc import Mapping
from typing import Any

from shared.messages import commands, events

_TYPES: tuple[type[Any], ...] = (
    commands.SubmitJob,
    commands.CancelJob,
    commands.HoldQuote,
    commands.AmendJob,
    commands.ScaleJob,
    commands.ProfileJob,
    commands.QuoteDeadline,
    events.PlanDecided,
    events.ProfileRequested,
    events.JobMeasured,
    events.JobAdmitted,
    events.JobRejected,
    events.JobCancelled,
    events.CancelRefused,
    events.QuoteHeld,
    events.QuoteRefused,
    events.JobAmended,
    events.AmendRefused,
    events.JobScaled,
    events.ScaleRefused,
    events.BoundEnded,
    events.AllocationDecided,
    events.ProfileCompleted,
    events.PlacementDecided,
    events.PoolConfigured,
    events.NodeJoined,
    events.NodeLost,
    events.RendezvousOpened,
    events.GenerationStarted,
    events.WorkersStopped,
    events.WorkerCrashed,
    events.MemoryExceeded,
    events.JobProgressed,
    events.JobFinished,
    events.JobFailed,
    events.ThroughputMeasured,
    events.JobAtRisk,
    events.DeadlineQuoted,
    events.MessageRefused,
    events.NodeReported,
)
MESSAGE_TYPES: Mapping[str, type[Any]] = {message_type.__name__: message_type for message_type in _TYPES}

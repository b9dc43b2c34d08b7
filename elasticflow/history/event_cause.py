"""Each event as the cause of a later change of GPUs. Pure."""

from collections.abc import Callable

from elasticflow.history.formatting import end_in_words, gpus_counted, limits_in_words
from elasticflow.sdk.times import moment_in_words
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import Event


def cause_in_words(event: Event, job_id: str, shown: Callable[[str], str] = str) -> str:
    """Why the allocation may change after this event; "" if the event is no cause. shown: what to call another job."""

    def name(other: str) -> str:
        return "it" if other == job_id else shown(other)

    def whose(other: str) -> str:
        return "its" if other == job_id else f"{shown(other)}'s"

    match event:
        case events.JobAdmitted():
            return f"{name(event.job_id)} was admitted"
        case events.ProfileRequested():
            return f"{name(event.job_id)} waits for a decision"
        case events.JobFinished():
            return f"{name(event.job_id)} finished"
        case events.JobFailed():
            return f"{name(event.job_id)} failed"
        case events.JobCancelled():
            return f"{name(event.job_id)} was cancelled"
        case events.JobProfiled():
            return f"{name(event.job_id)} was profiled"
        case events.JobAmended():
            return f"{name(event.job_id)} was amended"
        case events.GpuLimitsSet():
            return f"{name(event.job_id)} was limited to {limits_in_words(event, event.at_s)}"
        case events.GpuLimitsCleared():
            return f"{whose(event.job_id)} GPU limits were cleared"
        case events.GpuTypeChanged():
            return f"{name(event.job_id)} moved to another GPU type"
        case events.QuoteReserved():
            return f"a quote is reserved for {name(event.job_id)}"
        case events.JobAtRisk():
            return f"{name(event.job_id)} is at risk"
        case events.WorkerCrashed():
            return f"a worker of {name(event.job_id)} crashed"
        case events.WorkerLagged():
            return f"a GPU of {name(event.job_id)} is slow"
        case events.JobWarned():
            return f"{whose(event.job_id)} code has a warning"
        case events.MemoryExceeded():
            return f"{whose(event.job_id)} micro-batches exceeded the memory"
        case events.ThroughputMeasured():
            return f"{whose(event.job_id)} speed on {gpus_counted(event.num_gpus)} was measured"
        case events.ProfilingFailed():
            return f"{whose(event.job_id)} profiling run failed"
        case events.NodeJoined():
            until = "" if event.until_s is None else f" until {moment_in_words(event.until_s, event.at_s)}"
            return f"{event.node_id} joined with {gpus_counted(event.num_gpus, event.gpu_type)}{until}"
        case events.NodeLost():
            return f"{event.node_id} was lost"
        case events.NodeEndAnnounced():
            return end_in_words(event)
        case events.NodeDrainStarted():
            return f"{event.node_id} is drained before its end"
        case events.PoolConfigured():
            return "the pool was configured"
        case _:
            return ""

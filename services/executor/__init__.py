"""Runs the workers of one node as the ledger places them.

Consumes the ledger, the messages of its worker processes, and what tenants ask about their workers here.
Emits as events NodeJoined, NodeEndNoticed, GpuFailing, NodeLost (when it shuts down), RendezvousOpened,
GenerationStarted, WorkersStopped, WorkerCrashed, WorkerLagged, JobWarned, WorkerEntered, MemoryExceeded,
CheckpointWritten, CheckpointFailed, ArtifactsStored, JobFinished, JobFailed, ThroughputMeasured and ProfilingFailed (of
profiling runs), and as heartbeat NodeReported.
Owns the worker processes of its node; on disk only their logs, the code, packages and environments of jobs, and their
checkpoints; in the object store what jobs have produced here, and on the bus the newest lines of their logs.
Promises: no two generations of a job train here at once, and no two workers share a GPU; each placed worker runs or is
reported as failed; workers end before the monitor may count the node as lost, and before another executor of its name
may join; no worker outlives its executor.
"""

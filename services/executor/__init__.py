"""Makes the placement true on one node.

Consumes the ledger, and what its worker processes say.
Emits NodeJoined, NodeLost (when it leaves), RendezvousOpened, GenerationStarted, WorkersStopped, WorkerCrashed,
MemoryExceeded, JobFinished, JobFailed, ThroughputMeasured (pre-runs) as facts, and NodeReported as heartbeat.
Owns the worker processes of its node, and nothing else on disk than logs, unpacked code and their checkpoints.
Promises: no two generations of a job and no two workers of a GPU run here at once; whatever was placed here runs or
is told to have failed; workers end before the monitor may count the node as lost; no process outlives it.
"""

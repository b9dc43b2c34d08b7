"""What is alive, how fast, and will it be late?

Consumes heartbeats (`NodeReported`) and the ledger. Emits NodeLost, JobProgressed, ThroughputMeasured, JobAtRisk,
and JobFailed for jobs that stand still without end. Keeps snapshots, and the pool's gauges.
Promises: a node that is heard is never called lost; a promise that cannot be kept is said to be at risk before it
is broken. Replicas hear everything; one speaks.
"""

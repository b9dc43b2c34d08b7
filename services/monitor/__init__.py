"""Detects lost nodes, measures the progress of jobs, and finds promises at risk.

Consumes heartbeats (`NodeReported`) and the ledger. Emits NodeLost, JobProgressed, ThroughputMeasured, JobAtRisk,
LoadProgressed, LoadFinished, and JobFailed or ProfilingFailed for jobs that make no progress; and in the record of a
silent node, NodeFenced. Keeps snapshots, the pool's gauges, and the views of tenants.
Guarantees: a node whose heartbeats arrive is never reported lost; a promise that cannot be kept is reported at risk
before it is broken. All replicas receive all messages; only the leader emits events.
"""

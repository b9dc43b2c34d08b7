"""Faults on three NATS servers and all services, in network namespaces, while clients submit, amend, cancel and quote.

`python -m benchmarks.nemesis` runs seeds and checks that the replies to each client are linearizable, and the ledger.
"""

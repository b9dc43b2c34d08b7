"""The trace-driven simulation: a whole trace through the services' own policies, on virtual time.

It calls the same `decide` and fold as the services, without codec and bus. `cluster_state` models nodes and training,
which the ledger only records. `simulator/pipeline` simulates processes, messages and faults as well.
"""

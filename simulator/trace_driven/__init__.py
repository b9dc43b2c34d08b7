"""A whole trace through the services' own policies, on virtual time.

The same `decide` and the same fold as live, with no codec and no bus in between; what the ledger would only hear
of (nodes, training, its exact speed) is a small world of its own. `simulator/cluster.py` is the other simulation: of
processes, messages and faults, second by second.
"""

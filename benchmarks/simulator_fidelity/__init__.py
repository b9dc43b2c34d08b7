"""How far the trace-driven simulator is from a live pool: the same unseen workload live and simulated."""

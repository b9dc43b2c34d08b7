"""Decides how many GPUs each job has now.

Consumes the ledger. Emits AllocationDecided at every scheduling event and whenever the planned shares change,
and ProfileCompleted once a scaling curve is complete enough for promises. Scaling probes measure a job on idle
GPUs, on more than its curve contains.
Guarantees: every promised job holds at least its minimum satisfactory share; the rest of the GPUs goes to the jobs with
the greatest marginal return.
"""
